//! R7, R8, R10, R11, R17, R18: how answers are interpreted.

use assent_e2e::{Sotw, Workspace, client::failure, client::first_sotw};
use assent_proto::v1::{self, DeltaPolicyDiscoveryRequest, ReplicaState, RouteState};

fn answer(response: &v1::DeltaPolicyDiscoveryResponse) -> DeltaPolicyDiscoveryRequest {
    DeltaPolicyDiscoveryRequest {
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaPolicyDiscoveryRequest::default()
    }
}

#[tokio::test]
async fn r07_error_is_a_nack_even_with_the_newest_version() {
    let workspace = Workspace::with_policy("r07a").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    stream
        .send(DeltaPolicyDiscoveryRequest {
            error_detail: Some(failure("it does not load")),
            ..answer(&response)
        })
        .await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    assert_eq!(replica.version_rejected, response.version_info);
    assert_eq!(replica.version_acked, "");
    // Not resent, and not flipped.
    stream.silent().await;
    let set = workspace.up.fetch(&workspace.server).await.unwrap();
    assert_eq!(set.routes[0].state(), RouteState::Candidate);
}

#[tokio::test]
async fn r07_empty_error_is_a_nack() {
    let workspace = Workspace::with_policy("r07b").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    stream
        .send(DeltaPolicyDiscoveryRequest {
            error_detail: Some(Default::default()),
            ..answer(&response)
        })
        .await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
}

#[tokio::test]
async fn r07_error_is_a_nack_on_state_of_the_world_streams() {
    let workspace = Workspace::with_policy("r07c").await;
    let mut stream = Sotw::open(workspace.channel().await, first_sotw(workspace.node("a")))
        .await
        .unwrap();
    let response = stream.next().await;
    stream.nack(&response, "it does not load").await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    assert_eq!(replica.version_rejected, response.version_info);
    stream.silent().await;
    // The next set goes out at once, and is whole again; what was refused has left it.
    workspace.apply("a", "{n: 2}").await;
    loop {
        let response = stream.next().await;
        stream.ack(&response).await;
        let newest = |p: &v1::Policy| p.generation == 2;
        if response.policies.iter().all(newest) && response.routes[0].state() == RouteState::Active
        {
            return;
        }
    }
}

#[tokio::test]
async fn r08_answer_to_superseded_nonce_changes_nothing() {
    let workspace = Workspace::with_policy("r08a").await;
    let mut stream = workspace.connect("a").await;
    let old = stream.next().await;
    stream.ack(&old).await;
    let new = stream.next().await;
    stream.ack(&new).await;
    let acked = |r: &v1::ReplicaStatus| r.version_acked == new.version_info;
    workspace.replica("a", acked).await;
    let before = workspace
        .up
        .metric("assent_discovery_stale_nonces_total")
        .await;
    stream.send(answer(&old)).await;
    stream
        .send(DeltaPolicyDiscoveryRequest {
            error_detail: Some(failure("too late")),
            ..answer(&old)
        })
        .await;
    stream.silent().await;
    let replica = workspace.replica("a", |_| true).await;
    assert!(acked(&replica), "{replica:?}");
    assert_eq!(replica.state(), ReplicaState::Current);
    assert_eq!(replica.protocol_errors, 0);
    let after = workspace
        .up
        .metric("assent_discovery_stale_nonces_total")
        .await;
    assert!(after >= before + 2.0, "{before} {after}");
}

#[tokio::test]
async fn r08_last_answer_to_newest_nonce_wins() {
    let workspace = Workspace::with_policy("r08b").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    let revision = response.policies[0].revision.clone();
    stream.reject(&response, &[&revision]).await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    // It recovered: the same nonce is answered again, and the flip follows.
    stream.ack(&response).await;
    let flip = stream.next().await;
    assert_eq!(flip.routes[0].state(), RouteState::Active);
}

#[tokio::test]
async fn r10_unknown_nonce_is_a_protocol_error() {
    let workspace = Workspace::with_policy("r10a").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    let mut other = workspace.connect("b").await;
    let foreign = other.next().await;
    for nonce in ["invented", foreign.nonce.as_str()] {
        let request = DeltaPolicyDiscoveryRequest {
            response_nonce: nonce.into(),
            ..answer(&response)
        };
        stream.send(request).await;
    }
    let replica = workspace.replica("a", |r| r.protocol_errors == 2).await;
    assert_eq!(replica.outstanding_nonce, response.nonce);
    assert_eq!(replica.version_acked, "");
    stream.silent().await;
}

#[tokio::test]
async fn r10_ack_of_another_version_is_a_protocol_error() {
    let workspace = Workspace::with_policy("r10b").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    stream
        .send(DeltaPolicyDiscoveryRequest {
            version_info: "0".repeat(64),
            ..answer(&response)
        })
        .await;
    let replica = workspace.replica("a", |r| r.protocol_errors == 1).await;
    assert_eq!(
        replica.outstanding_nonce, response.nonce,
        "it stays outstanding"
    );
    stream.ack(&response).await;
    assert_eq!(stream.next().await.routes[0].state(), RouteState::Active);
}

#[tokio::test]
async fn r10_ack_may_omit_the_version() {
    let workspace = Workspace::with_policy("r10c").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    stream
        .send(DeltaPolicyDiscoveryRequest {
            version_info: String::new(),
            ..answer(&response)
        })
        .await;
    workspace
        .replica("a", |r| r.version_acked == response.version_info)
        .await;
}

#[tokio::test]
async fn r11_duplicate_ack_is_idempotent() {
    let workspace = Workspace::with_policy("r11").await;
    let mut stream = workspace.settled("a").await;
    workspace.apply("a", "{n: 2}").await;
    let response = stream.next().await;
    for _ in 0..5 {
        stream.ack(&response).await;
    }
    let flip = stream.next().await;
    for _ in 0..5 {
        stream.ack(&flip).await;
    }
    let acked = |r: &v1::ReplicaStatus| r.version_acked == flip.version_info;
    assert_eq!(workspace.replica("a", acked).await.protocol_errors, 0);
}

#[tokio::test]
async fn r17_late_nack_reverts_the_acknowledgement() {
    let workspace = Workspace::with_policy("r17").await;
    let mut stream = workspace.settled("a").await;
    let before = stream.held().version();
    workspace.apply("b", "{}").await;
    let candidate = stream.next().await;
    stream.ack(&candidate).await;
    let newest = stream.next().await;
    stream.ack(&newest).await;
    workspace
        .replica("a", |r| r.version_acked == newest.version_info)
        .await;
    let revision = candidate.policies[0].revision.clone();
    stream.reject(&newest, &[&revision]).await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    assert_eq!(replica.version_acked, candidate.version_info);
    assert_ne!(replica.version_acked, before);
    assert_eq!(replica.rejected[0].revision, revision);
    stream.silent().await;
}

#[tokio::test]
async fn r18_missing_answer_is_neither_success_nor_failure() {
    let workspace = Workspace::with_policy("r18").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Behind)
        .await;
    assert_eq!(replica.version_sent, response.version_info);
    assert_eq!(replica.outstanding_nonce, response.nonce);
    assert!(replica.version_acked.is_empty() && replica.version_rejected.is_empty());
    stream.silent().await;
    let status = workspace.up.replicas(&workspace.server).await;
    let policy = &status.policies[0];
    let counts = (
        policy.wanted,
        policy.applied,
        policy.rejected,
        policy.behind,
    );
    assert_eq!(counts, (1, 0, 0, 1));
}
