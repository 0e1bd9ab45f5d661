//! Deleted policies leave nothing behind, whatever is in flight.

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
);

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
