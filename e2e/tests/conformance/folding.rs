//! R37, R38: from answers to enforcement.

use assent_e2e::{Options, Up, Workspace, client::is, up::condition};
use assent_proto::v1::{ReplicaState, RouteState};
use std::sync::Arc;

#[tokio::test]
async fn r37_nothing_flips_without_replicas() {
    let workspace = Workspace::with_policy("r37a").await;
    let name = workspace.name("a");
    let what = "not programmed for want of replicas";
    let object = workspace
        .up
        .wait(&name, what, |p| {
            condition(p, "Programmed")["reason"] == "NoReplicas"
        })
        .await;
    assert_eq!(condition(&object, "Enforced")["status"], "False");
    let set = workspace.up.fetch("r37a").await.unwrap();
    assert_eq!(set.routes[0].state(), RouteState::Candidate);
}

#[tokio::test]
async fn r37_disconnected_replica_blocks_only_during_grace() {
    let options = Options::default().args(&["--replica-grace", "4", "--drain-seconds", "2"]);
    let workspace = Workspace::on(Arc::new(Up::start(options).await), "r37b").await;
    workspace.apply("a", "{}").await;
    let mut stays = workspace.connect("stays").await;
    let response = stays.next().await;
    let mut leaves = workspace.connect("leaves").await;
    leaves.next().await;
    drop(leaves);
    workspace
        .replica("leaves", |r| r.state() == ReplicaState::Disconnected)
        .await;
    stays.ack(&response).await;
    // It has not answered for the candidate, and it may be back any moment.
    stays.silent().await;
    let status = workspace.up.replicas("r37b").await;
    let policy = &status.policies[0];
    assert_eq!(
        (policy.wanted, policy.applied, policy.disconnected),
        (2, 1, 1)
    );
    // After its grace it no longer counts.
    stays.follow_active(&workspace.key("a"), 1).await;
    let object = workspace.up.wait_enforced(&workspace.name("a"), 1).await;
    assert_eq!(object["status"]["rollout"]["desired"], 1, "{object:#}");
}

#[tokio::test]
async fn r37_reconnects_and_new_replicas_do_not_undo_enforced() {
    let workspace = Workspace::with_policy("r37c").await;
    let stream = workspace.settled("a").await;
    let held = stream.held().clone();
    workspace.up.wait_enforced(&workspace.name("a"), 1).await;
    drop(stream);
    workspace
        .replica("a", |r| r.state() == ReplicaState::Disconnected)
        .await;
    let object = workspace.up.policy(&workspace.name("a")).await.unwrap();
    assert_eq!(
        condition(&object, "Enforced")["status"],
        "True",
        "within the grace"
    );
    let mut again =
        assent_e2e::Delta::resume(workspace.channel().await, workspace.node("a"), &held).await;
    again.next().await;
    let mut newcomer = workspace.connect("b").await;
    newcomer.next().await;
    workspace
        .replica("b", |r| r.state() == ReplicaState::Behind)
        .await;
    let object = workspace.up.policy(&workspace.name("a")).await.unwrap();
    assert_eq!(
        condition(&object, "Enforced")["status"],
        "True",
        "{object:#}"
    );
}

#[tokio::test]
async fn r38_route_flips_when_every_replica_acknowledged_the_revision() {
    let workspace = Workspace::with_policy("r38a").await;
    let mut a = workspace.connect("a").await;
    let mut b = workspace.connect("b").await;
    let (for_a, for_b) = (a.next().await, b.next().await);
    a.ack(&for_a).await;
    a.silent().await;
    let object = workspace.up.policy(&workspace.name("a")).await.unwrap();
    assert_eq!(object["status"]["rollout"]["applied"], 1, "{object:#}");
    assert_eq!(condition(&object, "Programmed")["status"], "False");
    b.ack(&for_b).await;
    for stream in [&mut a, &mut b] {
        stream.follow_active(&workspace.key("a"), 1).await;
    }
    workspace.up.wait_enforced(&workspace.name("a"), 1).await;
}

#[tokio::test]
async fn r38_single_nack_keeps_the_active_revision() {
    let workspace = Workspace::with_policy("r38b").await;
    let mut a = workspace.settled("a").await;
    let mut b = workspace.settled("b").await;
    workspace.apply("a", "{n: 2}").await;
    let (for_a, for_b) = (a.next().await, b.next().await);
    let revision = for_b.policies[0].revision.clone();
    a.ack(&for_a).await;
    b.reject(&for_b, &[&revision]).await;
    let name = workspace.name("a");
    let object = workspace
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
    assert!(is(a.held(), &workspace.key("a"), 1, RouteState::Active));
    // Once it loads, the answer to the same nonce lets the route flip.
    b.ack(&for_b).await;
    a.follow_active(&workspace.key("a"), 2).await;
    b.follow_active(&workspace.key("a"), 2).await;
    assert!(
        is(a.held(), &workspace.key("a"), 1, RouteState::Retired),
        "the old path drains"
    );
}
