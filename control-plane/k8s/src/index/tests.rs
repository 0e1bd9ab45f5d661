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

/// A pod that was made from a template and filled in with an evaluator.
fn made(name: &str, ready: bool, template: &str, hash: &str) -> DynamicObject {
    let mut pod = pod(name, "set", ready);
    pod.data["spec"]["containers"][0]["image"] = "example.com/evaluator:1".into();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("controller-revision-hash".into(), template.into());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("policies.assent.dev/evaluator-hash".into(), hash.into());
    pod
}

#[test]
fn a_pod_whose_evaluator_is_not_the_templates_goes_when_the_others_stand() {
    let check = |observed: i64, pods: [DynamicObject; 2], expect: Option<&str>| {
        let mut index = Index::default();
        let mut set = set("set");
        set.metadata.generation = Some(2);
        set.data = json!({
            "spec": { "template": { "metadata": { "annotations": {
                "policies.assent.dev/evaluator-hash": "new",
            } } } },
            "status": { "observedGeneration": observed, "updateRevision": "t2" },
        });
        index.apply(Kind::Sets, set);
        for pod in pods {
            index.apply(Kind::Pods, pod);
        }
        let found = index.misfit("default").map(|pod| pod.meta.name.as_str());
        assert_eq!(found, expect);
    };
    let (good, bad) = (
        made("p-0", true, "t2", "new"),
        made("p-1", true, "t2", "old"),
    );
    check(2, [good.clone(), bad.clone()], Some("p-1"));
    check(2, [good, made("p-1", true, "t2", "new")], None);
    // The StatefulSet exchanges these itself.
    let old = made("p-1", true, "t1", "old");
    check(2, [made("p-0", true, "t2", "new"), old], None);
    // What it will make of the template is not known yet.
    check(1, [made("p-0", true, "t2", "new"), bad.clone()], None);
    check(2, [made("p-0", false, "t2", "new"), bad], None);
    let both = [
        made("p-0", true, "t2", "old"),
        made("p-1", true, "t2", "old"),
    ];
    check(2, both, Some("p-0"));
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
