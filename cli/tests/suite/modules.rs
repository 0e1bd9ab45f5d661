//! Modules in a real registry: push, pull, verify, digest, save, load; and `annotate` and `bench`.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use assent_core::Digest;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};

use crate::support::{Done, Files, assent, module, policy};

/// A registry on a port of its own.
struct Registry {
    address: SocketAddr,
    process: Child,
    files: Files,
}

impl Registry {
    fn start() -> Self {
        let exe = std::env::var_os("ASSENT_REGISTRY").expect(
            "missing component: set ASSENT_REGISTRY to the docker-registry program; scripts/tools has it",
        );
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let files = Files::new(&[]);
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
            files.path("data")
        );
        let config = files.add("config.yml", config.as_bytes());
        let process = Command::new(exe)
            .args(["serve", &config])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let registry = Self {
            address,
            process,
            files,
        };
        // Long, because a busy machine is no failure.
        for _ in 0..600 {
            if TcpStream::connect(address).is_ok() {
                return registry;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the registry never listened on {address}");
    }

    fn url(&self, name: &str) -> String {
        format!("registry://{}/{name}", self.address)
    }

    /// Runs a command that may reach this registry.
    fn run(&self, args: &[&str]) -> Done {
        let address = self.address.to_string();
        assent(&[args, &["--insecure-source", &address]].concat())
    }

    fn push(&self, name: &str, url: &str) -> Value {
        let done = self.run(&["push", &module(name), url, "-o", "json"]);
        done.expect(0).json()
    }

    /// Signs what `url` names as `cosign sign --key` does: an artefact under a tag made of the digest.
    fn sign(&self, repository: &str, pinned: &str, key: &KeyPair) {
        let digest = pinned.rsplit('@').next().unwrap();
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": ""},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature"
            },
            "optional": null
        })
        .to_string();
        let signature = BASE64_STANDARD.encode(key.sign(payload.as_bytes()).unwrap());
        let config = self.put_blob(repository, b"{}");
        let layer = self.put_blob(repository, payload.as_bytes());
        let mut layer = descriptor(
            "application/vnd.dev.cosign.simplesigning.v1+json",
            &layer,
            payload.len(),
        );
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config, 2),
            "layers": [layer],
        });
        let tag = format!("{}.sig", digest.replace(':', "-"));
        let path = format!("{repository}/manifests/{tag}");
        self.http(
            "PUT",
            &path,
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().as_bytes(),
        );
    }

    fn put_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes).to_string();
        let begun = self.http(
            "POST",
            &format!("{repository}/blobs/uploads/"),
            "text/plain",
            b"",
        );
        let location = begun
            .lines()
            .find_map(|line| {
                line.to_lowercase()
                    .starts_with("location: ")
                    .then(|| line[10..].to_owned())
            })
            .unwrap();
        let path = location.split_once("/v2/").unwrap().1;
        let path = format!("{path}&digest={}", digest.replace(':', "%3A"));
        self.http("PUT", &path, "application/octet-stream", bytes);
        digest
    }

    fn http(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        use std::io::{Read as _, Write as _};
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "{method} /v2/{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 20"),
            "{method} {path}: {answer}"
        );
        answer
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn descriptor(kind: &str, digest: &str, size: usize) -> Value {
    json!({"mediaType": kind, "digest": digest, "size": size})
}

/// A key pair and its public key as a file.
fn key(files: &Files, name: &str) -> (KeyPair, String) {
    let key = KeyPair::generate().unwrap();
    let der = BASE64_STANDARD.encode(key.subject_public_key_info());
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n");
    let path = files.add(name, pem.as_bytes());
    (key, path)
}

#[test]
fn pushed_module_is_pulled_and_named() {
    let registry = Registry::start();
    let url = registry.url("org/no-privileged:v1");
    let bytes = std::fs::read(module("no-privileged")).unwrap();
    let pushed = registry.push("no-privileged", &url);
    assert_eq!(pushed["digest"], Digest::of(&bytes).to_string());
    let pinned = pushed["url"].as_str().unwrap();
    assert!(pinned.contains("@sha256:"), "{pinned}");
    // A second push changes nothing, and gives the same artefact.
    assert_eq!(registry.push("no-privileged", &url)["url"], pinned);
    for from in [&url, pinned] {
        let file = registry.files.path("pulled.wasm");
        registry.run(&["pull", from, "-O", &file]).expect(0);
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    }
    let done = registry.run(&["digest", &url, "-o", "json"]);
    assert_eq!(done.expect(0).json()[0]["url"], pinned);
    let case = policy("no-privileged").join("tests/pod-privileged.json");
    registry
        .run(&["run", &url, "-f", case.to_str().unwrap()])
        .expect(1);
}

#[test]
fn errors_of_registries_say_what_to_do() {
    let registry = Registry::start();
    let url = registry.url("org/lost:v1");
    let done = assent(&["push", &module("no-privileged"), &url]);
    done.expect(2).says("--insecure-source");
    registry.run(&["pull", &url]).expect(2).says("404");
    registry
        .run(&["push", &module("no-privileged"), "https://host/p.wasm"])
        .expect(2)
        .says("not in a registry");
    registry
        .run(&["save", "https://host/p.wasm", "-O", "x.tar"])
        .expect(2)
        .says("not in a registry");
}

#[test]
fn signatures_are_verified_and_survive_save_and_load() {
    let registry = Registry::start();
    let url = registry.url("org/p:v1");
    let pinned = registry.push("no-privileged", &url)["url"]
        .as_str()
        .unwrap()
        .to_owned();
    let (signer, public) = key(&registry.files, "cosign.pub");
    let (_, other) = key(&registry.files, "other.pub");
    registry
        .run(&["verify", &url, "--key", &public])
        .expect(1)
        .says("no signature");
    registry.sign("org/p", &pinned, &signer);
    registry.run(&["verify", &url, "--key", &public]).expect(0);
    registry
        .run(&["verify", &url, "--key", &other])
        .expect(1)
        .says("none of them by a trusted key");
    let file = registry.files.path("p.wasm");
    registry
        .run(&["pull", &url, "--key", &other, "-O", &file])
        .expect(1);
    assert!(!std::path::Path::new(&file).exists());
    registry
        .run(&["pull", &url, "--key", &public, "-O", &file])
        .expect(0);
    // To another registry, as over an air gap.
    let bundle = registry.files.path("bundle.tar");
    registry.run(&["save", &url, "-O", &bundle]).expect(0);
    let inside = Registry::start();
    let to = format!("{}/mirror", inside.address);
    let done = inside.run(&["load", &bundle, &to, "-o", "json"]);
    let loaded = done.expect(0).json();
    assert_eq!(loaded[0]["to"], inside.url("mirror/org/p:v1"));
    let manifest = loaded[0]["manifest"].as_str().unwrap();
    assert!(pinned.ends_with(manifest), "{pinned} {manifest}");
    let mirrored = inside.url("mirror/org/p:v1");
    inside
        .run(&["verify", &mirrored, "--key", &public])
        .expect(0);
    let cut = std::fs::read(&bundle).unwrap();
    let cut = registry.files.add("cut.tar", &cut[..cut.len() / 2]);
    inside.run(&["load", &cut, &to]).expect(2).says("cut.tar");
}

#[test]
fn annotated_module_has_its_metadata() {
    let files = Files::new(&[(
        "metadata.yaml",
        b"mutating: true\nannotations: {io.kubewarden.policy.title: mine}\n",
    )]);
    let out = files.path("out.wasm");
    let annotate = |metadata: &str| {
        assent(&[
            "annotate",
            &module("no-privileged"),
            "-m",
            metadata,
            "-O",
            &out,
        ])
    };
    annotate(&files.path("metadata.yaml")).expect(0);
    let found = assent(&["inspect", &out, "-o", "json"]).expect(0).json();
    assert_eq!(found["metadata"]["mutating"], true);
    assert_eq!(
        found["metadata"]["annotations"]["io.kubewarden.policy.title"],
        "mine"
    );
    let bad = files.add("bad.yaml", b"executionMode: lua\n");
    annotate(&bad).expect(2).says("lua");
}

#[test]
fn bench_measures_a_policy() {
    let files = Files::new(&[(
        "pod.yaml",
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
    )]);
    let pod = files.path("pod.yaml");
    let args = [
        "bench",
        &module("no-privileged"),
        "-f",
        &pod,
        "--seconds",
        "0.2",
        "--threads",
        "2",
    ];
    let done = assent(&[&args[..], &["-o", "json"]].concat());
    let measured = done.expect(0).json();
    assert!(measured["evaluations"].as_u64().unwrap() >= 2, "{measured}");
    assert!(measured["p50Micros"].as_f64().unwrap() > 0.0, "{measured}");
    assert!(assent(&args).expect(0).out.contains("per second"));
}

#[test]
fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            assent(&["completion", shell])
                .expect(0)
                .out
                .contains("rollout"),
            "{shell}"
        );
    }
    let files = Files::new(&[]);
    assent(&["man", &files.path("")]).expect(0);
    for page in ["assent.1", "assent-run.1", "assent-rollout-undo.1"] {
        let text = std::fs::read_to_string(files.path(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}
