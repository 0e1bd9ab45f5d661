//! R37, R38: from answers to what is true of a policy.

use assent_e2e::{Ground, Options, Up, client::is, up::condition};
use assent_proto::v1::{ReplicaState, RouteState};
use std::sync::Arc;

#[tokio::test]
async fn r37_without_a_replica_nothing_flips() {
    let ground = Ground::with_policy("r37a").await;
    let name = ground.name("a");
    let what = "not programmed for want of replicas";
    let object = ground
        .up
        .wait(&name, what, |p| {
            condition(p, "Programmed")["reason"] == "NoReplicas"
        })
        .await;
    assert_eq!(condition(&object, "Enforced")["status"], "False");
    let set = ground.up.fetch("r37a").await.unwrap();
    assert_eq!(set.routes[0].state(), RouteState::Candidate);
}

#[tokio::test]
async fn r37_a_replica_that_left_blocks_within_its_grace_and_not_after() {
    let options = Options::default().args(&["--replica-grace", "4", "--drain-seconds", "2"]);
    let ground = Ground::on(Arc::new(Up::start(options).await), "r37b").await;
    ground.apply("a", "{}").await;
    let mut stays = ground.connect("stays").await;
    let response = stays.next().await;
    let mut leaves = ground.connect("leaves").await;
    leaves.next().await;
    drop(leaves);
    ground
        .replica("leaves", |r| r.state() == ReplicaState::Disconnected)
        .await;
    stays.ack(&response).await;
    // It has not answered for the candidate, and it may be back any moment.
    stays.silent().await;
    let status = ground.up.replicas("r37b").await;
    let policy = &status.policies[0];
    assert_eq!(
        (policy.wanted, policy.applied, policy.disconnected),
        (2, 1, 1)
    );
    // After its grace it no longer counts.
    stays.follow_active(&ground.key("a"), 1).await;
    let object = ground.up.wait_enforced(&ground.name("a"), 1).await;
    assert_eq!(object["status"]["rollout"]["desired"], 1, "{object:#}");
}

#[tokio::test]
async fn r37_a_reconnect_and_a_newcomer_do_not_undo_enforced() {
    let ground = Ground::with_policy("r37c").await;
    let stream = ground.settled("a").await;
    let held = stream.held().clone();
    ground.up.wait_enforced(&ground.name("a"), 1).await;
    drop(stream);
    ground
        .replica("a", |r| r.state() == ReplicaState::Disconnected)
        .await;
    let object = ground.up.policy(&ground.name("a")).await.unwrap();
    assert_eq!(
        condition(&object, "Enforced")["status"],
        "True",
        "within the grace"
    );
    let mut again =
        assent_e2e::Delta::resume(ground.channel().await, ground.node("a"), &held).await;
    again.next().await;
    let mut newcomer = ground.connect("b").await;
    newcomer.next().await;
    ground
        .replica("b", |r| r.state() == ReplicaState::Behind)
        .await;
    let object = ground.up.policy(&ground.name("a")).await.unwrap();
    assert_eq!(
        condition(&object, "Enforced")["status"],
        "True",
        "{object:#}"
    );
}

#[tokio::test]
async fn r38_a_route_flips_when_every_replica_has_acknowledged_that_revision() {
    let ground = Ground::with_policy("r38a").await;
    let mut a = ground.connect("a").await;
    let mut b = ground.connect("b").await;
    let (for_a, for_b) = (a.next().await, b.next().await);
    a.ack(&for_a).await;
    a.silent().await;
    let object = ground.up.policy(&ground.name("a")).await.unwrap();
    assert_eq!(object["status"]["rollout"]["applied"], 1, "{object:#}");
    assert_eq!(condition(&object, "Programmed")["status"], "False");
    b.ack(&for_b).await;
    for stream in [&mut a, &mut b] {
        stream.follow_active(&ground.key("a"), 1).await;
    }
    ground.up.wait_enforced(&ground.name("a"), 1).await;
}

#[tokio::test]
async fn r38_one_nack_keeps_the_active_revision() {
    let ground = Ground::with_policy("r38b").await;
    let mut a = ground.settled("a").await;
    let mut b = ground.settled("b").await;
    ground.apply("a", "{n: 2}").await;
    let (for_a, for_b) = (a.next().await, b.next().await);
    let revision = for_b.policies[0].revision.clone();
    a.ack(&for_a).await;
    b.reject(&for_b, &[&revision]).await;
    let name = ground.name("a");
    let object = ground
        .up
        .wait(&name, "rejected by one", |p| {
            p["status"]["rollout"]["rejected"] == 1
        })
        .await;
    assert_eq!(object["status"]["active"]["generation"], 1);
    assert_eq!(object["status"]["pending"]["generation"], 2);
    let row = object["status"]["replicas"].as_array().unwrap();
    let row = row.iter().find(|r| r["name"] == "b").unwrap();
    assert!(
        row["conditions"][0]["message"]
            .as_str()
            .unwrap()
            .contains("no such setting"),
        "{row:#}"
    );
    assert_eq!(
        condition(&object, "Ready")["reason"],
        "LastGood",
        "{object:#}"
    );
    a.silent().await;
    assert!(is(a.held(), &ground.key("a"), 1, RouteState::Active));
    // Once it loads, the answer to the same nonce lets the route flip.
    b.ack(&for_b).await;
    a.follow_active(&ground.key("a"), 2).await;
    b.follow_active(&ground.key("a"), 2).await;
    assert!(
        is(a.held(), &ground.key("a"), 1, RouteState::Retired),
        "the old path drains"
    );
}
