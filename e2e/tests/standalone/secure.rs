//! TLS and tokens.

use std::{fs, os::unix::fs::PermissionsExt as _};

use assent_e2e::{
    Delta, Evaluator, Options, Up,
    client::{first, node, with_token},
    process::{assent, text},
    tls::write_certificates,
};
use assent_proto::v1::{
    ClientStatusRequest, PolicyDiscoveryRequest, ReplicaState, UndoRequest,
    client_status_service_client::ClientStatusServiceClient,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
    rollout_service_client::RolloutServiceClient,
};
use tonic::{
    Code,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// A control plane with TLS and tokens; the directory has `ca.pem` and the tokens' files.
struct Secured {
    up: Up,
    dir: tempfile::TempDir,
}

impl Secured {
    async fn start(replicas: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_certificates(dir.path());
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("tokens"), "# tokens\nmaster\nbound,replica-1\n").unwrap();
        fs::write(path("master"), "master\n").unwrap();
        fs::write(path("bound"), "bound\n").unwrap();
        for name in ["tokens", "master", "bound", "tls.key"] {
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let options = Options::replicas(replicas).policy("p").args(&[
            "--tls-cert",
            &path("tls.pem"),
            "--tls-key",
            &path("tls.key"),
            "--token-file",
            &path("tokens"),
        ]);
        let up = Up::start(options).await;
        Self { up, dir }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.up.discovery.port())
    }

    async fn channel(&self) -> Channel {
        let ca = Certificate::from_pem(fs::read(self.file("ca.pem")).unwrap());
        let endpoint = Endpoint::from_shared(self.url()).unwrap();
        let tls = ClientTlsConfig::new().ca_certificate(ca);
        endpoint.tls_config(tls).unwrap().connect().await.unwrap()
    }
}

#[tokio::test]
async fn only_known_tokens_open_streams() {
    let secured = Secured::start(0).await;
    let channel = secured.channel().await;
    for token in [
        None,
        Some(""),
        Some("wrong"),
        Some("master,"),
        Some("bound,replica-1"),
    ] {
        let refusal = Delta::refusal_as(channel.clone(), first(node("replica-1")), token).await;
        assert_eq!(
            refusal.code(),
            Code::Unauthenticated,
            "{token:?}: {refusal:?}"
        );
    }
    let refusal = Delta::refusal_as(channel.clone(), first(node("replica-2")), Some("bound")).await;
    assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal:?}");
    for (id, token) in [("replica-1", "bound"), ("replica-2", "master")] {
        let stream = Delta::open_as(channel.clone(), first(node(id)), Some(token)).await;
        stream
            .unwrap()
            .follow(|held| held.revisions.len() == 1)
            .await;
    }
}

#[tokio::test]
async fn other_calls_need_a_token_too() {
    let secured = Secured::start(0).await;
    let channel = secured.channel().await;
    let mut discovery = PolicyDiscoveryServiceClient::new(channel.clone());
    let mut states = ClientStatusServiceClient::new(channel.clone());
    let mut rollouts = RolloutServiceClient::new(channel.clone());
    let undo = || UndoRequest {
        policy: "cluster/p".into(),
        to_generation: 0,
    };
    for token in [None, Some("wrong")] {
        let codes = [
            discovery
                .fetch_policies(with_token(PolicyDiscoveryRequest::default(), token))
                .await
                .err(),
            states
                .fetch_client_status(with_token(ClientStatusRequest::default(), token))
                .await
                .err(),
            rollouts.undo(with_token(undo(), token)).await.err(),
        ];
        for (n, code) in codes.into_iter().enumerate() {
            assert_eq!(
                code.map(|s| s.code()),
                Some(Code::Unauthenticated),
                "call {n}"
            );
        }
    }
    // A replica follows policies and does not change them.
    let refusal = rollouts
        .undo(with_token(undo(), Some("bound")))
        .await
        .unwrap_err();
    assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal:?}");
    let set = discovery.fetch_policies(with_token(
        PolicyDiscoveryRequest::default(),
        Some("master"),
    ));
    set.await.unwrap();
}

#[tokio::test]
async fn plaintext_and_unknown_cas_are_refused() {
    let secured = Secured::start(0).await;
    let plain = Endpoint::from_shared(secured.up.url()).unwrap();
    if let Ok(channel) = plain.connect().await {
        let opened = Delta::open_as(channel, first(node("a")), Some("master")).await;
        if let Ok(mut stream) = opened {
            assert_ne!(stream.ended().await.code(), Code::Ok);
        }
    }
    let other = tempfile::tempdir().unwrap();
    write_certificates(other.path());
    let ca = Certificate::from_pem(fs::read(other.path().join("ca.pem")).unwrap());
    let endpoint = Endpoint::from_shared(secured.url()).unwrap();
    let tls = ClientTlsConfig::new().ca_certificate(ca);
    assert!(endpoint.tls_config(tls).unwrap().connect().await.is_err());
}

#[tokio::test]
async fn evaluators_and_commands_work_over_tls_with_tokens() {
    let secured = Secured::start(2).await;
    let (ca, bound, master) = (
        secured.file("ca.pem"),
        secured.file("bound"),
        secured.file("master"),
    );
    let args = ["--ca", ca.as_str(), "--token-file", bound.as_str()];
    let evaluator = Evaluator::start_with(&secured.url(), "replica-1", &args).await;
    evaluator.wait_ready().await;
    let enforced = secured.up.wait_enforced("p", 1).await;
    assert!(
        enforced["status"]["rollout"]["desired"].as_i64().unwrap() >= 2,
        "{enforced:#}"
    );
    let channel = secured.channel().await;
    let mut states = ClientStatusServiceClient::new(channel);
    let current = async || {
        let request = with_token(ClientStatusRequest::default(), Some("master"));
        let replicas = states
            .fetch_client_status(request)
            .await
            .unwrap()
            .into_inner()
            .replicas;
        replicas.len() == 3 && replicas.iter().all(|r| r.state() == ReplicaState::Current)
    };
    assent_e2e::eventually("all three are current", current).await;
    let url = secured.url();
    let asked = assent(&[
        "status",
        "p",
        "--server",
        &url,
        "--ca",
        &ca,
        "--token-file",
        &master,
    ]);
    assert_eq!(asked.status.code(), Some(0), "{}", text(&asked));
    let asked = assent(&["status", "p", "--server", &url, "--ca", &ca]);
    assert_eq!(asked.status.code(), Some(2), "{}", text(&asked));
    assert!(text(&asked).contains("--token-file"));
    // Tokens are nobody's business.
    let log = secured.up.log();
    assert!(
        !log.contains("master\n") && !log.contains("Bearer"),
        "{log}"
    );
}
