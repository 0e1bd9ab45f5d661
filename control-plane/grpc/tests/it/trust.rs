use std::{fs, net::SocketAddr, sync::Arc};

use assent_core::Policy;
use assent_grpc::{
    Authenticator, Config, Tls,
    auth::{Access, Error, Open, Principal, StaticTokens},
    certificate::SelfSignedCa,
};
use assent_proto::v1::{
    self, certificate_service_client::CertificateServiceClient,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tonic::{
    Code, Request as Call,
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::support::*;

async fn guarded() -> (Plane, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "anyone\nbound,r-0\n").unwrap();
    let tokens = StaticTokens::load(path).unwrap();
    let plane = Plane::start_with(Config::default(), Arc::new(tokens)).await;
    plane.publish(mk_snapshot(&["a"]));
    plane.hub.set_synced();
    (plane, dir)
}

pub(crate) fn with_token<T>(message: T, token: &str) -> Call<T> {
    let mut call = Call::new(message);
    let value = format!("Bearer {token}").parse().unwrap();
    call.metadata_mut().insert("authorization", value);
    call
}

async fn open(plane: &Plane, id: &str, token: &str) -> Code {
    let requests = with_token(tokio_stream::once(first(id)), token);
    match plane.client().await.delta_policies(requests).await {
        Err(status) => status.code(),
        Ok(stream) => stream
            .into_inner()
            .message()
            .await
            .map_or_else(|s| s.code(), |_| Code::Ok),
    }
}

#[tokio::test]
async fn streams_need_a_token_of_that_replica() {
    let (mut plane, _dir) = guarded().await;
    assert_eq!(open(&plane, "r-0", "wrong").await, Code::Unauthenticated);
    let requests = tokio_stream::once(first("r-0"));
    let status = plane
        .client()
        .await
        .delta_policies(requests)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(open(&plane, "r-1", "bound").await, Code::PermissionDenied);
    let counted = plane.counted("first_message_errors_total{reason=\"identity\"}");
    assert_eq!(counted, 1);
    assert!(plane.events.try_recv().is_err());
    assert_eq!(open(&plane, "r-0", "bound").await, Code::Ok);
    assert_eq!(open(&plane, "r-1", "anyone").await, Code::Ok);
}

/// Tells replicas by their token: of the PolicyServer, or injected into a pod of a user.
struct ByToken;

#[tonic::async_trait]
impl Authenticator for ByToken {
    async fn authenticate(
        &self,
        token: Option<&str>,
        _: Option<SocketAddr>,
        _: Access,
    ) -> Result<Principal, Error> {
        Ok(Principal::Replica {
            id: "r-0".into(),
            policy_server: None,
            identity: "test".into(),
            expires: None,
            follower: token == Some("follower"),
            addresses: Vec::new(),
        })
    }
}

/// Whoever can run a pod could read the settings in its evaluator, or use its token.
#[tokio::test]
async fn settings_from_secrets_are_sent_to_evaluators_of_the_server_only() {
    let plane = Plane::start_with(Config::default(), Arc::new(ByToken)).await;
    let mut policy = Policy::clone(&mk_policy("a", 2));
    policy.content.settings_json = (*b"{\"token\":\"hunter2\"}").into();
    policy.content.settings_salt = (*b"pepper").into();
    policy.content_digest = policy.content.digest();
    let digest = policy.content_digest.to_string();
    plane.publish(mk_set(&[Arc::new(policy), mk_policy("b", 2)]));
    plane.hub.set_synced();
    let mut client = plane.client().await;
    for (token, withheld) in [("member", false), ("follower", true)] {
        let requests = with_token(tokio_stream::once(first("r-0")), token);
        let mut stream = client.delta_policies(requests).await.unwrap().into_inner();
        let response = stream.message().await.unwrap().unwrap();
        assert_policies(&response.policies, &digest, withheld);
    }
    let request = with_token(v1::PolicyDiscoveryRequest::default(), "member");
    let fetched = client.fetch_policies(request).await.unwrap().into_inner();
    assert_policies(&fetched.policies, &digest, true);
}

#[track_caller]
fn assert_policies(policies: &[v1::Policy], digest: &str, withheld: bool) {
    let [a, b] = policies else {
        panic!("two policies must be sent: {policies:?}");
    };
    assert_eq!(a.content_digest, digest, "the version stays the same");
    assert_eq!(a.settings_withheld, withheld);
    assert_eq!(a.settings_json.is_empty(), withheld);
    assert_eq!(a.settings_salt.is_empty(), withheld);
    assert!(!b.settings_withheld && !b.settings_json.is_empty());
}

#[tokio::test]
async fn stream_of_a_revoked_replica_ends() {
    let plane = Plane::synced(&["a"]).await;
    let mut revoked = plane.delta(first("web.shop")).await;
    let mut kept = plane.delta(first("web.blog")).await;
    revoked.take().await;
    kept.take().await;
    let is_revoked = |server: &str, replica: &str| server == "default" && replica == "web.shop";
    plane.hub.revoke_streams(is_revoked, "no longer allowed");
    let status = revoked.end().await;
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "no longer allowed");
    plane.publish(mk_snapshot(&["b"]));
    kept.take().await;
}

#[tokio::test]
async fn other_calls_need_a_token_too() {
    let (plane, _dir) = guarded().await;
    let mut client = plane.client().await;
    let fetch = v1::PolicyDiscoveryRequest::default();
    let status = client.fetch_policies(fetch.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(
        client
            .fetch_policies(with_token(fetch, "anyone"))
            .await
            .is_ok()
    );
    let check = v1::HealthCheckRequest {
        id: "r-1".into(),
        ..Default::default()
    };
    let status = client.health_check(check.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = client
        .health_check(with_token(check, "bound"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn health_is_open_and_follows_the_hub() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let (plane, _dir) = guarded().await;
    let mut client = HealthClient::new(plane.channel().await);
    let request = HealthCheckRequest {
        service: "assent.discovery.v1.PolicyDiscoveryService".into(),
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    const SERVING: i32 = 1;
    while watch.message().await.unwrap().unwrap().status != SERVING {}
    plane
        .hub
        .set_serving(assent_grpc::Serving::Standby { leader: None });
    while watch.message().await.unwrap().unwrap().status == SERVING {}
}

/// Connects, trusting `ca` for the name that the endpoint's certificate has.
async fn secure(plane: &Plane, ca: &SelfSignedCa) -> Result<Channel, transport::Error> {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca.certificate_pem()))
        .domain_name("discovery.test");
    let url = plane.url.replace("http:", "https:");
    Endpoint::new(url)
        .unwrap()
        .tls_config(tls)
        .unwrap()
        .connect()
        .await
}

#[tokio::test]
async fn a_certificate_is_replaced_while_serving() {
    let names = ["discovery.test".to_owned()];
    let old = SelfSignedCa::in_memory(Vec::new()).unwrap();
    let new = SelfSignedCa::in_memory(Vec::new()).unwrap();
    let (signed, key) = old.issue_pair(&names, None).unwrap();
    let tls = Tls::from_pem(signed.chain_pem.as_bytes(), key.as_bytes()).unwrap();
    let plane = Plane::start_tls(Config::default(), Arc::new(Open), Some(tls.clone())).await;
    plane.publish(mk_snapshot(&["a"]));
    let mut client = PolicyDiscoveryServiceClient::new(secure(&plane, &old).await.unwrap());
    let mut stream = Delta::open(&mut client, first("r-0")).await;
    stream.take().await;
    assert!(secure(&plane, &new).await.is_err());

    let (signed, key) = new.issue_pair(&names, None).unwrap();
    tls.replace_pem(signed.chain_pem.as_bytes(), key.as_bytes())
        .unwrap();
    assert!(secure(&plane, &new).await.is_ok());
    // A connection that stands is not disturbed.
    plane.publish(mk_snapshot(&["b"]));
    assert_eq!(stream.take().await.policies.len(), 1);
}

#[tokio::test]
async fn certificates_are_signed_for_known_replicas_only() {
    let (plane, _dir) = guarded().await;
    let mut client = CertificateServiceClient::new(plane.channel().await);
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let request = |id: &str| v1::SignCertificateRequest {
        id: id.into(),
        csr_der: csr.der().to_vec(),
        ..Default::default()
    };
    let status = client.sign_certificate(request("r-0")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let other = with_token(request("r-1"), "bound");
    let status = client.sign_certificate(other).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let own = with_token(request("r-0"), "bound");
    let signed = client.sign_certificate(own).await.unwrap().into_inner();
    assert!(
        signed
            .certificate_chain_pem
            .starts_with("-----BEGIN CERTIFICATE-----")
    );
    assert!(signed.renew_at.unwrap().seconds < signed.not_after.unwrap().seconds);
    let mut nonsense = request("r-0");
    nonsense.csr_der = b"nonsense".to_vec();
    let status = client
        .sign_certificate(with_token(nonsense, "bound"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn newer_leadership_that_a_replica_has_seen_is_reported() {
    let (plane, _dir) = guarded().await;
    let mut seen = plane.hub.seen_transitions();
    let with_term = |id: &str, lease_transitions| {
        let mut message = first(id);
        message.node.as_mut().unwrap().lease_transitions = lease_transitions;
        message
    };
    // What everybody has seen is no news, and who is no replica is not believed.
    for (id, token, term) in [("r-0", "bound", 3), ("r-1", "anyone", 40)] {
        let requests = with_token(tokio_stream::once(with_term(id, term)), token);
        let stream = plane.client().await.delta_policies(requests).await;
        stream.unwrap().into_inner().message().await.unwrap();
    }
    assert!(!seen.has_changed().unwrap());
    for (term, highest) in [(40, 40), (30, 40), (50, 50)] {
        let requests = with_token(tokio_stream::once(with_term("r-0", term)), "bound");
        let stream = plane.client().await.delta_policies(requests).await;
        stream.unwrap().into_inner().message().await.unwrap();
        assert_eq!(*seen.borrow_and_update(), highest);
    }
}
