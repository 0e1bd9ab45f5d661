//! A real OCI registry as a process, and modules pushed into it.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{eventually, module, process::Process, tools::tool, up::free_address};

/// The same content over TLS, optionally with a password.
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    _process: Process,
    _dir: tempfile::TempDir,
}

/// A registry on loopback, in the clear.
pub struct Registry {
    /// Where it listens.
    pub address: SocketAddr,
    process: Process,
    dir: tempfile::TempDir,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The user that a [`Front`] may ask for, the password, and what a registry keeps of it.
pub const USER: &str = "puller";
/// The password of [`USER`].
pub const PASSWORD: &str = "wordpass";
const HTPASSWD: &str = "puller:$2y$05$abcdefghijklmnopqrstuufDhcvRR2DNYpmWgEgaD14q3QMkTYfIC\n";

// === impl Registry ===

impl Registry {
    /// Starts an empty one.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let address = free_address();
        let process = launch(dir.path(), address);
        let registry = Self {
            address,
            process,
            dir,
        };
        wait(address).await;
        registry
    }

    /// Ends it; what was pushed stays.
    pub fn stop(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same address.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = launch(self.dir.path(), self.address);
        wait(self.address).await;
    }

    /// Pushes a module and returns its URL: `push("policy:v1", …)`.
    pub async fn push(&self, image: &str, module: &[u8]) -> String {
        let (name, tag) = image.split_once(':').expect("an image must have a tag");
        let config = self.upload(name, b"{}").await;
        let layer = self.upload(name, module).await;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.wasm.config.v1+json", "digest": config, "size": 2},
            "layers": [{
                "mediaType": "application/vnd.wasm.content.layer.v1+wasm",
                "digest": layer,
                "size": module.len(),
            }],
        });
        self.put_manifest(name, tag, &manifest).await;
        format!("registry://{}/{image}", self.address)
    }

    /// Signs an image that was pushed, in the form that `cosign sign --key` leaves behind.
    pub async fn sign(&self, image: &str, key: &KeyPair) {
        let (name, tag) = image.split_once(':').expect("an image must have a tag");
        let url = format!("http://{}/v2/{name}/manifests/{tag}", self.address);
        let (code, _, manifest) = send("GET", &url, MANIFEST, Bytes::new()).await;
        assert_eq!(code, 200, "the image must be there");
        let digest = digest(&manifest);
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": format!("{}/{name}", self.address)},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": null,
        })
        .to_string();
        let signature = key.sign(payload.as_bytes()).expect("a key must sign");
        let config = self.upload(name, b"{}").await;
        let layer = self.upload(name, payload.as_bytes()).await;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
            "layers": [{
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
                "digest": layer,
                "size": payload.len(),
                "annotations": {"dev.cosignproject.cosign/signature": STANDARD.encode(signature)},
            }],
        });
        let tag = format!("{}.sig", digest.replace(':', "-"));
        self.put_manifest(name, &tag, &manifest).await;
    }

    /// Serves the same content over TLS, with the certificate of a directory that
    /// [`crate::tls::write_certificates`] filled.
    pub async fn front(&self, certificates: &Path, password: bool) -> Front {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let address = free_address();
        let mut config = config(self.dir.path(), address);
        config["http"]["tls"] = json!({
            "certificate": certificates.join("tls.pem"),
            "key": certificates.join("tls.key"),
        });
        if password {
            let file = dir.path().join("htpasswd");
            fs::write(&file, HTPASSWD).expect("file must be written");
            config["auth"] = json!({"htpasswd": {"realm": "tests", "path": file}});
        }
        let process = serve(dir.path(), &config);
        wait(address).await;
        Front {
            address,
            _process: process,
            _dir: dir,
        }
    }

    async fn put_manifest(&self, name: &str, tag: &str, manifest: &Value) {
        let url = format!("http://{}/v2/{name}/manifests/{tag}", self.address);
        let body = Bytes::from(manifest.to_string());
        let (code, ..) = send("PUT", &url, MANIFEST, body).await;
        assert_eq!(code, 201, "the manifest must be taken");
    }

    /// Pushes a module of this repository's example policies.
    pub async fn push_example(&self, image: &str, policy: &str) -> String {
        self.push(image, &module::example(policy)).await
    }

    async fn upload(&self, name: &str, blob: &[u8]) -> String {
        let digest = digest(blob);
        let url = format!(
            "http://{}/v2/{name}/blobs/uploads/?digest={digest}",
            self.address
        );
        let body = Bytes::copy_from_slice(blob);
        let (code, location, _) =
            send("POST", &url, "application/octet-stream", body.clone()).await;
        if code == 201 {
            return digest;
        }
        assert_eq!(code, 202, "an upload must begin");
        let sign = if location.contains('?') { '&' } else { '?' };
        let url = format!("{location}{sign}digest={digest}");
        let (code, ..) = send("PUT", &url, "application/octet-stream", body).await;
        assert_eq!(code, 201, "a blob must be taken");
        digest
    }
}

// === impl Front ===

impl Front {
    /// URL of an image that was pushed.
    pub fn url(&self, image: &str) -> String {
        format!("registry://{}/{image}", self.address)
    }
}

async fn wait(address: SocketAddr) {
    let listening = async || TcpStream::connect(address).is_ok();
    eventually("the registry listens", listening).await;
}

fn launch(dir: &Path, address: SocketAddr) -> Process {
    serve(dir, &config(dir, address))
}

fn config(dir: &Path, address: SocketAddr) -> Value {
    json!({
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": dir.join("data")}},
        "http": {"addr": address.to_string()},
    })
}

fn serve(dir: &Path, config: &Value) -> Process {
    let file = dir.join("config.yml");
    fs::write(&file, config.to_string()).expect("file must be written");
    let mut command = Command::new(tool("ASSENT_REGISTRY"));
    Process::start(command.arg("serve").arg(file), &dir.join("log"))
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// Code, `Location` and body of the answer.
async fn send(method: &str, url: &str, kind: &str, body: Bytes) -> (u16, String, Bytes) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = hyper::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", kind)
        .header("accept", kind)
        .body(Full::new(body))
        .expect("request must be made");
    let response = client.request(request).await;
    let response = response.expect("the registry must answer");
    let location = response.headers().get("location");
    let location = location.map(|l| l.to_str().unwrap_or_default().to_owned());
    let code = response.status().as_u16();
    let body = response.into_body().collect().await;
    let body = body.expect("the registry must answer").to_bytes();
    (code, location.unwrap_or_default(), body)
}
