use assent_api::{ROLLBACK_ANNOTATION, parse::Rollback};
use assent_core::{
    PolicyKey,
    rollout::{Refusal, RefusalReason},
};
use assent_k8s::index::Kind;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    objects::{mk_policy, mk_server, uid},
    stage::Stage,
};
use crate::{cluster::deed::Deed, vetting::Failed};

const REPLICAS: [&str; 1] = ["r-0"];

fn stage() -> Stage {
    Stage::with_replicas(&REPLICAS)
}

/// A policy `a` whose generations 1 to `n` were all enforced in turn.
fn enforced(n: i64) -> Stage {
    Stage::enforced(&REPLICAS, n)
}

fn settings(stage: &Stage) -> Value {
    stage.object(Kind::ClusterPolicies, "a").unwrap()["spec"]["settings"].clone()
}

#[test]
fn a_policy_is_held_before_anything_is_made_for_it() {
    let mut stage = stage();
    let mut policy = mk_policy("a");
    policy["metadata"]["finalizers"] = Value::Null;
    stage.apply(Kind::ClusterPolicies, policy);
    assert_eq!(stage.go(), ["hold a", "vet a 1", "store a 1"]);
}

#[test]
fn a_policy_of_a_missing_server_waits_for_it() {
    let mut stage = stage();
    let mut policy = mk_policy("a");
    policy["spec"]["policyServer"] = "later".into();
    stage.apply(Kind::ClusterPolicies, policy);
    assert!(stage.go().is_empty());
    assert_eq!(stage.condition("a", "Accepted"), "False TargetNotFound");
    stage.apply(Kind::Servers, mk_server("later"));
    assert_eq!(stage.go(), ["vet a 1", "store a 1"]);
    assert_eq!(stage.condition("a", "Accepted"), "True Accepted");
}

#[test]
fn a_bad_edit_is_refused_and_what_was_good_goes_on() {
    let mut stage = enforced(1);
    stage.edit_spec("a", |spec| spec["rules"] = json!([]));
    assert!(stage.go().is_empty());
    assert_eq!(stage.condition("a", "Accepted"), "False Invalid");
    assert_eq!(stage.condition("a", "Ready"), "True LastGood");
    let path = stage.webhook_path(Kind::Validating, "a").unwrap();
    assert!(path.contains("/a/1-"), "{path}");
    // Mended, it is a generation like any other.
    let rules = mk_policy("a")["spec"]["rules"].clone();
    stage.edit_spec("a", |spec| spec["rules"] = rules);
    assert_eq!(stage.go(), ["vet a 3", "store a 3"]);
}

#[test]
fn an_object_that_makes_no_sense_affects_only_itself() {
    let mut stage = stage();
    let mut bad = mk_policy("bad");
    bad["spec"] = json!({ "rules": 7 });
    stage.apply(Kind::ClusterPolicies, bad);
    stage.apply(Kind::ClusterPolicies, mk_policy("good"));
    assert_eq!(stage.go(), ["vet good 1", "store good 1"]);
    assert_eq!(stage.condition("bad", "Accepted"), "False Invalid");
}

#[test]
fn what_can_not_be_pulled_is_tried_again_and_says_so() {
    let mut stage = stage();
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    let [Deed::Vet(job, ..)] = <[Deed; 1]>::try_from(stage.asked()).unwrap() else {
        panic!("it must be vetted");
    };
    stage.not_vetted(&job.id, 1, Failed::later("no route to host".into()));
    assert!(stage.go().is_empty());
    assert_eq!(stage.condition("a", "Accepted"), "False PullError");
    let status = stage.wanted().remove("a").flatten().unwrap().status;
    let text = status.to_string();
    assert!(
        text.contains("no route to host; it is tried again"),
        "{text}"
    );
    assert!(stage.machine.wake_at().is_some());
}

#[test]
fn a_module_that_is_none_is_refused_for_good() {
    let mut stage = stage();
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    stage.asked();
    let refusal = Refusal {
        reason: RefusalReason::SignatureRejected,
        message: "nobody known has signed it".into(),
    };
    let id = stage.id("a");
    stage.not_vetted(
        &id,
        1,
        Failed {
            refusal,
            retryable: false,
        },
    );
    assert!(stage.go().is_empty());
    assert_eq!(stage.condition("a", "Accepted"), "False SignatureRejected");
    assert_eq!(stage.events(), ["a SignatureRejected"]);
}

#[test]
fn an_outcome_of_an_older_generation_is_nothing() {
    let mut stage = stage();
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    let [Deed::Vet(job, _, cancelled)] = <[Deed; 1]>::try_from(stage.asked()).unwrap() else {
        panic!("it must be vetted");
    };
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": 2 }));
    let asked = stage.asked();
    assert!(matches!(&asked[..], [Deed::Vet(job, ..)] if job.generation == 2));
    assert!(cancelled.is_cancelled());
    // It came in before it could be cancelled.
    stage.vetted(&job.id, 1, &job.url);
    assert!(stage.go().is_empty());
    let id = stage.id("a");
    stage.vetted(&id, 2, &job.url);
    assert_eq!(stage.go(), ["store a 2"]);
}

#[test]
fn deleting_removes_the_webhook_first_and_the_finalizer_last() {
    let mut stage = enforced(1);
    stage.delete(Kind::ClusterPolicies, "a");
    let said = stage.go_with(&REPLICAS);
    assert_eq!(said.first().unwrap(), "unroute a: assent.cluster.a");
    assert_eq!(said.last().unwrap(), "release a");
    assert!(stage.names(Kind::Validating).is_empty());
    assert!(stage.names(Kind::ClusterPolicies).is_empty());
    let server = stage.machine.drive.plane.server("default").unwrap();
    assert_eq!(server.published().unwrap().policies().count(), 0);
}

#[test]
fn deleting_while_a_module_is_vetted_leaves_nothing() {
    let mut stage = stage();
    stage.apply(Kind::ClusterPolicies, mk_policy("a"));
    let [Deed::Vet(job, _, cancelled)] = <[Deed; 1]>::try_from(stage.asked()).unwrap() else {
        panic!("it must be vetted");
    };
    stage.delete(Kind::ClusterPolicies, "a");
    assert!(cancelled.is_cancelled());
    stage.vetted(&job.id, 1, &job.url);
    let said = stage.go();
    assert!(
        !said.iter().any(|deed| deed.starts_with("store")),
        "{said:?}"
    );
    assert_eq!(said.last().unwrap(), "release a");
}

#[test]
fn another_life_of_a_name_starts_anew() {
    let mut stage = enforced(3);
    // Somebody removed the finalizer by hand.
    stage.gone(Kind::ClusterPolicies, "a");
    let mut again = mk_policy("a");
    again["metadata"]["uid"] = uid("a, again").into();
    stage.apply(Kind::ClusterPolicies, again);
    let said = stage.go_with(&REPLICAS);
    let at = |what: &str| said.iter().position(|deed| deed == what);
    assert!(at("unroute a: assent.cluster.a").is_some(), "{said:?}");
    assert!(
        at("vet a 1").is_some() && at("flip a 1").is_some(),
        "{said:?}"
    );
    let path = stage.webhook_path(Kind::Validating, "a").unwrap();
    assert!(path.ends_with(&uid("a, again")[..8]), "{path}");
}

#[test]
fn a_rollback_goes_to_the_revision_before() {
    let mut stage = enforced(2);
    stage.edit(Kind::ClusterPolicies, "a", |object| {
        object["metadata"]["annotations"] = json!({ ROLLBACK_ANNOTATION: "previous" });
    });
    let said = stage.go_with(&REPLICAS);
    assert_eq!(said[..2], ["roll a back to 1", "vet a 3"]);
    assert_eq!(settings(&stage), json!({}));
    assert!(stage.events().contains(&"a RolledBack".to_owned()));
    assert_eq!(stage.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn a_rollback_skips_what_was_never_in_force() {
    let mut stage = enforced(2);
    // Generation 3 is stored, and nobody serves it.
    stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": 3 }));
    stage.go();
    let key = PolicyKey::cluster("a");
    stage.machine.undo(&key, Rollback::Previous, None);
    assert_eq!(stage.go()[0], "roll a back to 1");
}

#[test]
fn a_rollback_names_a_generation_or_says_why_not() {
    let mut stage = enforced(3);
    let key = PolicyKey::cluster("a");
    let (answer, mut answered) = oneshot::channel();
    stage
        .machine
        .undo(&key, Rollback::Generation(7), Some(answer));
    let said = stage.go();
    assert!(
        said[0].contains("there is no revision of generation 7"),
        "{said:?}"
    );
    assert!(answered.try_recv().unwrap().is_err());
    assert!(stage.events().contains(&"a RollbackRefused".to_owned()));
    let (answer, mut answered) = oneshot::channel();
    stage
        .machine
        .undo(&key, Rollback::Generation(2), Some(answer));
    assert_eq!(stage.go()[0], "roll a back to 2");
    assert_eq!(answered.try_recv().unwrap().unwrap(), (2, 4));
    assert_eq!(settings(&stage), json!({ "n": 2 }));
}

#[test]
fn two_who_ask_for_the_same_rollback_get_one() {
    let mut stage = enforced(2);
    let key = PolicyKey::cluster("a");
    let (first, mut one) = oneshot::channel();
    let (second, mut other) = oneshot::channel();
    stage.machine.undo(&key, Rollback::Previous, Some(first));
    stage.machine.undo(&key, Rollback::Previous, Some(second));
    let asked: Vec<Deed> = stage.asked();
    assert_eq!(asked.len(), 1);
    for deed in asked {
        stage.perform(deed);
    }
    assert_eq!(one.try_recv().unwrap().unwrap(), (1, 3));
    assert_eq!(other.try_recv().unwrap().unwrap(), (1, 3));
}

#[test]
fn the_first_revision_has_nothing_to_go_back_to() {
    let mut stage = enforced(1);
    let key = PolicyKey::cluster("a");
    stage.machine.undo(&key, Rollback::Previous, None);
    let said = stage.go();
    assert_eq!(
        said,
        ["do not roll a back: there is no earlier revision to go back to"]
    );
}

#[test]
fn history_is_kept_as_long_as_the_policy_says() {
    let mut stage = stage();
    let mut policy = mk_policy("a");
    policy["spec"]["revisionHistoryLimit"] = 1.into();
    stage.apply(Kind::ClusterPolicies, policy);
    stage.go_with(&REPLICAS);
    let mut said = Vec::new();
    for n in 2..=4 {
        stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": n }));
        said = stage.go_with(&REPLICAS);
    }
    assert!(said.last().unwrap().starts_with("drop a-2-"), "{said:?}");
    let generations = stage.names(Kind::Revisions).into_iter().map(|name| {
        let object = stage.object(Kind::Revisions, name).unwrap();
        object["spec"]["generation"].as_i64().unwrap()
    });
    assert_eq!(generations.collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_candidate_that_was_overtaken_is_no_history() {
    let mut stage = enforced(1);
    let mut said = Vec::new();
    for n in 2..=3 {
        stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": n }));
        said.extend(stage.go());
    }
    said.extend(stage.go_with(&REPLICAS));
    assert!(said.contains(&"retire a 2: drop".to_owned()), "{said:?}");
    assert!(said.contains(&"retire a 1: keep".to_owned()), "{said:?}");
}
