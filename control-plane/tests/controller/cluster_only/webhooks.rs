//! Webhook configurations: written once, repaired, removed.

use assent_controller::{Action, Kind, Outcome, action::FlipError};

use super::Cluster;
use crate::{
    cluster::{uid, webhook_name},
    harness::settings,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

/// A policy `a` that is enforced by both replicas.
fn enforced() -> Cluster {
    Cluster::enforced(&REPLICAS, 1)
}

fn path(cluster: &Cluster) -> Option<String> {
    cluster.world.webhook_path(Kind::Validating, "a")
}

#[test]
fn webhook_path_names_policy_generation_and_uid() {
    let cluster = enforced();
    let uid = cluster.id("a").uid;
    let expected = format!("/validate/cluster/a/1-{}", &uid[..8]);
    assert_eq!(path(&cluster), Some(expected));
}

#[test]
fn write_whose_response_was_lost_is_not_repeated() {
    let mut cluster = Cluster::with_replicas(&["r-0"]);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    let check = cluster.only_action();
    cluster.perform(check);
    let Action::Flip(id, to, update) = cluster.only_action() else {
        panic!("a flip must be asked for");
    };
    // The watch reports the webhook, then the request fails.
    cluster.cluster(|world| world.write_route(&update));
    assert!(cluster.run().is_empty());
    let lost = FlipError::Other("connection reset".into());
    let outcome = Outcome::FlipFailed(id, to, lost);
    cluster.controller.outcome(cluster.now(), outcome);
    assert_eq!(cluster.run(), ["a 1 is Active"]);
}

/// A policy that begins to mutate gets another configuration before its old one is changed. The process that waits
/// for no resync finishes what a lost response interrupted.
#[test]
fn rest_of_a_transition_follows_a_lost_response() {
    let mut cluster = enforced();
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run();
    for replica in REPLICAS {
        cluster.acknowledge(replica);
    }
    let check = cluster.only_action();
    cluster.perform(check);
    let Action::Flip(id, to, mut update) = cluster.only_action() else {
        panic!("a flip must be asked for");
    };
    // Only the first write is performed.
    update.desired.truncate(1);
    update.existing.clear();
    cluster.cluster(|world| world.write_route(&update));
    let lost = FlipError::Other("connection reset".into());
    let outcome = Outcome::FlipFailed(id, to, lost);
    cluster.controller.outcome(cluster.now(), outcome);
    let done = cluster.run();
    assert!(done.contains(&"repair a".to_owned()), "{done:?}");
    let confirming = path(&cluster).unwrap();
    assert!(
        confirming.starts_with("/confirm/cluster/a/2-"),
        "{confirming}"
    );
}

/// The API server wrote the webhook and the response was lost; a newer generation came
/// meanwhile, and the watch lags.
#[test]
fn revision_that_the_webhook_may_name_is_served_until_that_is_known() {
    let mut cluster = Cluster::with_replicas(&["r-0"]);
    cluster.put_policy("a", |_| {});
    cluster.run();
    cluster.acknowledge("r-0");
    let check = cluster.only_action();
    cluster.perform(check);
    let Action::Flip(id, to, update) = cluster.only_action() else {
        panic!("a flip must be asked for");
    };
    cluster.put_policy("a", |spec| settings(spec, 2));
    assert_eq!(cluster.run(), ["vet a 2", "store a 2"]);
    let late = cluster.world.write_route(&update);
    let lost = FlipError::Other("connection reset".into());
    let outcome = Outcome::FlipFailed(id, to.clone(), lost);
    cluster.controller.outcome(cluster.now(), outcome);
    assert!(cluster.run().is_empty());
    let published = cluster.published("default").unwrap();
    assert!(published.contains(to.as_str()), "{published:?}");
    cluster.observe(late);
    assert_eq!(cluster.run(), ["a 1 is Active"]);
}

#[test]
fn edited_or_removed_configuration_is_repaired() {
    let mut cluster = enforced();
    let right = path(&cluster);
    let name = webhook_name("a");
    cluster.edit(Kind::Validating, &name, |object| {
        object["webhooks"][0]["clientConfig"]["service"]["path"] = "/elsewhere".into();
    });
    assert_eq!(cluster.run(), ["repair a"]);
    assert_eq!(path(&cluster), right);
    cluster.edit(Kind::Validating, &name, |object| {
        object["webhooks"][0]["failurePolicy"] = "Ignore".into();
    });
    assert_eq!(cluster.run(), ["repair a"]);
    cluster.gone(Kind::Validating, &name);
    assert_eq!(cluster.run(), ["repair a"]);
    assert_eq!(path(&cluster), right);
}

#[test]
fn foreign_annotations_need_no_repair() {
    let mut cluster = enforced();
    cluster.edit(Kind::Validating, &webhook_name("a"), |object| {
        object["metadata"]["annotations"]["example.com/note"] = "hello".into();
    });
    assert!(cluster.run().is_empty());
}

/// A long name is cut, so that the policy cannot be read from it.
#[test]
fn configuration_without_its_annotations_is_repaired() {
    for name in ["a".to_owned(), "a".repeat(250)] {
        let mut cluster = Cluster::with_replicas(&REPLICAS);
        cluster.put_policy(&name, |_| {});
        cluster.run_with(&REPLICAS);
        let webhook = webhook_name(&name);
        let right = cluster.world.object(Kind::Validating, &webhook).unwrap();
        for elsewhere in [false, true] {
            cluster.edit(Kind::Validating, &webhook, |object| {
                object["metadata"]["annotations"] = serde_json::json!({});
                if elsewhere {
                    let config = &mut object["webhooks"][0]["clientConfig"];
                    config["service"]["path"] = "/elsewhere".into();
                }
            });
            let done = cluster.run();
            assert!(done.contains(&format!("repair {name}")), "{done:?}");
            let repaired = cluster.world.object(Kind::Validating, &webhook).unwrap();
            assert_eq!(repaired["webhooks"], right["webhooks"]);
            let annotations = &repaired["metadata"]["annotations"];
            assert_eq!(*annotations, right["metadata"]["annotations"]);
        }
    }
}

/// Somebody makes a's webhook name another policy.
#[test]
fn configuration_that_is_made_to_name_another_policy_is_repaired() {
    let mut cluster = enforced();
    let right = path(&cluster);
    cluster.edit(Kind::Validating, &webhook_name("a"), |object| {
        object["metadata"]["annotations"]["policies.assent.dev/policy"] = "cluster/b".into();
    });
    let done = cluster.run();
    assert!(done.contains(&"repair a".to_owned()), "{done:?}");
    assert_eq!(path(&cluster), right);
}

#[test]
fn configuration_without_its_annotations_is_repaired_by_the_next_process() {
    let mut cluster = enforced();
    let right = path(&cluster);
    let name = webhook_name("a");
    cluster.world.edit(Kind::Validating, &name, |object| {
        object["metadata"]["annotations"] = serde_json::json!({});
    });
    let mut next = cluster.restart(true, &REPLICAS);
    let id = next.id("a");
    let rollout = next.controller.plane().rollout_of(&id).unwrap();
    assert_eq!(rollout.active().map(|p| p.generation), Some(1));
    assert_eq!(next.run(), ["repair a"]);
    assert_eq!(path(&next), right);
}

#[test]
fn failed_repair_is_retried() {
    let mut cluster = enforced();
    cluster.gone(Kind::Validating, &webhook_name("a"));
    let Action::RepairRoute(id, _) = cluster.only_action() else {
        panic!("a repair must be asked for");
    };
    // It is asked for once while it is in flight.
    cluster.controller.resync(cluster.now());
    assert!(cluster.actions().is_empty());
    let outcome = Outcome::Repaired(id, Vec::new());
    cluster.controller.outcome(cluster.now(), outcome);
    assert_eq!(cluster.run(), ["repair a"]);
}

#[test]
fn new_ca_is_written_to_every_webhook() {
    let mut cluster = enforced();
    cluster.controller.check_all_routes(cluster.now());
    assert!(cluster.run().is_empty());
    cluster.controller.backend.defaults.ca_bundle = b"a CA and another".to_vec();
    cluster.controller.check_all_routes(cluster.now());
    assert_eq!(cluster.run(), ["repair a"]);
}

/// F22: evaluators of an earlier version answer 404 at `/confirm/`, which denies requests under `Fail`.
#[test]
fn changes_are_confirmed_as_soon_as_every_evaluator_can() {
    let mut cluster = enforced();
    cluster.open_with("r-0", &[]);
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.names(Kind::Mutating), [webhook_name("a")]);
    assert_eq!(cluster.world.names(Kind::Validating), Vec::<&str>::new());
    // The last old evaluator is replaced.
    cluster.open("r-0");
    assert_eq!(cluster.run(), ["repair a"]);
    let confirming = path(&cluster).unwrap();
    assert!(
        confirming.starts_with("/confirm/cluster/a/2-"),
        "{confirming}"
    );
    // A downgrade.
    cluster.open_with("r-0", &[]);
    assert_eq!(cluster.run(), ["repair a"]);
    assert_eq!(cluster.world.names(Kind::Validating), Vec::<&str>::new());
    assert_eq!(cluster.world.names(Kind::Mutating), [webhook_name("a")]);
}

/// A new leader has heard of no evaluator yet: what is confirmed stays confirmed.
#[test]
fn fail_over_does_not_end_confirmation() {
    let mut cluster = enforced();
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run_with(&REPLICAS);
    let mut next = cluster.restart(true, &[]);
    let done = next.run();
    assert!(!done.contains(&"repair a".to_owned()), "{done:?}");
    assert!(path(&next).unwrap().starts_with("/confirm/"));
    next.open_with("r-0", &[]);
    assert_eq!(next.run(), ["repair a"]);
    assert_eq!(next.world.names(Kind::Validating), Vec::<&str>::new());
}

/// What evaluators can do changes while the webhook is being written.
#[test]
fn upgrade_during_a_flip_is_not_missed() {
    let mut cluster = enforced();
    cluster.open_with("r-0", &[]);
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run();
    for replica in REPLICAS {
        cluster.acknowledge(replica);
    }
    let check = cluster.only_action();
    cluster.perform(check);
    let flip = cluster.only_action();
    cluster.open("r-0");
    cluster.acknowledge("r-0");
    assert!(cluster.actions().is_empty());
    cluster.perform(flip);
    let done = cluster.run();
    assert!(done.contains(&"repair a".to_owned()), "{done:?}");
    assert!(path(&cluster).unwrap().starts_with("/confirm/"));
}

#[test]
fn policy_that_begins_to_mutate_has_webhooks_of_both_kinds() {
    let mut cluster = enforced();
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run_with(&REPLICAS);
    let confirming = path(&cluster).unwrap();
    assert!(
        confirming.starts_with("/confirm/cluster/a/2-"),
        "{confirming}"
    );
    let path = cluster.world.webhook_path(Kind::Mutating, "a").unwrap();
    assert!(path.starts_with("/validate/cluster/a/2-"), "{path}");
    // Either is restored.
    for kind in [Kind::Mutating, Kind::Validating] {
        cluster.gone(kind, &webhook_name("a"));
        assert_eq!(cluster.run(), ["repair a"], "{kind:?}");
    }
    // Back to one.
    cluster.put_policy("a", |spec| spec["mutating"] = false.into());
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.names(Kind::Mutating), Vec::<&str>::new());
    assert_eq!(cluster.world.names(Kind::Validating), [webhook_name("a")]);
}

#[test]
fn newer_of_two_kinds_of_webhook_is_active() {
    let mut cluster = enforced();
    let name = webhook_name("a");
    let old = cluster.world.object(Kind::Validating, &name).unwrap();
    cluster.put_policy("a", |spec| spec["mutating"] = true.into());
    cluster.run_with(&REPLICAS);
    // The process was killed before the old one was removed.
    cluster.world.store(Kind::Validating, old);
    let mut next = cluster.restart(true, &REPLICAS);
    let id = next.id("a");
    let rollout = next.controller.plane().rollout_of(&id).unwrap();
    assert_eq!(rollout.active().map(|p| p.generation), Some(2));
    // The other one is removed, and returns when the replicas have reported that they confirm.
    assert_eq!(next.run(), ["repair a", "repair a"]);
    assert_eq!(
        next.world.names(Kind::Validating),
        std::slice::from_ref(&name)
    );
    assert_eq!(next.world.names(Kind::Mutating), [name]);
    assert_eq!(crate::world::World::routed(&next.world, "a"), Some(2));
}

#[test]
fn configuration_of_a_missing_policy_is_removed() {
    let mut cluster = enforced();
    let mut orphan = cluster
        .world
        .object(Kind::Validating, &webhook_name("a"))
        .unwrap();
    orphan["metadata"]["name"] = webhook_name("b").into();
    orphan["metadata"]["uid"] = uid("b's webhook").into();
    let annotations = &mut orphan["metadata"]["annotations"];
    annotations["policies.assent.dev/policy"] = "cluster/b".into();
    annotations["policies.assent.dev/policy-uid"] = uid("b").into();
    cluster.apply(Kind::Validating, orphan.clone());
    assert_eq!(cluster.run(), ["remove orphans: b"]);
    assert_eq!(cluster.world.names(Kind::Validating), [webhook_name("a")]);
    // One that the next process finds is removed as well.
    cluster.world.store(Kind::Validating, orphan);
    let mut next = cluster.restart(true, &REPLICAS);
    assert_eq!(next.run(), ["remove orphans: b"]);
}

/// A policy `a` whose removed webhook is being restored.
fn repairing() -> (Cluster, Action<assent_k8s::Cluster>) {
    let mut cluster = enforced();
    cluster.gone(Kind::Validating, &webhook_name("a"));
    let repair = cluster.only_action();
    assert!(matches!(repair, Action::RepairRoute(..)));
    (cluster, repair)
}

/// The removal that the deletion asks for knows of no webhook.
#[test]
fn deletion_during_a_repair_leaves_no_webhook() {
    let (mut cluster, repair) = repairing();
    cluster.delete_policy("a");
    let remove = cluster.only_action();
    assert!(matches!(&remove, Action::RemoveRoutes(_, routes) if routes.is_empty()));
    cluster.perform(remove);
    cluster.perform(repair);
    let done = cluster.run_with(&REPLICAS);
    assert!(done.contains(&"remove orphans: a".to_owned()), "{done:?}");
    assert!(cluster.world.names(Kind::Validating).is_empty());
}

#[test]
fn repair_that_ends_after_the_policy_is_gone_leaves_no_webhook() {
    let (mut cluster, repair) = repairing();
    cluster.delete_policy("a");
    let done = cluster.run_with(&REPLICAS);
    assert_eq!(done.last().unwrap(), "remove finalizer of a");
    cluster.perform(repair);
    assert_eq!(cluster.run(), ["remove orphans: a"]);
    assert!(cluster.world.names(Kind::Validating).is_empty());
}
