//! R12, R13: what is sent after a NACK.

use assent_e2e::{Workspace, client::is};
use assent_proto::v1::{ReplicaState, RouteState};

#[tokio::test]
async fn r12_rejected_version_is_not_resent_on_its_stream() {
    let workspace = Workspace::with_policy("r12").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    stream.nack(&response, "no").await;
    stream.nack(&response, "no, really").await;
    stream.silent().await;
    // Another stream is another matter.
    drop(stream);
    let mut stream = workspace.connect("a").await;
    assert_eq!(stream.next().await.version_info, response.version_info);
}

#[tokio::test]
async fn r13_delta_after_nack_with_entries_is_against_that_version() {
    let workspace = Workspace::with_policy("r13a").await;
    let mut stream = workspace.settled("a").await;
    workspace.apply("b", "{}").await;
    let refused = stream.next().await;
    let revision = refused.policies[0].revision.clone();
    stream.reject(&refused, &[&revision]).await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    workspace.apply("c", "{}").await;
    // Only the news; what was refused and is still wanted is not sent again.
    let response = stream.next().await;
    let sent: Vec<_> = response.policies.iter().map(|p| p.policy.clone()).collect();
    assert_eq!(sent, [workspace.key("c")]);
    assert_eq!(response.routes.len(), 1);
    stream.reject(&response, &[&revision]).await;
    let flip = stream.next().await;
    assert!(
        is(stream.held(), &workspace.key("c"), 1, RouteState::Active),
        "one bad policy holds nothing up"
    );
    assert!(is(
        stream.held(),
        &workspace.key("b"),
        1,
        RouteState::Candidate
    ));
    // An answer without entries means that the revision was loaded after all.
    stream.ack(&flip).await;
    stream.next().await;
    assert!(is(
        stream.held(),
        &workspace.key("b"),
        1,
        RouteState::Active
    ));
}

#[tokio::test]
async fn r13_delta_after_nack_without_entries_is_against_the_previous_version() {
    let workspace = Workspace::with_policy("r13b").await;
    let mut stream = workspace.settled("a").await;
    workspace.apply("b", "{}").await;
    let refused = stream.next().await;
    stream.nack(&refused, "its version is wrong").await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    workspace.apply("c", "{}").await;
    let response = stream.next().await;
    let mut sent: Vec<_> = response.policies.iter().map(|p| p.policy.clone()).collect();
    sent.sort();
    assert_eq!(sent, [workspace.key("b"), workspace.key("c")]);
}

#[tokio::test]
async fn r13_entries_of_other_versions_are_ignored() {
    let workspace = Workspace::with_policy("r13c").await;
    let mut stream = workspace.settled("a").await;
    workspace.apply("b", "{}").await;
    let refused = stream.next().await;
    // The client's own idea of what it took follows the same rule.
    stream
        .reject(&refused, &["cluster/nobody/1-00000000"])
        .await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    assert_ne!(replica.version_acked, refused.version_info);
    workspace.apply("b", "{n: 2}").await;
    let status = workspace.up.replicas(&workspace.server).await;
    let applied = status
        .policies
        .iter()
        .find(|p| p.policy == workspace.key("b"))
        .unwrap();
    assert_eq!(applied.applied, 0);
}

#[tokio::test]
async fn r13_change_after_nack_is_sent_at_once() {
    let workspace = Workspace::with_policy("r13d").await;
    let mut stream = workspace.connect("a").await;
    let first = stream.next().await;
    workspace.apply("a", "{n: 2}").await;
    // It waited for the answer, whatever that is.
    stream.nack(&first, "no").await;
    let next = stream.next().await;
    assert_ne!(next.version_info, first.version_info);
    assert!(next.policies.iter().any(|p| p.generation == 2));
    stream.ack(&next).await;
    stream.follow_active(&workspace.key("a"), 2).await;
}
