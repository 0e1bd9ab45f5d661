//! R3, R4, R15, R16 (control plane), R32: resuming from what a client holds.

use std::collections::HashMap;

use assent_e2e::{
    Delta, Options, Sotw, Up, Workspace,
    client::{first, first_sotw, node},
};
use assent_proto::v1::{self, DeltaPolicyDiscoveryRequest, ReplicaState, RouteState};

#[tokio::test]
async fn r03_current_version_is_confirmed_without_resources() {
    let workspace = Workspace::with_policy("r03a").await;
    let held = workspace.settled("a").await.held().clone();
    let mut stream = Delta::resume(workspace.channel().await, workspace.node("a"), &held).await;
    let response = stream.next().await;
    assert!(response.no_change, "{response:?}");
    assert_eq!(response.version_info, held.version());
    stream.ack(&response).await;
    let current = |r: &v1::ReplicaStatus| r.state() == ReplicaState::Current;
    workspace.replica("a", current).await;
    stream.silent().await;
}

#[tokio::test]
async fn r03_version_alone_proves_being_current() {
    let workspace = Workspace::with_policy("r03b").await;
    let held = workspace.settled("a").await.held().clone();
    let request = DeltaPolicyDiscoveryRequest {
        version_info: held.version(),
        ..first(workspace.node("a"))
    };
    let mut stream = Delta::open(workspace.channel().await, request)
        .await
        .unwrap();
    assert!(stream.next().await.no_change);
}

#[tokio::test]
async fn r03_current_state_of_the_world_client_gets_no_response() {
    let workspace = Workspace::with_policy("r03c").await;
    let held = workspace.settled("a").await.held().clone();
    let request = v1::PolicyDiscoveryRequest {
        version_info: held.version(),
        ..first_sotw(workspace.node("b"))
    };
    let mut stream = Sotw::open(workspace.channel().await, request)
        .await
        .unwrap();
    let replica = workspace
        .replica("b", |r| r.state() == ReplicaState::Current)
        .await;
    assert_eq!(replica.version_acked, held.version());
    stream.silent().await;
    // The stream is open for the next change.
    workspace.apply("a", "{n: 2}").await;
    assert_eq!(stream.next().await.policies.len(), 2);
}

#[tokio::test]
async fn r03_old_version_gets_the_difference() {
    let workspace = Workspace::with_policy("r03d").await;
    let mut stream = workspace.settled("a").await;
    let old = stream.held().clone();
    workspace.apply("b", "{}").await;
    stream.follow_active(&workspace.key("b"), 1).await;
    drop(stream);
    let mut stream = Delta::resume(workspace.channel().await, workspace.node("a"), &old).await;
    let response = stream.next().await;
    let sent: Vec<_> = response
        .policies
        .iter()
        .map(|p| p.policy.as_str())
        .collect();
    assert_eq!(sent, [workspace.key("b")]);
    assert_eq!(response.routes.len(), 2);
}

#[tokio::test]
async fn r03_unknown_version_gets_everything() {
    let workspace = Workspace::with_policy("r03e").await;
    for version in ["0".repeat(64), "not a version".to_owned()] {
        let request = DeltaPolicyDiscoveryRequest {
            version_info: version.clone(),
            ..first(workspace.node("a"))
        };
        let mut stream = Delta::open(workspace.channel().await, request)
            .await
            .unwrap();
        assert_eq!(stream.next().await.policies.len(), 1);
        let request = v1::PolicyDiscoveryRequest {
            version_info: version,
            ..first_sotw(workspace.node("b"))
        };
        let mut stream = Sotw::open(workspace.channel().await, request)
            .await
            .unwrap();
        assert_eq!(stream.next().await.policies.len(), 1);
    }
}

#[tokio::test]
async fn r03_held_revisions_win_over_the_version() {
    let workspace = Workspace::with_policy("r03f").await;
    let held = workspace.settled("a").await.held().clone();
    let revision = held.revisions.keys().next().unwrap().clone();
    // It claims the current version, and content that is not that version's.
    let claim = |digest: &str| DeltaPolicyDiscoveryRequest {
        version_info: held.version(),
        initial_revisions: HashMap::from([(revision.clone(), digest.to_owned())]),
        ..first(workspace.node("a"))
    };
    let other = format!("sha256:{}", "1".repeat(64));
    for digest in [other.as_str(), "nonsense", ""] {
        let mut stream = Delta::open(workspace.channel().await, claim(digest))
            .await
            .unwrap();
        let response = stream.next().await;
        assert!(!response.no_change);
        assert_eq!(response.policies.len(), 1, "{digest}");
    }
    let right = held.revisions[&revision].clone();
    let mut stream = Delta::open(workspace.channel().await, claim(&right))
        .await
        .unwrap();
    assert!(stream.next().await.no_change);
}

#[tokio::test]
async fn r04_missing_revisions_are_removed_and_routes_are_complete() {
    let workspace = Workspace::with_policy("r04").await;
    let mut held = workspace.settled("a").await.held().clone();
    let digest = format!("sha256:{}", "2".repeat(64));
    held.revisions
        .insert("cluster/gone/7-0badc0de".into(), digest);
    let request = DeltaPolicyDiscoveryRequest {
        initial_revisions: held.revisions.clone().into_iter().collect(),
        ..first(workspace.node("a"))
    };
    let mut stream = Delta::open(workspace.channel().await, request.clone())
        .await
        .unwrap();
    let response = stream.next().await;
    assert_eq!(response.removed_revisions, ["cluster/gone/7-0badc0de"]);
    assert!(response.policies.is_empty());
    assert_eq!(response.routes.len(), 1, "the table is replaced");
    // Nothing of the stream was taken yet: the next response has a complete table again.
    stream.nack(&response, "not this one").await;
    workspace.apply("b", "{}").await;
    let response = stream.next().await;
    assert_eq!(response.removed_revisions, ["cluster/gone/7-0badc0de"]);
    assert_eq!((response.policies.len(), response.routes.len()), (1, 2));
    // From the first that is taken on, only what changed is sent.
    stream.ack(&response).await;
    let response = stream.next().await;
    assert_eq!((response.policies.len(), response.routes.len()), (0, 1));
    assert_eq!(response.routes[0].state(), RouteState::Active);
}

#[tokio::test]
async fn r15_returning_to_a_held_set_sends_no_resources() {
    let workspace = Workspace::with_policy("r15").await;
    let mut stream = workspace.settled("a").await;
    let before = stream.held().version();
    workspace.apply("b", "{}").await;
    let response = stream.next().await;
    assert_eq!(response.policies.len(), 1);
    stream.nack(&response, "not this one").await;
    workspace.delete("b");
    let response = stream.next().await;
    assert!(response.no_change, "{response:?}");
    assert_eq!(response.version_info, before);
    stream.ack(&response).await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Current)
        .await;
}

#[tokio::test]
async fn r16_rejected_revision_is_offered_again_after_reconnect() {
    let workspace = Workspace::with_policy("r16").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    let revision = response.policies[0].revision.clone();
    stream.reject(&response, &[&revision]).await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    drop(stream);
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    assert_eq!(response.policies[0].revision, revision);
    stream.ack(&response).await;
    stream.follow_active(&workspace.key("a"), 1).await;
}

#[tokio::test]
async fn r32_restart_keeps_the_version_and_sends_no_resources() {
    let mut up = Up::start(Options::default().policy("p").policy("q")).await;
    let mut stream = Delta::connect(up.channel().await, node("a")).await;
    stream.follow_active("cluster/p", 1).await;
    let both = |held: &assent_e2e::hash::Held| {
        held.routes.len() == 2
            && held
                .routes
                .values()
                .all(|r| r.state() == RouteState::Active)
    };
    if !both(stream.held()) {
        stream.follow(both).await;
    }
    let held = stream.held().clone();
    for kill in [true, false] {
        match kill {
            true => up.process.kill(),
            false => assert!(up.process.terminate().success()),
        }
        up.restart().await;
        let mut stream = Delta::resume(up.channel().await, node("a"), &held).await;
        let response = stream.next().await;
        assert!(response.no_change, "{response:?}");
        assert_eq!(response.version_info, held.version());
        stream.ack(&response).await;
        stream.silent().await;
    }
}
