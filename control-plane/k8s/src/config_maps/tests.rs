#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use assent_api::ClusterAdmissionPolicy;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::plan::{Existing, Plan, Step, Wanted, plan};

const TEXT: &str = "package p\n\nallow := true\n";

fn config_map(namespace: &str, name: &str, data: Value) -> ConfigMap {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "resourceVersion": "7",
            "labels": {"policies.assent.dev/policy": "true"},
        },
    }))
    .unwrap()
}

fn decide(config_maps: &[ConfigMap], policies: &[ClusterAdmissionPolicy]) -> Plan {
    let wanted: BTreeMap<_, _> = config_maps
        .iter()
        .map(|one| ((one.namespace().unwrap(), one.name_any()), Wanted::of(one)))
        .collect();
    let existing: Vec<_> = policies.iter().map(Existing::of).collect();
    plan(&wanted, &existing)
}

/// The policy that is created for a ConfigMap, as the API server returns it.
fn created(config_map: &ConfigMap) -> ClusterAdmissionPolicy {
    let mut plan = decide(std::slice::from_ref(config_map), &[]);
    let Some(Step::Create(object)) = plan.steps.pop() else {
        panic!("no policy is created: {plan:?}");
    };
    let mut object = *object;
    object.metadata.uid = Some("uid".into());
    object.metadata.resource_version = Some("1".into());
    object.metadata.generation = Some(1);
    object
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.notes.iter().map(|note| note.reason).collect()
}

#[test]
fn config_map_becomes_a_monitoring_policy_pinned_to_its_text() {
    let policy = created(&config_map("ns", "p", json!({"policy.rego": TEXT})));
    let spec = json!(policy.spec);
    assert_eq!(spec["mode"], "monitor");
    let module = spec["module"].as_str().unwrap();
    assert!(
        module.starts_with("configmap://ns/p/policy.rego#sha256:"),
        "{module}"
    );
    assert_eq!(spec["rules"].as_array().unwrap().len(), 3);
}

#[test]
fn equal_text_changes_nothing_and_another_is_an_update() {
    let before = config_map("ns", "p", json!({"policy.rego": TEXT}));
    let policy = created(&before);
    let plan = decide(std::slice::from_ref(&before), std::slice::from_ref(&policy));
    assert!(plan.steps.is_empty() && plan.notes.is_empty(), "{plan:?}");
    let after = config_map("ns", "p", json!({"policy.rego": format!("{TEXT}# new\n")}));
    let plan = decide(&[after], &[policy]);
    assert!(
        matches!(&plan.steps[..], [Step::Update { version, .. }] if version == "1"),
        "{plan:?}"
    );
}

#[test]
fn policy_that_somebody_wrote_is_never_touched() {
    let one = config_map("ns", "p", json!({"policy.rego": TEXT}));
    let mut by_hand = created(&one);
    by_hand.metadata.annotations = None;
    let plan = decide(&[one], std::slice::from_ref(&by_hand));
    assert!(plan.steps.is_empty(), "{plan:?}");
    assert_eq!(reasons(&plan), ["Conflicted"]);
    let plan = decide(&[], &[by_hand]);
    assert!(plan.steps.is_empty(), "{plan:?}");
}

#[test]
fn owner_keeps_its_policy_against_a_namesake() {
    let (old, new) = (
        config_map("b", "p", json!({"policy.rego": TEXT})),
        config_map("a", "p", json!({"policy.rego": TEXT})),
    );
    let policy = created(&old);
    let plan = decide(&[old, new], &[policy]);
    assert!(plan.steps.is_empty(), "{plan:?}");
    assert_eq!(reasons(&plan), ["Conflicted"]);
    assert_eq!(plan.notes[0].namespace, "a");
}

#[test]
fn missing_config_map_asks_for_a_deletion() {
    let policy = created(&config_map("ns", "p", json!({"policy.rego": TEXT})));
    let plan = decide(&[], &[policy]);
    assert!(
        matches!(&plan.steps[..], [Step::Delete { from, .. }] if from.0 == "ns"),
        "{plan:?}"
    );
}

#[test]
fn broken_config_map_leaves_the_policy_and_tells_why() {
    let good = config_map("ns", "p", json!({"policy.rego": TEXT}));
    let policy = created(&good);
    for (data, part) in [
        (json!({}), "exactly one of"),
        (
            json!({"policy.rego": TEXT, "policy.cel.yaml": ""}),
            "exactly one of",
        ),
        (
            json!({"policy.rego": TEXT, "policy.yaml": "rules: ["}),
            "policy.yaml",
        ),
        (
            json!({"policy.rego": TEXT, "policy.yaml": "module: registry://x/y"}),
            "remove the field",
        ),
        (
            json!({"policy.rego": TEXT, "policy.yaml": "rules: 1"}),
            "policy.yaml",
        ),
    ] {
        let plan = decide(
            &[config_map("ns", "p", data)],
            std::slice::from_ref(&policy),
        );
        assert!(plan.steps.is_empty(), "{plan:?}");
        assert_eq!(reasons(&plan), ["Invalid"]);
        assert!(plan.notes[0].message.contains(part), "{plan:?}");
    }
}

#[test]
fn refused_generation_is_reported_on_the_config_map() {
    let one = config_map("ns", "p", json!({"policy.rego": TEXT}));
    let mut policy = created(&one);
    let condition = json!([{
        "type": "Accepted", "status": "False", "reason": "Invalid", "message": "--> policy.rego:1:1",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    policy.status = Some(assent_api::PolicyStatus {
        conditions: serde_json::from_value(condition).unwrap(),
        ..assent_api::PolicyStatus::default()
    });
    let plan = decide(&[one], &[policy]);
    assert_eq!(reasons(&plan), ["Refused"]);
    assert_eq!(plan.notes[0].version, "generation 1");
}
