//! TLS: versions, protocols, certificates that change, and no plain HTTP where others listen.

use std::{fs, path::Path, sync::Arc, time::Duration};

use assent_core::RouteState::Active;
use assent_evaluator::{Config, Evaluator, Listen, TlsFiles};
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};

use crate::{
    eventually, guests,
    http::Client,
    peer::{Ca, Peer},
    set::{Revision, full, snapshot},
    start_with,
};

/// A certificate for localhost in a directory; gives what a client must trust.
pub(crate) fn certificate(dir: &Path) -> (TlsFiles, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let files = TlsFiles {
        cert: dir.join("tls.crt"),
        key: dir.join("tls.key"),
    };
    fs::write(&files.cert, made.cert.pem()).unwrap();
    fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (files, made.cert.der().clone())
}

/// Trusts this certificate and speaks these versions.
pub(crate) fn client(
    trusted: &CertificateDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
    Arc::new(
        config
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    )
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken_and_certificates_change_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (files, old) = certificate(dir.path());
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let evaluator = start_with(&peer, |config| {
        config.tls = Some(files.clone());
        config.timings.certificate_poll = Duration::from_millis(20);
    })
    .await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    assert_eq!(evaluator.ready(), Ok(()));
    let (addr, path) = (evaluator.listen_addr(), format!("/validate/{}", one.path()));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut client = Client::tls(addr, client(&old, &[version])).await;
        assert_eq!(client.review(&path).await.0.as_u16(), 200);
    }
    let mut open = Client::tls(addr, client(&old, rustls::ALL_VERSIONS)).await;
    // A broken pair changes nothing, a new one is taken; the open connection lives on.
    fs::write(&files.cert, "garbage").unwrap();
    let (_, new) = certificate(dir.path());
    let trusts_new = client(&new, rustls::ALL_VERSIONS);
    eventually("the new certificate is served", async || {
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(trusts_new.clone());
        connector.connect(name, stream).await.is_ok()
    })
    .await;
    assert_eq!(open.review(&path).await.0.as_u16(), 200);
}

#[tokio::test]
async fn plain_http_is_for_loopback_only() {
    let mut config = Config::loopback("http://127.0.0.1:1".parse().unwrap(), "a");
    config.engine = Some(crate::engine());
    config.listen = Listen::Addr("0.0.0.0:0".parse().unwrap());
    let error = Evaluator::start(config).await.err().unwrap();
    assert!(error.to_string().contains("loopback"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_can_not_be_used_is_said_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut files, _) = certificate(dir.path());
    let other = tempfile::tempdir().unwrap();
    files.key = certificate(other.path()).0.key;
    let mut config = Config::loopback("http://127.0.0.1:1".parse().unwrap(), "a");
    config.engine = Some(crate::engine());
    config.tls = Some(files);
    let error = Evaluator::start(config).await.err().unwrap();
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// A CA; its certificate and a token are in `dir`.
fn authority(dir: &Path) -> Ca {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let ca = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
    fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
    fs::write(dir.join("token"), "secret\n").unwrap();
    Ca(Arc::new(ca))
}

/// A control plane with TLS under this name, and a token.
async fn named_peer(ca: &Ca, name: &str, signs: bool) -> Peer {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let leaf = params.signed_by(&key, &ca.0).unwrap();
    let identity = tonic::transport::Identity::from_pem(leaf.pem(), key.serialize_pem());
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    Peer::start_secure(tls, "secret", signs.then(|| ca.clone())).await
}

/// A CA, and a control plane with TLS and a token; files for the evaluator are in `dir`.
async fn secure_peer(dir: &Path, signs: bool) -> (Peer, CertificateDer<'static>) {
    let ca = authority(dir);
    let root = ca.0.der().clone();
    (named_peer(&ca, "127.0.0.1", signs).await, root)
}

#[tokio::test]
async fn the_control_plane_signs_a_certificate_and_a_restart_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut peer, root) = secure_peer(dir.path(), true).await;
    let change = |config: &mut Config| {
        config.ca = Some(dir.path().join("ca.pem"));
        config.token_file = Some(dir.path().join("token"));
        config.state = Some(dir.path().join("state"));
    };
    let mut kept = None;
    for _ in 0..2 {
        let evaluator = start_with(&peer, change).await;
        let mut stream = peer.stream().await;
        assert!(
            stream
                .hello
                .node
                .as_ref()
                .unwrap()
                .endpoint
                .starts_with("https://")
        );
        stream.applied(full(&snapshot(&[]), "n1")).await;
        eventually("ready", async || evaluator.ready().is_ok()).await;
        let mut client =
            Client::tls(evaluator.listen_addr(), client(&root, rustls::ALL_VERSIONS)).await;
        assert_eq!(
            client.review("/validate/cluster/a/1-x").await.0.as_u16(),
            404
        );
        let key = fs::read(dir.path().join("state/tls.key")).unwrap();
        assert_eq!(kept.get_or_insert_with(|| key.clone()), &key);
        evaluator.shutdown().await;
    }
}

#[tokio::test]
async fn without_a_signer_loopback_serves_plain_http() {
    let dir = tempfile::tempdir().unwrap();
    let (mut peer, _) = secure_peer(dir.path(), false).await;
    let evaluator = start_with(&peer, |config| {
        config.ca = Some(dir.path().join("ca.pem"));
        config.token_file = Some(dir.path().join("token"));
    })
    .await;
    let mut stream = peer.stream().await;
    stream.applied(full(&snapshot(&[]), "n1")).await;
    eventually("ready", async || evaluator.ready().is_ok()).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    assert_eq!(
        client.review("/validate/cluster/a/1-x").await.0.as_u16(),
        404
    );
}

#[tokio::test]
async fn without_the_token_there_is_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (mut peer, _) = secure_peer(dir.path(), false).await;
    fs::write(dir.path().join("token"), "wrong").unwrap();
    let _evaluator = start_with(&peer, |config| {
        config.ca = Some(dir.path().join("ca.pem"));
        config.token_file = Some(dir.path().join("token"));
    })
    .await;
    let waiting = tokio::time::timeout(Duration::from_millis(300), peer.next()).await;
    assert!(
        waiting.is_err(),
        "a stream was opened without the right token"
    );
    // The file is read again: rotation needs no restart.
    fs::write(dir.path().join("token"), "secret").unwrap();
    peer.stream().await;
}

#[tokio::test]
async fn the_leader_is_reached_by_its_address_and_known_by_the_configured_name() {
    let dir = tempfile::tempdir().unwrap();
    let ca = authority(dir.path());
    // Certificates of control-plane replicas have the Service's name and no addresses.
    let standby = named_peer(&ca, "localhost", true).await;
    let mut leader = named_peer(&ca, "localhost", true).await;
    let mut status = tonic::Status::unavailable("not the leader");
    let address = leader.addr().to_string().parse().unwrap();
    status.metadata_mut().insert("assent-leader", address);
    *standby.shared.refusal.lock().unwrap() = Some(status);
    let discovery = format!("https://localhost:{}", standby.addr().port());
    let _evaluator = start_with(&standby, |config| {
        config.discovery = discovery.parse().unwrap();
        config.ca = Some(dir.path().join("ca.pem"));
        config.token_file = Some(dir.path().join("token"));
    })
    .await;
    leader.stream().await;
}

#[tokio::test]
async fn a_certificate_of_a_former_authority_is_replaced_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut peer, root) = secure_peer(dir.path(), true).await;
    // As an earlier process left it, valid for years, before the authority changed.
    let former = tempfile::tempdir().unwrap();
    let former = authority(former.path());
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &former.0).unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("tls.crt"), leaf.pem()).unwrap();
    fs::write(state.join("tls.key"), key.serialize_pem()).unwrap();
    let evaluator = start_with(&peer, |config| {
        config.ca = Some(dir.path().join("ca.pem"));
        config.token_file = Some(dir.path().join("token"));
        config.state = Some(state.clone());
    })
    .await;
    let _stream = peer.stream().await;
    let trusts = client(&root, rustls::ALL_VERSIONS);
    eventually("a certificate of the new authority is served", async || {
        let stream = tokio::net::TcpStream::connect(evaluator.listen_addr()).await;
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(trusts.clone());
        connector.connect(name, stream.unwrap()).await.is_ok()
    })
    .await;
}

/// Trusts `root` and presents a certificate that `ca` signed.
fn identified(root: &CertificateDer<'static>, ca: &Ca) -> Arc<ClientConfig> {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = params.signed_by(&key, &ca.0).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap()
        .with_root_certificates(roots);
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Arc::new(
        config
            .with_client_auth_cert(vec![leaf.der().clone()], key)
            .unwrap(),
    )
}

#[tokio::test]
async fn clients_must_present_a_certificate_if_there_is_an_authority_for_them() {
    let (dir, clients) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (files, served) = certificate(dir.path());
    let ca = authority(clients.path());
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let evaluator = start_with(&peer, |config| {
        config.tls = Some(files);
        config.client_ca = Some(clients.path().join("ca.pem"));
        config.timings.certificate_poll = Duration::from_millis(20);
        config.timings.self_check = Duration::from_millis(20);
    })
    .await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    let (addr, path) = (evaluator.listen_addr(), format!("/validate/{}", one.path()));
    let mut known = Client::tls(addr, identified(&served, &ca)).await;
    assert_eq!(known.review(&path).await.0.as_u16(), 200);
    let mut unknown = Client::tls(addr, client(&served, rustls::ALL_VERSIONS)).await;
    assert_eq!(unknown.review(&path).await.0.as_u16(), 401);
    let (status, _) = unknown.send(crate::http::get("/readyz")).await;
    assert_eq!(status.as_u16(), 200);
    // Another authority takes over without a restart.
    let next = authority(clients.path());
    eventually("the next authority counts", async || {
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(identified(&served, &next));
        let Ok(stream) = connector.connect(name, stream).await else {
            return false;
        };
        Client::over_tls(stream).await.try_review(&path).await == Some(200)
    })
    .await;
    assert_eq!(evaluator.ready(), Ok(()));
}

#[tokio::test]
async fn client_certificates_need_tls() {
    let mut config = Config::loopback("http://127.0.0.1:1".parse().unwrap(), "a");
    config.engine = Some(crate::engine());
    config.client_ca = Some("/nonexistent".into());
    let error = Evaluator::start(config).await.err().unwrap();
    assert!(error.to_string().contains("no TLS"), "{error}");
}
