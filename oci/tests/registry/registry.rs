//! The real registry of these tests.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::Duration,
};

use assent_core::digest::Digest;
use assent_oci::{AddressPolicy, Error, ModuleUrl, Pulled, Puller, Sources};
use bytes::Bytes;
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    secrets::RegistryAuth,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

/// As Kubewarden's tools push policies.
pub(crate) const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
const CONFIG: &str = "application/vnd.wasm.config.v1+json";

/// `user:pass`, as the registry wants it.
const HTPASSWD: &str = "user:$2b$05$abcdefghijklmnopqrstuuZFBUbfXoM8LFiPx8LYlO/sXZB/Cwk3K\n";

pub(crate) struct Registry {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
    process: Child,
    _dir: TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    Login,
    Tls,
}

// === impl Registry ===

impl Registry {
    pub(crate) async fn start(access: Access) -> Self {
        let exe = std::env::var_os("ASSENT_REGISTRY").expect(
            "missing component: set ASSENT_REGISTRY to the docker-registry program \
             (Debian package docker-registry, /usr/bin/docker-registry)",
        );
        let dir = TempDir::new().unwrap();
        let address = free_address();
        let ca_pem = write_config(&dir, address, access);
        let process = Command::new(&exe)
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start {}: {error}", exe.display()));
        let registry = Self {
            address,
            ca_pem,
            process,
            _dir: dir,
        };
        registry.wait().await;
        registry
    }

    async fn wait(&self) {
        // Long, because a busy machine is no failure.
        for _ in 0..600 {
            if tokio::net::TcpStream::connect(self.address).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the registry never listened on {}", self.address);
    }

    /// Pushes a policy.
    pub(crate) async fn push(
        &self,
        name: &str,
        module: &'static [u8],
        layer: &str,
        auth: RegistryAuth,
    ) {
        let layers = [ImageLayer::new(module, layer.to_owned(), None)];
        let config = Config::new(b"{}".as_slice(), CONFIG.to_owned(), None);
        self.client()
            .push(&self.reference(name), &layers, config, &auth, None)
            .await
            .unwrap();
    }

    /// Pushes a blob and returns the descriptor of it.
    pub(crate) async fn push_blob(&self, name: &str, kind: &str, bytes: impl Into<Bytes>) -> Value {
        let bytes = bytes.into();
        let (digest, size) = (Digest::of(&bytes).to_string(), bytes.len());
        let reference = self.reference(name);
        let client = self.client();
        client.push_blob(&reference, bytes, &digest).await.unwrap();
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    /// Pushes a manifest as it is and returns the descriptor of it.
    pub(crate) async fn push_manifest(&self, name: &str, kind: &str, manifest: &Value) -> Value {
        let bytes = manifest.to_string().into_bytes();
        let (digest, size) = (Digest::of(&bytes).to_string(), bytes.len());
        let reference = self.reference(name);
        let kind_header = kind.parse().unwrap();
        self.client()
            .push_manifest_raw(&reference, bytes, kind_header)
            .await
            .unwrap();
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    /// Stops answering for good.
    pub(crate) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn reference(&self, name: &str) -> Reference {
        format!("{}/{name}", self.address).parse().unwrap()
    }

    fn client(&self) -> Client {
        // Another library may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let protocol = match self.ca_pem.is_empty() {
            true => ClientProtocol::Http,
            false => ClientProtocol::Https,
        };
        let client = Client::try_from(ClientConfig {
            protocol,
            accept_invalid_certificates: true,
            ..ClientConfig::default()
        });
        client.unwrap()
    }

    pub(crate) fn insecure(&self) -> Sources {
        Sources {
            insecure: vec![self.address.to_string()],
            ..Sources::default()
        }
    }

    pub(crate) async fn pull(&self, sources: Sources, name: &str) -> Result<Pulled, Error> {
        let url: ModuleUrl = format!("{}/{name}", self.address).parse().unwrap();
        let puller = Puller::new(sources, AddressPolicy::PUBLIC).unwrap();
        puller.pull(&url).await
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Returns the authority of the certificate, if there is one.
fn write_config(dir: &TempDir, address: SocketAddr, access: Access) -> String {
    let path = |name: &str| dir.path().join(name);
    let root = dir.path().display();
    let mut config = format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {root}/data\n"
    );
    let mut http = format!("http:\n  addr: {address}\n");
    let mut ca_pem = String::new();
    match access {
        Access::Open => {}
        Access::Login => {
            std::fs::write(path("htpasswd"), HTPASSWD).unwrap();
            config += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {root}/htpasswd\n");
        }
        Access::Tls => {
            ca_pem = write_certificates(dir);
            http += &format!("  tls:\n    certificate: {root}/tls.crt\n    key: {root}/tls.key\n");
        }
    }
    std::fs::write(path("config.yml"), config + &http).unwrap();
    ca_pem
}

fn write_certificates(dir: &TempDir) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.path().join("tls.crt"), leaf.pem()).unwrap();
    std::fs::write(dir.path().join("tls.key"), key.serialize_pem()).unwrap();
    issuer.pem()
}
