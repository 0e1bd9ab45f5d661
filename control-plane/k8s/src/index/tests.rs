use serde_json::{Value, json};

use super::*;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object must be read")
}

fn policy(name: &str, uid: &str, version: u64, generation: i64) -> DynamicObject {
    object(json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "ClusterAdmissionPolicy",
        "metadata": {
            "name": name, "uid": uid, "resourceVersion": version.to_string(), "generation": generation,
        },
        "spec": {
            "module": "registry://example.com/policy:v1",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        },
    }))
}

fn pod(name: &str, owner: &str, ready: bool) -> DynamicObject {
    object(json!({
        "metadata": {
            "name": name, "namespace": "assent-system", "uid": format!("uid-{name}"),
            "resourceVersion": "1",
            "labels": { "policies.assent.dev/policy-server": "default" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "policy-server-default",
                "uid": owner, "controller": true,
            }],
        },
        "spec": { "containers": [{ "name": "evaluator", "image": "assent.invalid/auto" }] },
        "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
    }))
}

fn set(uid: &str) -> DynamicObject {
    object(json!({
        "metadata": {
            "name": "policy-server-default", "namespace": "assent-system", "uid": uid,
            "resourceVersion": "1",
            "labels": { "policies.assent.dev/policy-server": "default" },
        },
    }))
}

fn key(name: &str) -> PolicyKey {
    PolicyKey::cluster(name)
}

#[test]
fn an_older_state_is_ignored_and_an_equal_one_is_not() {
    let mut index = Index::default();
    let touched = vec![Touched::Policy(key("a"))];
    assert_eq!(
        index.apply(Kind::ClusterPolicies, policy("a", "u", 9, 2)),
        touched
    );
    assert_eq!(
        index.apply(Kind::ClusterPolicies, policy("a", "u", 10, 3)),
        touched
    );
    // Versions are numbers, not texts.
    assert_eq!(
        index.apply(Kind::ClusterPolicies, policy("a", "u", 9, 2)),
        vec![]
    );
    assert_eq!(index.policy(&key("a")).map(|p| p.meta.generation), Some(3));
    // Another life of the name may start with a lower one, after a restored backup.
    assert_eq!(
        index.apply(Kind::ClusterPolicies, policy("a", "v", 5, 1)),
        touched
    );
    assert_eq!(index.policy(&key("a")).map(|p| p.meta.generation), Some(1));
}

#[test]
fn the_end_of_an_earlier_life_takes_nothing_away() {
    let mut index = Index::default();
    index.apply(Kind::ClusterPolicies, policy("a", "new", 9, 1));
    assert_eq!(
        index.delete(Kind::ClusterPolicies, &policy("a", "old", 8, 1)),
        vec![]
    );
    assert!(index.policy(&key("a")).is_some());
    let touched = vec![Touched::Policy(key("a"))];
    assert_eq!(
        index.delete(Kind::ClusterPolicies, &policy("a", "new", 10, 1)),
        touched
    );
    assert!(index.policy(&key("a")).is_none());
}

#[test]
fn a_fresh_list_removes_what_it_lacks_and_nothing_of_other_kinds() {
    let mut index = Index::default();
    index.apply(Kind::ClusterPolicies, policy("a", "ua", 1, 1));
    index.apply(Kind::ClusterPolicies, policy("b", "ub", 2, 1));
    index.apply(Kind::Pods, pod("p", "s", true));
    assert!(!index.is_synced(&[Kind::ClusterPolicies]));
    let touched = index.reset(Kind::ClusterPolicies, vec![policy("b", "ub", 2, 1)]);
    assert_eq!(
        touched,
        [Touched::Policy(key("a")), Touched::Policy(key("b"))]
    );
    assert!(index.is_synced(&[Kind::ClusterPolicies]));
    assert!(!index.is_synced(&[Kind::ClusterPolicies, Kind::Pods]));
    assert_eq!(index.policies().count(), 1);
    assert_eq!(index.pods("default").count(), 1);
}

#[test]
fn a_bad_object_keeps_what_is_wrong_with_it() {
    let mut index = Index::default();
    let mut bad = policy("bad", "u", 1, 4);
    bad.data["spec"]["policyServer"] = "other".into();
    bad.data["spec"]["rules"] = json!([]);
    index.apply(Kind::ClusterPolicies, bad);
    index.apply(Kind::ClusterPolicies, policy("good", "u", 1, 4));
    let bad = index.policy(&key("bad")).expect("it must be there");
    let why = bad.parsed.as_ref().expect_err("it must be refused");
    assert!(why.contains("spec.rules"), "{why}");
    assert_eq!(bad.server, "other");
    assert!(index.policy(&key("good")).is_some_and(|p| p.parsed.is_ok()));
}

#[test]
fn members_are_pods_of_the_very_stateful_set() {
    let mut index = Index::default();
    index.apply(Kind::Pods, pod("p-0", "set-1", true));
    index.apply(Kind::Pods, pod("p-1", "set-2", true));
    assert_eq!(index.members("default").count(), 0);
    index.apply(Kind::Sets, set("set-1"));
    let members: Vec<&str> = index
        .members("default")
        .map(|p| p.meta.name.as_str())
        .collect();
    assert_eq!(members, ["p-0"]);
    assert!(index.members("default").all(|p| p.ready && !p.injected));
    assert_eq!(index.members("other").count(), 0);
}

#[test]
fn a_revision_that_cannot_be_read_is_no_revision_of_anything() {
    let mut index = Index::default();
    let junk = object(json!({
        "metadata": { "name": "junk", "namespace": "x", "uid": "u", "resourceVersion": "1" },
        "spec": { "policyRef": 7 },
    }));
    assert_eq!(index.apply(Kind::Revisions, junk), vec![]);
    assert_eq!(index.all_revisions().count(), 1);
    assert_eq!(index.revisions(&key("a"), "u").count(), 0);
}
