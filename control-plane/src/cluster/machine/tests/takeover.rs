//! Another control plane goes on from what is stored.

use assent_core::Digest;
use assent_k8s::index::Kind;
use serde_json::{Value, json};

use super::{objects::mk_policy, stage::Stage};
use crate::cluster::deed::{Deed, Done};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

/// A policy `a` of generation `n`, enforced.
fn enforced(n: i64) -> Stage {
    Stage::enforced(&REPLICAS, n)
}

/// Whoever leads next, with the modules or without; its replicas have come back.
fn next(stage: Stage, modules: bool) -> Stage {
    let mut next = stage.next();
    if modules {
        let module = Digest::of(b"registry://example.com/policy:v1");
        next.machine.modules.insert(module);
    }
    next.list();
    for replica in REPLICAS {
        next.open(replica);
    }
    next
}

fn phases(stage: &Stage) -> Vec<String> {
    let names = stage.names(Kind::Revisions).into_iter();
    let phases = names.map(|name| {
        let object = stage.object(Kind::Revisions, name).unwrap();
        let phase = object.pointer("/status/phase").and_then(Value::as_str);
        let generation = &object["spec"]["generation"];
        format!("{generation} {}", phase.unwrap_or("-"))
    });
    phases.collect()
}

#[test]
fn what_is_in_force_stays_untouched() {
    let mut stage = enforced(2);
    stage.write_statuses();
    stage.go();
    assert!(stage.write_statuses().is_empty());
    let mut next = next(stage, true);
    assert!(next.go().is_empty());
    for replica in REPLICAS {
        next.ack(replica);
    }
    assert!(next.go().is_empty());
    assert_eq!(next.write_statuses(), Vec::<String>::new());
    assert_eq!(next.events(), Vec::<String>::new());
}

#[test]
fn statuses_do_not_flap_before_replicas_are_back() {
    let mut stage = enforced(1);
    stage.write_statuses();
    let mut next = stage.next();
    next.list();
    next.go();
    // Its webhook stands and evaluators go on: nothing says otherwise.
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn a_module_that_is_not_here_is_fetched_once() {
    let mut next = next(enforced(1), false);
    assert_eq!(next.go(), ["fetch registry://example.com/policy:v1"]);
    next.machine.resync();
    assert!(next.go().is_empty());
}

#[test]
fn a_stored_candidate_goes_on_without_being_vetted_again() {
    let mut stage = enforced(1);
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": 2 }));
    assert_eq!(stage.go(), ["vet a 2", "store a 2"]);
    let mut next = next(stage, true);
    let said = next.go_with(&REPLICAS);
    let flipped = ["pods for a 2", "flip a 2", "a 2 is Active"];
    assert_eq!(said[..3], flipped);
}

#[test]
fn a_candidate_whose_module_is_not_here_is_made_anew() {
    let mut stage = enforced(1);
    stage.edit_spec("a", |spec| {
        spec["module"] = "registry://example.com/policy:v2".into();
    });
    assert_eq!(stage.go(), ["vet a 2", "store a 2"]);
    let mut next = next(stage, true);
    assert_eq!(next.go(), ["vet a 2", "store a 2"]);
}

#[test]
fn the_webhook_says_what_is_active_whatever_phases_say() {
    let mut stage = enforced(1);
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": 2 }));
    stage.go();
    for replica in REPLICAS {
        stage.ack(replica);
    }
    // Killed between writing the webhook and writing the phases.
    let [look] = <[Deed; 1]>::try_from(stage.asked()).unwrap();
    stage.perform(look);
    let [Deed::Flip(_, _, pointing)] = <[Deed; 1]>::try_from(stage.asked()).unwrap() else {
        panic!("a flip must be asked for");
    };
    stage.point(&pointing);
    assert_eq!(phases(&stage), ["1 Active", "2 -"]);
    let mut next = next(stage, true);
    let rollout = next.machine.drive.plane.rollout_of(&next.id("a")).unwrap();
    assert_eq!(rollout.active().map(|p| p.generation), Some(2));
    assert_eq!(next.go_with(&REPLICAS), ["retire a 1: keep"]);
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn between_two_kinds_of_webhook_the_newer_counts() {
    let mut stage = enforced(1);
    let old = stage.object(Kind::Validating, "assent.cluster.a").unwrap();
    stage.edit_spec("a", |spec| spec["mutating"] = true.into());
    stage.go_with(&REPLICAS);
    // Killed before the old one was removed.
    stage.put(Kind::Validating, old);
    let mut next = next(stage, true);
    let rollout = next.machine.drive.plane.rollout_of(&next.id("a")).unwrap();
    assert_eq!(rollout.active().map(|p| p.generation), Some(2));
    assert_eq!(next.go(), ["repair a"]);
    assert_eq!(next.names(Kind::Validating), Vec::<&str>::new());
    assert_eq!(next.names(Kind::Mutating), ["assent.cluster.a"]);
}

#[test]
fn where_no_webhook_is_left_the_generation_is_on_its_way_again() {
    let mut stage = enforced(1);
    stage.gone(Kind::Validating, "assent.cluster.a");
    let mut next = next(stage, true);
    let said = next.go_with(&REPLICAS);
    assert_eq!(said, ["pods for a 1", "flip a 1", "a 1 is Active"]);
}

#[test]
fn a_damaged_revision_affects_only_itself() {
    let mut stage = enforced(2);
    let broken = stage.names(Kind::Revisions)[0].to_owned();
    stage.edit(Kind::Revisions, &broken, |object| {
        object["spec"]["settings"] = r#"{"n":666}"#.into();
    });
    let mut next = next(stage, true);
    next.go_with(&REPLICAS);
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn nothing_is_decided_before_everything_was_listed() {
    let mut stage = Stage::new();
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    assert!(stage.go().is_empty());
    assert!(!stage.machine.is_restored());
    assert!(stage.wanted().is_empty());
    stage.list();
    assert!(stage.machine.is_restored());
    assert_eq!(stage.condition("a", "Accepted"), "False TargetNotFound");
}

#[test]
fn a_revision_that_could_not_be_stored_is_tried_again() {
    let mut stage = Stage::with_replicas(&REPLICAS);
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    let [vet] = <[Deed; 1]>::try_from(stage.asked()).unwrap();
    stage.perform(vet);
    let [Deed::Store { id, .. }] = <[Deed; 1]>::try_from(stage.asked()).unwrap() else {
        panic!("a revision must be stored");
    };
    let failed = crate::vetting::Failed::later("the API server is away".into());
    stage.machine.done(Done::NotStored(id, 1, failed));
    assert_eq!(stage.condition("a", "Accepted"), "False PullError");
    assert!(stage.machine.wake_at().is_some());
}
