//! R12, R13: what follows a refusal.

use assent_e2e::{Ground, client::is};
use assent_proto::v1::{ReplicaState, RouteState};

#[tokio::test]
async fn r12_a_refused_version_is_not_sent_again_on_its_stream() {
    let ground = Ground::with_policy("r12").await;
    let mut stream = ground.connect("a").await;
    let response = stream.next().await;
    stream.nack(&response, "no").await;
    stream.nack(&response, "no, really").await;
    stream.silent().await;
    // Another stream is another matter.
    drop(stream);
    let mut stream = ground.connect("a").await;
    assert_eq!(stream.next().await.version_info, response.version_info);
}

#[tokio::test]
async fn r13_after_a_nack_that_names_revisions_the_next_is_a_delta_against_that_version() {
    let ground = Ground::with_policy("r13a").await;
    let mut stream = ground.settled("a").await;
    ground.apply("b", "{}").await;
    let refused = stream.next().await;
    let revision = refused.policies[0].revision.clone();
    stream.reject(&refused, &[&revision]).await;
    ground
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    ground.apply("c", "{}").await;
    // Only the news; what was refused and is still wanted is not sent again.
    let response = stream.next().await;
    let sent: Vec<_> = response.policies.iter().map(|p| p.policy.clone()).collect();
    assert_eq!(sent, [ground.key("c")]);
    assert_eq!(response.routes.len(), 1);
    stream.reject(&response, &[&revision]).await;
    let flip = stream.next().await;
    assert!(
        is(stream.held(), &ground.key("c"), 1, RouteState::Active),
        "one bad policy holds nothing up"
    );
    assert!(is(
        stream.held(),
        &ground.key("b"),
        1,
        RouteState::Candidate
    ));
    // The answer that lists nothing any more says that it was loaded after all.
    stream.ack(&flip).await;
    stream.next().await;
    assert!(is(stream.held(), &ground.key("b"), 1, RouteState::Active));
}

#[tokio::test]
async fn r13_after_a_nack_without_entries_the_next_is_a_delta_against_the_one_before() {
    let ground = Ground::with_policy("r13b").await;
    let mut stream = ground.settled("a").await;
    ground.apply("b", "{}").await;
    let refused = stream.next().await;
    stream.nack(&refused, "its version is wrong").await;
    ground
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    ground.apply("c", "{}").await;
    let response = stream.next().await;
    let mut sent: Vec<_> = response.policies.iter().map(|p| p.policy.clone()).collect();
    sent.sort();
    assert_eq!(sent, [ground.key("b"), ground.key("c")]);
}

#[tokio::test]
async fn r13_entries_that_are_not_of_the_version_are_no_entries() {
    let ground = Ground::with_policy("r13c").await;
    let mut stream = ground.settled("a").await;
    ground.apply("b", "{}").await;
    let refused = stream.next().await;
    // The client's own idea of what it took follows the same rule.
    stream
        .reject(&refused, &["cluster/nobody/1-00000000"])
        .await;
    let replica = ground
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    assert_ne!(replica.version_acked, refused.version_info);
    ground.apply("b", "{n: 2}").await;
    let status = ground.up.replicas(&ground.server).await;
    let applied = status
        .policies
        .iter()
        .find(|p| p.policy == ground.key("b"))
        .unwrap();
    assert_eq!(applied.applied, 0);
}

#[tokio::test]
async fn r13_what_follows_a_nack_goes_out_at_once() {
    let ground = Ground::with_policy("r13d").await;
    let mut stream = ground.connect("a").await;
    let first = stream.next().await;
    ground.apply("a", "{n: 2}").await;
    // It waited for the answer, whatever that is.
    stream.nack(&first, "no").await;
    let next = stream.next().await;
    assert_ne!(next.version_info, first.version_info);
    assert!(next.policies.iter().any(|p| p.generation == 2));
    stream.ack(&next).await;
    stream.follow_active(&ground.key("a"), 2).await;
}
