#![allow(clippy::unwrap_used)]

mod harness;

use assent_api::revision::Phase;
use assent_core::{
    rollout::{Refusal, RefusalReason},
    status::{ConditionStatus, ConditionType},
};
use harness::{Harness, policy, server};
use serde_json::json;

use super::*;

fn refused(harness: &mut Harness, name: &str) -> String {
    let status = harness.status(name);
    let accepted = status.condition(ConditionType::Accepted);
    assert_eq!(accepted.status, ConditionStatus::False, "{accepted:?}");
    accepted.reason.to_string()
}

#[test]
fn a_policy_is_vetted_published_and_flipped() {
    let mut harness = Harness::new();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    assert_eq!(harness.active("p"), Some(1));
    assert_eq!(harness.table(), ["cluster/p"]);
    // It is on disk too.
    harness.restart();
    assert_eq!(harness.active("p"), Some(1));
}

#[test]
fn nothing_is_published_before_the_directory_was_read() {
    let mut harness = Harness::new();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    harness.restart_without_directory();
    harness.settle();
    assert!(harness.published.is_empty());
    assert!(!harness.api().is_read());
    harness.scan();
    harness.settle();
    assert_eq!(harness.published["default"].policies().count(), 1);
}

#[test]
fn nothing_is_published_that_cannot_be_written() {
    let mut harness = Harness::new();
    harness.settle();
    let before = harness.published["default"].version();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.break_disk();
    harness.settle();
    assert_eq!(harness.published["default"].version(), before);
    harness.repair_disk();
    harness.settle();
    assert_ne!(harness.published["default"].version(), before);
    assert_eq!(harness.active("p"), Some(1));
}

#[test]
fn last_transition_times_survive_a_restart() {
    let mut harness = Harness::new();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    let times = |harness: &mut Harness| {
        let status = harness.object("p");
        let times = status.conditions.iter();
        let times = times.map(|c| (c.type_.clone(), c.last_transition_time.0));
        (times.collect::<Vec<_>>(), status.active)
    };
    let before = times(&mut harness);
    harness.wait(3_600);
    harness.restart();
    assert_eq!(times(&mut harness), before);
}

#[test]
fn counters_cause_no_writes() {
    let mut harness = Harness::new();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    harness.connect("r9");
    harness.acknowledge();
    harness.settle();
    assert_eq!(harness.object("p").rollout.unwrap().desired, 3);
    assert_eq!(harness.writes, 0);
}

#[test]
fn previous_is_the_revision_before_the_active_one() {
    let mut harness = Harness::new();
    for n in 1..=2 {
        harness.apply("p.yaml", policy("p", json!({ "n": n })));
        harness.settle();
    }
    harness.hold_acks = true;
    harness.apply("p.yaml", policy("p", json!({ "n": 3 })));
    harness.settle();
    assert_eq!(harness.active("p"), Some(2));
    assert_eq!(harness.undo("p", Rollback::Previous), Ok((1, 4)));
    harness.hold_acks = false;
    harness.settle();
    assert_eq!(harness.active("p"), Some(4));
    let record = harness.record("p");
    assert_eq!(record.overridden.as_ref().unwrap().from_generation, 1);
}

#[test]
fn a_rollback_without_a_target_is_rejected() {
    let mut harness = Harness::new();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    let rejected = harness.undo("p", Rollback::Previous).unwrap_err();
    assert_eq!(rejected, "there is no earlier revision to roll back to");
    let rejected = harness.undo("p", Rollback::Generation(7)).unwrap_err();
    assert!(rejected.contains("there are: 1"), "{rejected}");
    let rejected = harness.undo("q", Rollback::Previous).unwrap_err();
    assert_eq!(rejected, "there is no policy cluster/q");
    assert_eq!(harness.record("p").generation, 1);
}

#[test]
fn a_rollback_annotation_is_acted_on_once() {
    let mut harness = Harness::new();
    for n in 1..=2 {
        harness.apply("p.yaml", policy("p", json!({ "n": n })));
        harness.settle();
    }
    let annotated = |n: i64| {
        let mut value = policy("p", json!({ "n": n }));
        value["metadata"]["annotations"] = json!({"policies.assent.dev/rollback-to": "1"});
        value
    };
    harness.apply("p.yaml", annotated(2));
    harness.settle();
    assert_eq!(harness.active("p"), Some(3));
    harness.restart();
    harness.apply("p.yaml", annotated(4));
    harness.settle();
    assert_eq!(harness.active("p"), Some(4));
    assert!(harness.record("p").overridden.is_none());
}

#[test]
fn history_is_trimmed_to_its_limit() {
    let mut harness = Harness::new();
    for n in 1..=6 {
        let mut value = policy("p", json!({ "n": n }));
        value["spec"]["revisionHistoryLimit"] = json!(2);
        harness.apply("p.yaml", value);
        harness.settle();
        harness.wait(3_600);
        harness.settle();
    }
    let record = harness.record("p");
    let kept = record.revisions.iter().map(|r| (r.generation, r.phase));
    assert_eq!(
        kept.collect::<Vec<_>>(),
        [(4, Phase::History), (5, Phase::History), (6, Phase::Active)]
    );
}

#[test]
fn a_removed_server_removes_the_routes_of_its_policies() {
    let mut harness = Harness::new();
    harness.apply("edge.yaml", server("edge", json!({})));
    let mut value = policy("p", json!({}));
    value["spec"]["policyServer"] = json!("edge");
    harness.apply("p.yaml", value);
    harness.connect_to("edge", "e0");
    harness.settle();
    assert_eq!(harness.table(), ["cluster/p"]);
    harness.remove("edge.yaml");
    harness.settle();
    assert_eq!(refused(&mut harness, "p"), "TargetNotFound");
    assert!(harness.table().is_empty());
    assert!(!harness.published.contains_key("edge"));
    harness.apply("edge.yaml", server("edge", json!({})));
    harness.connect_to("edge", "e0");
    harness.settle();
    assert_eq!(harness.table(), ["cluster/p"]);
    assert_eq!(harness.active("p"), Some(1));
}

#[test]
fn an_edited_server_reconsiders_its_refused_policies() {
    let reasons = [
        RefusalReason::PullError,
        RefusalReason::SignatureRejected,
        RefusalReason::Invalid,
    ];
    for reason in reasons {
        let mut harness = Harness::new();
        let message = "refused".to_owned();
        harness.refusal = Some(Refusal { reason, message });
        harness.apply("p.yaml", policy("p", json!({})));
        harness.settle();
        assert_eq!(refused(&mut harness, "p"), reason.as_str());
        harness.refusal = None;
        let spec = json!({"sources": {"insecure": ["registry.local"]}});
        harness.apply("default.yaml", server("default", spec));
        harness.settle();
        assert_eq!(harness.active("p"), Some(1), "{reason:?}");
    }
}

#[test]
fn an_edited_server_does_not_excuse_a_match_condition() {
    let mut harness = Harness::new();
    let mut value = policy("p", json!({}));
    value["spec"]["matchConditions"] = json!([{"name": "c", "expression": "1 +"}]);
    harness.apply("p.yaml", value);
    harness.settle();
    assert_eq!(refused(&mut harness, "p"), "Invalid");
    let spec = json!({"sources": {"insecure": ["registry.local"]}});
    harness.apply("default.yaml", server("default", spec));
    harness.settle();
    assert_eq!(refused(&mut harness, "p"), "Invalid");
    assert_eq!(harness.vetted, 0);
}

#[test]
fn a_refused_signature_is_retried() {
    let mut harness = Harness::new();
    harness.refusal = Some(Refusal {
        reason: RefusalReason::SignatureRejected,
        message: "not signed".into(),
    });
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    assert_eq!(refused(&mut harness, "p"), "SignatureRejected");
    harness.refusal = None;
    harness.wait(2);
    harness.settle();
    assert_eq!(harness.active("p"), Some(1));
}

#[test]
fn an_invalid_manifest_leaves_the_active_revision() {
    let mut harness = Harness::new();
    let good = policy("p", json!({}));
    harness.apply("p.yaml", good.clone());
    harness.settle();
    let mut bad = good.clone();
    bad["spec"]["module"] = json!(7);
    harness.apply("p.yaml", bad);
    harness.settle();
    assert_eq!(refused(&mut harness, "p"), "Invalid");
    assert_eq!(harness.active("p"), Some(1));
    harness.apply("p.yaml", good);
    harness.settle();
    let accepted = harness.status("p");
    let accepted = accepted.condition(ConditionType::Accepted).status;
    assert_eq!(accepted, ConditionStatus::True);
    assert_eq!(harness.record("p").generation, 1);
}

#[test]
fn of_two_manifests_the_first_is_vetted_and_the_conflict_reported() {
    let mut harness = Harness::new();
    harness.add("a.yaml", policy("p", json!({})));
    harness.apply("b.yaml", policy("p", json!({ "n": 2 })));
    harness.settle();
    assert_eq!(harness.active("p"), Some(1));
    assert_eq!(refused(&mut harness, "p"), "Conflicted");
    harness.remove("b.yaml");
    harness.settle();
    let status = harness.status("p");
    let accepted = status.condition(ConditionType::Accepted).status;
    assert_eq!(accepted, ConditionStatus::True);
}

#[test]
fn a_policy_that_never_was_valid_is_listed_with_its_problem() {
    let mut harness = Harness::new();
    let mut bad = policy("p", json!({}));
    bad["spec"]["module"] = json!(7);
    harness.apply("p.yaml", bad);
    harness.settle();
    let never: Vec<_> = harness
        .api()
        .never_valid()
        .map(|(k, ..)| k.clone())
        .collect();
    assert_eq!(never, [PolicyKey::cluster("p")]);
    harness.apply("p.yaml", policy("p", json!({})));
    assert_eq!(harness.api().never_valid().count(), 0);
}

#[test]
fn a_deleted_policy_drains_and_is_forgotten() {
    let mut harness = Harness::new();
    harness.add("q.yaml", policy("q", json!({})));
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    harness.remove("p.yaml");
    harness.settle();
    assert_eq!(harness.table(), ["cluster/q"]);
    assert_eq!(harness.published["default"].policies().count(), 2);
    harness.wait(60);
    harness.settle();
    harness.settle();
    assert_eq!(harness.published["default"].policies().count(), 1);
    assert_eq!(harness.api().store().records().count(), 1);
}

#[test]
fn a_policy_that_is_created_again_is_another_one() {
    let mut harness = Harness::new();
    harness.add("q.yaml", policy("q", json!({})));
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    let old = harness.record("p").uid;
    harness.remove("p.yaml");
    harness.settle();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    assert_ne!(harness.record("p").uid, old);
    assert_eq!(harness.active("p"), Some(1));
    assert_eq!(harness.published["default"].policies().count(), 3);
    harness.wait(60);
    harness.settle();
    harness.settle();
    assert!(harness.api().store().by_uid(old).is_none());
    assert_eq!(harness.published["default"].policies().count(), 2);
    assert_eq!(harness.table(), ["cluster/p", "cluster/q"]);
}

#[test]
fn a_restart_forgets_a_policy_whose_name_is_in_use_again() {
    let mut harness = Harness::new();
    harness.add("q.yaml", policy("q", json!({})));
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    harness.remove("p.yaml");
    harness.settle();
    harness.apply("p.yaml", policy("p", json!({})));
    harness.settle();
    harness.restart();
    assert_eq!(harness.api().store().records().count(), 2);
    assert_eq!(harness.active("p"), Some(1));
}
