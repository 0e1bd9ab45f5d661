//! Deleted policies leave nothing behind, whatever is in flight.

use std::time::Duration;

use assent_controller::Action;

use crate::{
    harness::{Harness, settings},
    world::World,
};

const REPLICAS: [&str; 1] = ["r-0"];

on_each_backend!(
    route_goes_first_and_the_finalizer_last,
    deletion_while_vetting_leaves_nothing,
    deletion_during_the_first_flip_leaves_no_route,
    policy_created_again_starts_from_nothing,
    r43_deleted_policy_is_retired_until_its_drain_ends,
    r43_candidate_of_a_deleted_policy_leaves_at_once,
    r43_policy_that_was_never_active_leaves_at_once,
    r43_drain_of_a_deleted_policy_survives_a_restart,
);

const DRAIN: Duration = Duration::from_secs(60);

/// A policy `a` whose first generation is enforced.
fn enforced<W: World>() -> Harness<W> {
    let mut harness = Harness::<W>::with_drain(&REPLICAS, DRAIN);
    harness.put_policy("a", |_| {});
    harness.run_with(&REPLICAS);
    assert_eq!(harness.published_routes(), ["1 Active"]);
    harness
}

fn r43_deleted_policy_is_retired_until_its_drain_ends<W: World>() {
    let mut harness = enforced::<W>();
    harness.delete_policy("a");
    let removal = harness.only_action();
    assert!(matches!(removal, Action::RemoveRoutes(..)));
    // The route may still be there.
    assert_eq!(harness.published_routes(), ["1 Active"]);
    harness.perform(removal);
    assert!(harness.run().is_empty());
    assert_eq!(harness.published_routes(), ["1 Retired"]);
    harness.pass(DRAIN);
    assert_eq!(harness.run(), ["remove finalizer of a"]);
    assert!(harness.published_routes().is_empty());
}

fn r43_candidate_of_a_deleted_policy_leaves_at_once<W: World>() {
    let mut harness = enforced::<W>();
    harness.put_policy("a", |spec| settings(spec, 2));
    harness.run();
    assert_eq!(harness.published_routes(), ["1 Active", "2 Candidate"]);
    harness.delete_policy("a");
    let removal = harness.only_action();
    assert_eq!(harness.published_routes(), ["1 Active"]);
    harness.perform(removal);
    assert!(harness.run().is_empty());
    assert_eq!(harness.published_routes(), ["1 Retired"]);
}

fn r43_policy_that_was_never_active_leaves_at_once<W: World>() {
    let mut harness = Harness::<W>::with_drain(&REPLICAS, DRAIN);
    harness.put_policy("a", |_| {});
    harness.run();
    assert_eq!(harness.published_routes(), ["1 Candidate"]);
    harness.delete_policy("a");
    let done = harness.run();
    assert_eq!(done, ["remove routes of a: ", "remove finalizer of a"]);
    assert!(harness.published_routes().is_empty());
}

/// The route is gone already, and nothing but the phase says that the revision was active.
fn r43_drain_of_a_deleted_policy_survives_a_restart<W: World>() {
    let mut harness = enforced::<W>();
    harness.delete_policy("a");
    assert_eq!(harness.run(), ["remove routes of a: a"]);
    // The next process has no drain, so that it ends as soon as replicas answered.
    let mut next = harness.restart(true, &REPLICAS);
    let removal = next.only_action();
    assert_eq!(next.published_routes(), ["1 Retired"]);
    next.perform(removal);
    assert_eq!(next.run(), ["remove finalizer of a"]);
}

fn route_goes_first_and_the_finalizer_last<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.delete_policy("a");
    let done = harness.run_with(&REPLICAS);
    assert_eq!(done.first().unwrap(), "remove routes of a: a");
    assert_eq!(done.last().unwrap(), "remove finalizer of a");
    assert_eq!(harness.world.routed("a"), None);
    assert_eq!(harness.world.generation("a"), None);
    let snapshot = harness.published("default").unwrap();
    assert_eq!(snapshot.policies().count(), 0);
}

fn deletion_while_vetting_leaves_nothing<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    let job = harness.only_vet();
    harness.delete_policy("a");
    harness.vetted(&job, Ok(crate::harness::mk_module(&job.url)));
    let done = harness.run();
    assert!(done.contains(&"cancel vetting a".to_owned()), "{done:?}");
    assert!(!done.iter().any(|a| a.starts_with("store")), "{done:?}");
    assert_eq!(done.last().unwrap(), "remove finalizer of a");
}

/// The route is written while the deletion, which knew of no route, is already under way.
fn deletion_during_the_first_flip_leaves_no_route<W: World>() {
    let mut harness = Harness::<W>::with_replicas(&REPLICAS);
    harness.put_policy("a", |_| {});
    harness.run();
    harness.acknowledge("r-0");
    let check = harness.only_action();
    harness.perform(check);
    let flip = harness.only_action();
    assert!(matches!(flip, Action::Flip(..)));
    harness.delete_policy("a");
    let remove = harness.only_action();
    assert!(matches!(&remove, Action::RemoveRoutes(_, routes) if routes.is_empty()));
    harness.perform(remove);
    harness.perform(flip);
    let done = harness.run_with(&REPLICAS);
    assert!(done.contains(&"remove orphans: a".to_owned()), "{done:?}");
    assert_eq!(harness.world.routed("a"), None);
}

fn policy_created_again_starts_from_nothing<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 3);
    let before = harness.world.uid("a");
    harness.delete_policy("a");
    harness.run_with(&REPLICAS);
    harness.put_policy("a", |spec| settings(spec, 7));
    let done = harness.run_with(&REPLICAS);
    assert_eq!(done.first().unwrap(), "vet a 1");
    assert_ne!(harness.world.uid("a"), before);
    assert_eq!(harness.world.routed("a"), Some(1));
    assert_eq!(harness.world.phases("a"), ["1 Active"]);
}
