//! A real registry: the `registry` program of the CNCF distribution project, which Debian
//! packages as docker-registry.

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use assent_core::Digest;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol},
};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};
use tempfile::TempDir;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub(crate) struct Registry {
    pub(crate) address: SocketAddr,
    process: Child,
    _dir: TempDir,
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let exe = std::env::var_os("ASSENT_REGISTRY").expect(
            "missing component: set ASSENT_REGISTRY to the docker-registry program \
             (Debian package docker-registry, /usr/bin/docker-registry)",
        );
        let dir = TempDir::new().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}/data\nhttp:\n  addr: {address}\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let process = Command::new(&exe)
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start {}: {error}", exe.display()));
        let registry = Self {
            address,
            process,
            _dir: dir,
        };
        crate::eventually("the registry listens", async || {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
        registry
    }

    /// The full name of an image here.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Stops answering for good.
    pub(crate) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Pushes an image with this configuration, and returns the digest of its manifest.
    pub(crate) async fn push(&self, name: &str, config: &str) -> Digest {
        let kind = "application/vnd.oci.image.config.v1+json";
        let config = self.push_blob(name, kind, config.to_owned()).await;
        self.push_manifest(name, &config, &[]).await
    }

    /// Signs a digest as `cosign sign --key` does.
    pub(crate) async fn sign(&self, repository: &str, digest: Digest, key: &KeyPair) {
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": ""},
                "image": {"docker-manifest-digest": digest.to_string()},
                "type": "cosign container image signature"
            },
            "optional": {"env": "prod"}
        })
        .to_string();
        let signature = BASE64_STANDARD.encode(key.sign(payload.as_bytes()).unwrap());
        let kind = "application/vnd.dev.cosign.simplesigning.v1+json";
        let mut layer = self.push_blob(repository, kind, payload).await;
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let kind = "application/vnd.oci.image.config.v1+json";
        let config = self.push_blob(repository, kind, "{}".to_owned()).await;
        let name = format!("{repository}:sha256-{}.sig", digest.hex());
        self.push_manifest(&name, &config, &[layer]).await;
    }

    async fn push_manifest(&self, name: &str, config: &Value, layers: &[Value]) -> Digest {
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        let bytes = Bytes::from(manifest.to_string());
        let kind = MANIFEST.parse().unwrap();
        let reference = self.reference(name);
        let client = client();
        let pushed = client.push_manifest_raw(&reference, bytes.clone(), kind);
        pushed.await.unwrap();
        Digest::of(&bytes)
    }

    async fn push_blob(&self, name: &str, kind: &str, blob: String) -> Value {
        let (digest, size) = (Digest::of(blob.as_bytes()).to_string(), blob.len());
        let reference = self.reference(name);
        client().push_blob(&reference, blob, &digest).await.unwrap();
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    fn reference(&self, name: &str) -> Reference {
        self.image(name).parse().unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client() -> Client {
    // Another library may have been first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = ClientConfig {
        protocol: ClientProtocol::Http,
        ..ClientConfig::default()
    };
    Client::try_from(config).unwrap()
}
