//! A real OCI registry as a process, and modules pushed into it.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{eventually, process::Process, tools::tool, up::free_address};

/// A registry on loopback, in the clear.
pub struct Registry {
    /// Where it listens.
    pub address: SocketAddr,
    process: Process,
    dir: tempfile::TempDir,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

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
        registry.wait().await;
        registry
    }

    /// Ends it; what was pushed stays.
    pub fn stop(&mut self) {
        self.process.kill();
    }

    /// Starts it again where it was.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = launch(self.dir.path(), self.address);
        self.wait().await;
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
        let url = format!("http://{}/v2/{name}/manifests/{tag}", self.address);
        let body = Bytes::from(manifest.to_string());
        let (code, _) = send("PUT", &url, MANIFEST, body).await;
        assert_eq!(code, 201, "the manifest must be taken");
        format!("registry://{}/{image}", self.address)
    }

    /// Pushes a module of this repository's example policies.
    pub async fn push_example(&self, image: &str, policy: &str) -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
        let file = file.join(policy).join("policy.wasm");
        let module = fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.push(image, &module).await
    }

    async fn upload(&self, name: &str, blob: &[u8]) -> String {
        let digest: String = Sha256::digest(blob)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let digest = format!("sha256:{digest}");
        let url = format!(
            "http://{}/v2/{name}/blobs/uploads/?digest={digest}",
            self.address
        );
        let body = Bytes::copy_from_slice(blob);
        let (code, location) = send("POST", &url, "application/octet-stream", body.clone()).await;
        if code == 201 {
            return digest;
        }
        assert_eq!(code, 202, "an upload must begin");
        let sign = if location.contains('?') { '&' } else { '?' };
        let url = format!("{location}{sign}digest={digest}");
        let (code, _) = send("PUT", &url, "application/octet-stream", body).await;
        assert_eq!(code, 201, "a blob must be taken");
        digest
    }

    async fn wait(&self) {
        let listening = async || TcpStream::connect(self.address).is_ok();
        eventually("the registry listens", listening).await;
    }
}

fn launch(dir: &Path, address: SocketAddr) -> Process {
    let config = json!({
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": dir.join("data")}},
        "http": {"addr": address.to_string()},
    });
    let file = dir.join("config.yml");
    fs::write(&file, config.to_string()).expect("file must be written");
    let mut command = Command::new(tool("ASSENT_REGISTRY"));
    Process::start(command.arg("serve").arg(file), &dir.join("log"))
}

/// Code and `Location` of the answer.
async fn send(method: &str, url: &str, kind: &str, body: Bytes) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = hyper::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", kind)
        .body(Full::new(body))
        .expect("request must be made");
    let response = client.request(request).await;
    let response = response.expect("the registry must answer");
    let location = response.headers().get("location");
    let location = location.map(|l| l.to_str().unwrap_or_default().to_owned());
    let code = response.status().as_u16();
    let _ = response.into_body().collect().await;
    (code, location.unwrap_or_default())
}
