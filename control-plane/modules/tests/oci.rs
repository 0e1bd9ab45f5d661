//! Pulling from a real registry: the `registry` program of the CNCF distribution
//! project, which Debian packages as docker-registry.

#![allow(clippy::unwrap_used)]

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::Duration,
};

use assent_core::digest::Digest;
use assent_modules::pull::{Auth, Error, ModuleUrl, Pulled, Puller, Reach, Sources};
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    secrets::RegistryAuth,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";

/// As Kubewarden's tools push policies.
const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
const CONFIG: &str = "application/vnd.wasm.config.v1+json";

/// `user:pass`, as the registry wants it.
const HTPASSWD: &str = "user:$2b$05$abcdefghijklmnopqrstuuZFBUbfXoM8LFiPx8LYlO/sXZB/Cwk3K\n";

struct Registry {
    address: SocketAddr,
    ca_pem: String,
    process: Child,
    _dir: TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    Login,
    Tls,
}

// === impl Registry ===

impl Registry {
    async fn start(access: Access) -> Self {
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

    async fn push(&self, name: &str, module: &'static [u8], layer: &str, auth: RegistryAuth) {
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
        let reference: Reference = format!("{}/{name}", self.address).parse().unwrap();
        let layers = [ImageLayer::new(module, layer.to_owned(), None)];
        let config = Config::new(b"{}".as_slice(), CONFIG.to_owned(), None);
        let client = client.unwrap();
        client
            .push(&reference, &layers, config, &auth, None)
            .await
            .unwrap();
    }

    fn insecure(&self) -> Sources {
        Sources {
            insecure: vec![self.address.to_string()],
            ..Sources::default()
        }
    }

    async fn pull(&self, sources: Sources, name: &str) -> Result<Pulled, Error> {
        let url: ModuleUrl = format!("{}/{name}", self.address).parse().unwrap();
        let puller = Puller::new(sources, Reach::PUBLIC).unwrap();
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

/// Returns the authority of the certificate, where there is one.
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

#[tokio::test]
async fn a_tag_that_moves_is_noticed_by_its_pin() {
    let registry = Registry::start(Access::Open).await;
    let push = |module| registry.push("org/p:v1", module, LAYER, RegistryAuth::Anonymous);
    push(MODULE).await;
    let first = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap();
    assert_eq!(first.bytes, MODULE);
    assert_eq!(first.digest, Digest::of(MODULE));
    assert!(first.resolved_url.is_pinned());
    push(OTHER).await;
    let second = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap();
    assert_eq!(second.digest, Digest::of(OTHER));
    let puller = Puller::new(registry.insecure(), Reach::PUBLIC).unwrap();
    let pinned = puller.pull(&first.resolved_url).await.unwrap();
    assert_eq!(pinned.digest, Digest::of(MODULE));
    assert_eq!(pinned.resolved_url, first.resolved_url);
}

#[tokio::test]
async fn what_is_not_there_or_no_policy_is_final() {
    let registry = Registry::start(Access::Open).await;
    let error = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Status { status: 404, .. }),
        "{error}"
    );
    let pin = format!("org/p@{}", Digest::of(b"nothing"));
    let error = registry.pull(registry.insecure(), &pin).await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    let image = "application/vnd.oci.image.layer.v1.tar";
    registry
        .push("org/image:v1", MODULE, image, RegistryAuth::Anonymous)
        .await;
    let error = registry.pull(registry.insecure(), "org/image:v1").await;
    assert!(matches!(error, Err(Error::Manifest { .. })));
    registry
        .push("org/text:v1", b"no module", LAYER, RegistryAuth::Anonymous)
        .await;
    let error = registry.pull(registry.insecure(), "org/text:v1").await;
    assert!(matches!(error, Err(Error::NotWasm { .. })));
}

#[tokio::test]
async fn a_pull_secret_opens_a_registry() {
    let registry = Registry::start(Access::Login).await;
    let login = RegistryAuth::Basic("user".to_owned(), "pass".to_owned());
    registry.push("org/p:v1", MODULE, LAYER, login).await;
    let secret = |auth: &str| {
        let json = format!(
            r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#,
            registry.address
        );
        Sources {
            auth: Auth::from_docker_config(json.as_bytes()).unwrap(),
            ..registry.insecure()
        }
    };
    let pulled = registry.pull(secret("dXNlcjpwYXNz"), "org/p:v1").await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
    let error = registry.pull(secret("dXNlcjp3cm9uZw=="), "org/p:v1").await;
    assert!(matches!(error, Err(Error::Status { status: 401, .. })));
    let error = registry.pull(registry.insecure(), "org/p:v1").await;
    assert!(matches!(error, Err(Error::Login { .. })));
}

#[tokio::test]
async fn an_own_authority_is_trusted_where_it_is_declared() {
    let registry = Registry::start(Access::Tls).await;
    registry
        .push("org/p:v1", MODULE, LAYER, RegistryAuth::Anonymous)
        .await;
    let name = registry.address.to_string();
    let trusting = Sources {
        certificates: [(name, registry.ca_pem.clone().into_bytes())].into(),
        ..Sources::default()
    };
    let pulled = registry.pull(trusting, "org/p:v1").await.unwrap();
    assert_eq!(pulled.bytes, MODULE);
    let pulled = registry.pull(registry.insecure(), "org/p:v1").await;
    assert_eq!(pulled.unwrap().bytes, MODULE);
    let url: ModuleUrl = format!("{}/org/p:v1", registry.address).parse().unwrap();
    let puller = Puller::new(Sources::default(), Reach::LOCAL).unwrap();
    let error = puller.pull(&url).await.unwrap_err();
    assert!(matches!(error, Error::Certificate { .. }), "{error}");
}

#[tokio::test]
async fn a_registry_that_is_down_is_worth_another_try() {
    let mut registry = Registry::start(Access::Open).await;
    registry.process.kill().unwrap();
    registry.process.wait().unwrap();
    let error = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}
