//! The first start: nothing is published, and nothing is ready, before policies are decided.

use std::time::Duration;

use assent_controller::{Action, Failure};

use crate::{
    harness::{Harness, mk_module, settings},
    world::World,
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    r02_first_snapshot_waits_until_new_policies_are_decided,
    r02_rejected_policy_does_not_hold_back_the_first_snapshot,
    r02_deleted_policy_does_not_hold_back_the_first_snapshot,
    r02_first_snapshot_waits_no_longer_than_the_sync_deadline,
    r02_policy_with_a_stored_revision_is_not_waited_for,
    first_start_is_ready_once_policies_are_enforced,
    first_start_without_replicas_is_ready_once_policies_are_decided,
    first_start_is_ready_if_a_replica_rejects_a_policy,
    later_policy_does_not_affect_readiness,
);

/// A process that finds a policy `a` without a revision, and replicas that have connected.
fn first_start<W: World>(replicas: &[&str]) -> Harness<W> {
    let mut world = W::with_replicas(replicas);
    world.put_policy("a", &|_| {});
    let mut harness = Harness::unlisted(world.restart(), []);
    harness.list();
    for replica in replicas {
        harness.open(replica);
    }
    harness
}

fn r02_first_snapshot_waits_until_new_policies_are_decided<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    let job = harness.only_vet();
    assert!(harness.controller.is_restored());
    assert!(!harness.controller.is_synced());
    assert!(harness.published("default").is_none());
    harness.vetted(&job, Ok(mk_module(&job.url)));
    // It is accepted once its revision is stored.
    let store = harness.only_action();
    assert!(matches!(store, Action::StoreRevision(_)));
    assert!(harness.published("default").is_none());
    harness.perform(store);
    assert!(harness.run().is_empty());
    assert!(harness.controller.is_synced());
    assert_eq!(harness.published_routes(), ["1 Candidate"]);
}

fn r02_rejected_policy_does_not_hold_back_the_first_snapshot<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    let job = harness.only_vet();
    harness.vetted(&job, Err(Failure::temporary("no route to host")));
    assert!(harness.run().is_empty());
    assert!(harness.published_routes().is_empty());
    assert!(harness.controller.is_ready());
}

fn r02_deleted_policy_does_not_hold_back_the_first_snapshot<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    harness.only_vet();
    harness.delete_policy("a");
    harness.run();
    assert!(harness.published_routes().is_empty());
    assert!(harness.controller.is_ready());
}

fn r02_first_snapshot_waits_no_longer_than_the_sync_deadline<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    let start = harness.now().at;
    let job = harness.only_vet();
    let deadline = harness.world.config().sync_deadline;
    assert_eq!(harness.controller.deadline(), Some(start + deadline));
    harness.pass(deadline - Duration::from_secs(2));
    assert!(harness.run().is_empty());
    assert!(harness.published("default").is_none());
    harness.pass(Duration::from_secs(2));
    assert!(harness.run().is_empty());
    assert!(harness.published_routes().is_empty());
    assert!(harness.controller.is_ready());
    // It is rolled out like any other when its vetting ends.
    harness.vetted(&job, Ok(mk_module(&job.url)));
    harness.run_with(&REPLICAS);
    assert_eq!(harness.published_routes(), ["1 Active"]);
}

fn r02_policy_with_a_stored_revision_is_not_waited_for<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    let mut next = harness.restart(true, &REPLICAS);
    next.only_vet();
    assert_eq!(next.published_routes(), ["1 Active"]);
    assert!(next.controller.is_ready());
}

fn first_start_is_ready_once_policies_are_enforced<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    harness.run();
    assert_eq!(harness.published_routes(), ["1 Candidate"]);
    // Without a route every request would be allowed.
    assert!(!harness.controller.is_ready());
    harness.run_with(&REPLICAS);
    assert_eq!(harness.world.routed("a"), Some(1));
    assert!(harness.controller.is_ready());
}

fn first_start_without_replicas_is_ready_once_policies_are_decided<W: World>() {
    let mut harness = first_start::<W>(&[]);
    harness.run();
    assert_eq!(harness.published_routes(), ["1 Candidate"]);
    assert!(harness.controller.is_ready());
}

fn first_start_is_ready_if_a_replica_rejects_a_policy<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    harness.run();
    harness.reject("r-0", "a", "no memory");
    harness.run();
    assert!(harness.controller.is_ready());
}

fn later_policy_does_not_affect_readiness<W: World>() {
    let mut harness = first_start::<W>(&REPLICAS);
    harness.run_with(&REPLICAS);
    harness.put_policy("b", |_| {});
    harness.only_vet();
    assert!(harness.controller.is_synced());
    assert!(harness.controller.is_ready());
}
