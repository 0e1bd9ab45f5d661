#![allow(clippy::unwrap_used)]

use super::*;

const THEN: &str = "2026-01-02T03:04:05Z";

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "",
        "observedGeneration": 7, "lastTransitionTime": THEN,
    })
}

#[test]
fn uninstalled_policy_reports_no_enforcement() {
    let status = json!({
        "observedGeneration": 7,
        "active": {"generation": 7, "revision": "7-0011aabb"},
        "rollout": {"desired": 3, "applied": 3, "rejected": 0, "behind": 0, "disconnected": 0},
        "replicas": [{"name": "policy-server-default-0", "generation": 7}],
        "replicasOmitted": 2,
        "conditions": [
            condition("Accepted", "True", "Accepted"),
            condition("Programmed", "False", "Reconciling"),
            condition("Enforced", "True", "Enforced"),
        ],
    });
    let now = now();
    let left = retracted(&status, now.clone()).unwrap();

    let conditions = left.conditions.iter();
    let told: Vec<_> = conditions
        .map(|c| {
            (
                &*c.type_,
                &*c.status,
                &*c.reason,
                c.last_transition_time == now,
            )
        })
        .collect();
    let expect = [
        ("Accepted", "True", "Accepted", false),
        ("Programmed", "False", "Uninstalled", false),
        ("Enforced", "False", "Uninstalled", true),
    ];
    assert_eq!(told, expect);
    assert_eq!(left.observed_generation, Some(7));
    assert_eq!((left.active, left.rollout), (None, None));
    assert!(left.replicas.is_empty());
    assert_eq!(left.replicas_omitted, 0);
}

#[test]
fn policy_without_status_is_left_alone() {
    assert_eq!(retracted(&Value::Null, now()), None);
}
