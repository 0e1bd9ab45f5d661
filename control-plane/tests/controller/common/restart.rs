//! The next process continues from what is stored.

use std::time::Duration;

use assent_api::parse::{Module, Rollback};
use assent_controller::{Action, Failure};
use assent_core::Digest;

use crate::{
    harness::{Harness, mk_module, settings},
    world::World,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

on_each_backend!(
    restart_changes_nothing_that_is_in_force,
    conditions_do_not_flap_before_replicas_are_back,
    missing_module_is_fetched_once,
    stored_candidate_continues_without_vetting,
    candidate_without_its_module_keeps_its_module,
    revision_name_never_gets_other_content,
    next_flip_waits_for_the_phases_of_the_last,
    route_decides_what_is_active_whatever_phases_say,
    lost_route_puts_the_generation_back_on_its_way,
    last_good_revision_returns_beside_a_rejected_one,
    nothing_is_decided_before_everything_is_listed,
    condition_times_survive,
);

fn restart_changes_nothing_that_is_in_force<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 2);
    harness.write_statuses();
    harness.run();
    let mut next = harness.restart(true, &REPLICAS);
    assert!(next.run().is_empty());
    for replica in REPLICAS {
        next.acknowledge(replica);
    }
    assert!(next.run().is_empty());
    if W::STORES_STATUSES {
        let written = next.write_statuses();
        assert!(!written.contains(&"a".to_owned()), "{written:?}");
        assert_eq!(next.events(), Vec::<String>::new());
    }
}

fn conditions_do_not_flap_before_replicas_are_back<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.write_statuses();
    let mut next = harness.restart(true, &[]);
    next.run();
    // The route stands and evaluators continue to serve: no condition may deny that.
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}

fn missing_module_is_fetched_once<W: World>() {
    let harness = Harness::<W>::enforced(&REPLICAS, 1);
    let mut next = harness.restart(false, &REPLICAS);
    assert_eq!(next.run(), ["fetch registry://example.com/policy:v1"]);
    next.controller.resync(next.now());
    assert!(next.run().is_empty());
}

fn stored_candidate_continues_without_vetting<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    assert_eq!(harness.run(), ["vet a 2", "store a 2"]);
    let mut next = harness.restart(true, &REPLICAS);
    let done = next.run_with(&REPLICAS);
    let flipped = ["check replicas for a 2", "flip a 2", "a 2 is Active"];
    assert_eq!(done[..3], flipped);
}

const V3: &str = "registry://example.com/policy:v3";

fn candidate_without_its_module_keeps_its_module<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| spec["module"] = V3.into());
    assert_eq!(harness.run(), ["vet a 2", "store a 2"]);
    let mut next = harness.restart(true, &REPLICAS);
    // Wherever the tag points now, the module is the one that was stored.
    let job = next.only_vet();
    assert_eq!(job.url, V3);
    assert_eq!(job.pinned, Some(Digest::of(V3.as_bytes())));
    next.vetted(&job, Err(Failure::temporary("no such host")));
    assert_eq!(next.condition("a", "Accepted"), "False PullError");
    next.pass(Duration::from_secs(3));
    let job = next.only_vet();
    assert_eq!(job.pinned, Some(Digest::of(V3.as_bytes())));
    next.vetted(&job, Ok(mk_module(V3)));
    let done = next.run_with(&REPLICAS);
    assert_eq!(done[..2], ["check replicas for a 2", "flip a 2"]);
    assert_eq!(next.world.routed("a"), Some(2));
}

/// Replicas may hold the stored candidate, so the generation has no other content.
fn revision_name_never_gets_other_content<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| spec["module"] = V3.into());
    harness.run();
    let mut next = harness.restart(true, &REPLICAS);
    let job = next.only_vet();
    let other = Module {
        abi: "wasi".into(),
        ..mk_module(V3)
    };
    next.vetted(&job, Ok(other));
    assert_eq!(next.run_with(&REPLICAS), Vec::<String>::new());
    assert_eq!(next.condition("a", "Accepted"), "False Invalid");
    assert_eq!(next.world.routed("a"), Some(1));
}

/// Otherwise a process that ends in between leaves a revision that was active and is stored as
/// a candidate, which the next one would delete.
fn next_flip_waits_for_the_phases_of_the_last<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    for replica in REPLICAS {
        harness.acknowledge(replica);
    }
    let check = harness.only_action();
    harness.perform(check);
    let flip = harness.only_action();
    harness.perform(flip);
    let slow = harness.actions();
    assert!(matches!(slow[0], Action::SetPhase(..)));
    harness.put_policy("a", |spec| settings(spec, 3));
    assert_eq!(harness.run(), ["vet a 3", "store a 3"]);
    for replica in REPLICAS {
        harness.acknowledge(replica);
    }
    assert_eq!(harness.run(), Vec::<String>::new());
    assert_eq!(harness.world.routed("a"), Some(2));
    for action in slow {
        harness.perform(action);
    }
    let done = harness.run_with(&REPLICAS);
    assert_eq!(done[..2], ["check replicas for a 3", "flip a 3"]);
    harness.roll_back("a", Rollback::Previous, 1);
    assert_eq!(harness.run()[0], "roll a back to 2");
}

/// A process that was killed between writing the route and writing the phases.
fn route_decides_what_is_active_whatever_phases_say<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    for replica in REPLICAS {
        harness.acknowledge(replica);
    }
    let check = harness.only_action();
    harness.perform(check);
    let flip = harness.only_action();
    assert!(matches!(flip, Action::Flip(..)));
    harness.perform(flip);
    assert_eq!(harness.world.phases("a"), ["1 Active", "2 Candidate"]);
    let mut next = harness.restart(true, &REPLICAS);
    let id = next.id("a");
    let rollout = next.controller.plane().rollout_of(&id).unwrap();
    assert_eq!(rollout.active().map(|p| p.generation), Some(2));
    let done = next.run_with(&REPLICAS);
    // The phases that were not written are written now.
    assert_eq!(done[..2], ["a 1 is Draining", "a 2 is Active"]);
    assert!(done.contains(&"retire a 1: keep".to_owned()), "{done:?}");
    assert_eq!(next.world.phases("a"), ["1 History", "2 Active"]);
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
    next.roll_back("a", Rollback::Previous, 1);
    assert_eq!(next.run()[0], "roll a back to 1");
}

fn lost_route_puts_the_generation_back_on_its_way<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.world.lose_route("a");
    let mut next = harness.restart(true, &REPLICAS);
    let done = next.run_with(&REPLICAS);
    let flipped = ["check replicas for a 1", "flip a 1", "a 1 is Active"];
    assert_eq!(done, flipped);
}

/// A bad generation leaves no gap, whatever became of the route.
fn last_good_revision_returns_beside_a_rejected_one<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    for replica in REPLICAS {
        harness.reject(replica, "a", "no");
    }
    harness.run();
    harness.world.lose_route("a");
    let mut next = harness.restart(true, &REPLICAS);
    next.run();
    assert_eq!(next.world.routed("a"), None);
    for replica in REPLICAS {
        next.reject(replica, "a", "no");
    }
    let done = next.run();
    assert!(done.contains(&"flip a 1".to_owned()), "{done:?}");
    assert_eq!(next.world.routed("a"), Some(1));
    assert_eq!(next.condition("a", "Ready"), "True LastGood");
}

fn nothing_is_decided_before_everything_is_listed<W: World>() {
    let harness = Harness::<W>::enforced(&REPLICAS, 1);
    let mut next = Harness::unlisted(harness.world.restart(), []);
    assert!(next.run().is_empty());
    assert!(!next.controller.is_restored());
    next.list();
    assert!(next.controller.is_restored());
}

fn condition_times_survive<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.write_statuses();
    let id = harness.id("a");
    let before = harness
        .controller
        .policy_status(harness.now(), &id)
        .unwrap();
    let mut next = harness.restart(true, &REPLICAS);
    next.pass(Duration::from_secs(86_400));
    next.run_with(&REPLICAS);
    let after = next.controller.policy_status(next.now(), &id).unwrap();
    assert_eq!(after.conditions, before.conditions);
    assert_eq!(after.active, before.active);
}
