//! The next process continues from what is stored.

use assent_controller::Action;

use crate::{
    harness::{Harness, settings},
    world::World,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

on_each_backend!(
    restart_changes_nothing_that_is_in_force,
    conditions_do_not_flap_before_replicas_are_back,
    missing_module_is_fetched_once,
    stored_candidate_continues_without_vetting,
    candidate_without_its_module_is_vetted_again,
    route_decides_what_is_active_whatever_phases_say,
    lost_route_puts_the_generation_back_on_its_way,
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

fn candidate_without_its_module_is_vetted_again<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| {
        spec["module"] = "registry://example.com/policy:v3".into();
    });
    assert_eq!(harness.run(), ["vet a 2", "store a 2"]);
    let mut next = harness.restart(true, &REPLICAS);
    assert_eq!(next.run(), ["vet a 2", "store a 2"]);
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
    assert!(done.contains(&"retire a 1: keep".to_owned()), "{done:?}");
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}

fn lost_route_puts_the_generation_back_on_its_way<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.world.lose_route("a");
    let mut next = harness.restart(true, &REPLICAS);
    let done = next.run_with(&REPLICAS);
    let flipped = ["check replicas for a 1", "flip a 1", "a 1 is Active"];
    assert_eq!(done, flipped);
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
    next.pass(std::time::Duration::from_secs(86_400));
    next.run_with(&REPLICAS);
    let after = next.controller.policy_status(next.now(), &id).unwrap();
    assert_eq!(after.conditions, before.conditions);
    assert_eq!(after.active, before.active);
}
