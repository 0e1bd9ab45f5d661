//! A route is written when every required replica serves the revision, and not before.

use assent_controller::{Action, Outcome, action::FlipError};

use crate::{
    harness::{Harness, settings, to_json},
    world::World,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

on_each_backend!(
    route_is_written_when_the_last_replica_serves,
    conflict_is_decided_again,
    route_that_the_backend_rejects_is_the_policys_fault,
    edit_drains_the_revision_before_it,
    rejecting_replica_keeps_the_old_revision_active,
    policy_that_begins_to_mutate_is_routed_to_one_revision,
);

fn route_is_written_when_the_last_replica_serves<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    assert_eq!(harness.run(), ["vet a 1", "store a 1"]);
    harness.acknowledge("r-0");
    assert!(harness.run().is_empty());
    assert_eq!(harness.world.routed("a"), None);
    harness.acknowledge("r-1");
    let flipped = ["check replicas for a 1", "flip a 1", "a 1 is Active"];
    assert_eq!(harness.run(), flipped);
    assert_eq!(harness.world.routed("a"), Some(1));
}

/// A policy `a` whose first flip is asked for.
fn about_to_flip<W: World>() -> (Harness<W>, Action<W::Backend>) {
    let mut harness = Harness::<W>::with_replicas(&["r-0"]);
    harness.put_policy("a", |_| {});
    harness.run();
    harness.acknowledge("r-0");
    let check = harness.only_action();
    harness.perform(check);
    let flip = harness.only_action();
    (harness, flip)
}

fn conflict_is_decided_again<W: World>() {
    let (mut harness, flip) = about_to_flip::<W>();
    let Action::Flip(id, to, _) = flip else {
        panic!("a flip must be asked for");
    };
    let error = FlipError::Conflict("it changed meanwhile".into());
    let outcome = Outcome::FlipFailed(id, to, error);
    harness.controller.outcome(harness.now(), outcome);
    let flipped = ["check replicas for a 1", "flip a 1", "a 1 is Active"];
    assert_eq!(harness.run(), flipped);
}

fn route_that_the_backend_rejects_is_the_policys_fault<W: World>() {
    let (mut harness, flip) = about_to_flip::<W>();
    let Action::Flip(id, to, _) = flip else {
        panic!("a flip must be asked for");
    };
    let error = FlipError::Invalid("webhooks[0]: no".into());
    let outcome = Outcome::FlipFailed(id, to, error);
    harness.controller.outcome(harness.now(), outcome);
    assert_eq!(harness.condition("a", "Accepted"), "False Invalid");
    assert_eq!(harness.message("a", "Accepted"), "webhooks[0]: no");
    assert_eq!(harness.world.routed("a"), None);
}

fn edit_drains_the_revision_before_it<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    assert_eq!(harness.run(), ["vet a 2", "store a 2"]);
    assert_eq!(harness.world.routed("a"), Some(1));
    harness.acknowledge("r-0");
    harness.acknowledge("r-1");
    let flipped = [
        "check replicas for a 2",
        "flip a 2",
        "a 2 is Active",
        "a 1 is Draining",
        "retire a 1: keep",
    ];
    assert_eq!(harness.run(), flipped);
    assert_eq!(harness.world.routed("a"), Some(2));
    assert!(harness.run_with(&REPLICAS).is_empty());
}

fn rejecting_replica_keeps_the_old_revision_active<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    harness.acknowledge("r-0");
    harness.reject("r-1", "a", "no memory");
    let statuses = harness.statuses();
    assert_eq!(harness.world.routed("a"), Some(1));
    assert!(harness.condition("a", "Programmed").starts_with("False"));
    let update = &statuses["a"];
    assert!(update.urgent);
    let text = to_json(update).to_string();
    assert!(text.contains("r-1") && text.contains("no memory"), "{text}");
}

fn policy_that_begins_to_mutate_is_routed_to_one_revision<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.put_policy("a", |spec| spec["mutating"] = true.into());
    harness.run_with(&REPLICAS);
    assert_eq!(harness.world.routed("a"), Some(2));
    let key = assent_core::PolicyKey::cluster("a");
    let routes = harness.controller.objects().routes(&key);
    let generations = routes.map(|route| route.revision.as_ref().unwrap().generation());
    let generations: std::collections::BTreeSet<_> = generations.collect();
    assert_eq!(generations, [Some(2)].into());
}
