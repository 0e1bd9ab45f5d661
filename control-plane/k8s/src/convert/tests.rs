#![allow(clippy::unwrap_used)]

use assent_controller::{Objects, objects::Affected};
use assent_core::PolicyKey;
use serde_json::{Value, json};

use super::*;

/// A mirror that is filled with objects of the API server.
#[derive(Default)]
struct Mirror(Objects<DynamicObject>);

// === impl Mirror ===

impl Mirror {
    fn upsert(&mut self, kind: Kind, object: DynamicObject) -> Vec<Affected> {
        self.apply(kind, What::Applied(Box::new(object)))
    }

    fn delete(&mut self, kind: Kind, object: &DynamicObject) -> Vec<Affected> {
        self.apply(kind, What::Deleted(Box::new(object.clone())))
    }

    fn reset(&mut self, kind: Kind, objects: Vec<DynamicObject>) -> Vec<Affected> {
        self.apply(kind, What::Listed(objects))
    }

    fn apply(&mut self, kind: Kind, what: What) -> Vec<Affected> {
        let change = mk_converter().change(watch::Change { kind, what });
        change.map_or_else(Vec::new, |change| self.0.apply(change))
    }
}

impl std::ops::Deref for Mirror {
    type Target = Objects<DynamicObject>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn mk_converter() -> Converter {
    Converter::new("assent-system", parse::Options::default())
}

fn mk_object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object must be read")
}

fn mk_policy(name: &str, uid: &str, version: u64, generation: i64) -> DynamicObject {
    mk_object(json!({
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

fn mk_pod(name: &str, owner: &str, ready: bool) -> DynamicObject {
    mk_object(json!({
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

fn mk_set(uid: &str) -> DynamicObject {
    mk_object(json!({
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
fn mirror_ignores_older_state_but_not_equal_state() {
    let mut mirror = Mirror::default();
    let affected = vec![Affected::Policy(key("a"))];
    assert_eq!(
        mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "u", 9, 2)),
        affected
    );
    assert_eq!(
        mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "u", 10, 3)),
        affected
    );
    // Versions are numbers, not texts.
    assert_eq!(
        mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "u", 9, 2)),
        vec![]
    );
    assert_eq!(mirror.policy(&key("a")).map(|p| p.meta.generation), Some(3));
    // Another object of that name may have a lower one, after a restored backup.
    assert_eq!(
        mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "v", 5, 1)),
        affected
    );
    assert_eq!(mirror.policy(&key("a")).map(|p| p.meta.generation), Some(1));
}

#[test]
fn deletion_of_an_earlier_object_keeps_the_later_one() {
    let mut mirror = Mirror::default();
    mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "new", 9, 1));
    assert_eq!(
        mirror.delete(Kind::ClusterPolicies, &mk_policy("a", "old", 8, 1)),
        vec![]
    );
    assert!(mirror.policy(&key("a")).is_some());
    let affected = vec![Affected::Policy(key("a"))];
    assert_eq!(
        mirror.delete(Kind::ClusterPolicies, &mk_policy("a", "new", 10, 1)),
        affected
    );
    assert!(mirror.policy(&key("a")).is_none());
}

#[test]
fn list_removes_missing_objects_of_its_kind_only() {
    let mut mirror = Mirror::default();
    mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "ua", 1, 1));
    mirror.upsert(Kind::ClusterPolicies, mk_policy("b", "ub", 2, 1));
    mirror.upsert(Kind::Pods, mk_pod("p", "s", true));
    assert!(!mirror.is_listed(&[Kind::ClusterPolicies]));
    let affected = mirror.reset(Kind::ClusterPolicies, vec![mk_policy("b", "ub", 2, 1)]);
    assert_eq!(
        affected,
        [Affected::Policy(key("a")), Affected::Policy(key("b"))]
    );
    assert!(mirror.is_listed(&[Kind::ClusterPolicies]));
    assert!(!mirror.is_listed(&[Kind::ClusterPolicies, Kind::Pods]));
    assert_eq!(mirror.policies().count(), 1);
    assert_eq!(mirror.pods("default").count(), 1);
}

#[test]
fn malformed_policy_keeps_its_error() {
    let mut mirror = Mirror::default();
    let mut bad = mk_policy("bad", "u", 1, 4);
    bad.data["spec"]["policyServer"] = "other".into();
    bad.data["spec"]["rules"] = json!([]);
    mirror.upsert(Kind::ClusterPolicies, bad);
    mirror.upsert(Kind::ClusterPolicies, mk_policy("good", "u", 1, 4));
    let bad = mirror.policy(&key("bad")).expect("it must be there");
    let why = bad.parsed.as_ref().expect_err("it must be refused");
    assert!(why.contains("spec.rules"), "{why}");
    assert_eq!(bad.server, "other");
    assert!(
        mirror
            .policy(&key("good"))
            .is_some_and(|p| p.parsed.is_ok())
    );
}

#[test]
fn members_are_owned_by_the_current_stateful_set() {
    let mut mirror = Mirror::default();
    mirror.upsert(Kind::Pods, mk_pod("p-0", "set-1", true));
    mirror.upsert(Kind::Pods, mk_pod("p-1", "set-2", true));
    assert_eq!(mirror.members("default").count(), 0);
    mirror.upsert(Kind::Sets, mk_set("set-1"));
    let members: Vec<&str> = mirror
        .members("default")
        .map(|p| p.meta.name.as_str())
        .collect();
    assert_eq!(members, ["p-0"]);
    assert!(mirror.members("default").all(|p| p.ready && !p.injected));
    assert_eq!(mirror.members("other").count(), 0);
}

/// A pod that was created from a template and got an evaluator.
fn mk_injected_pod(name: &str, ready: bool, template: &str, hash: &str) -> DynamicObject {
    let mut pod = mk_pod(name, "set", ready);
    pod.data["spec"]["containers"][0]["image"] = "example.com/evaluator:1".into();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("controller-revision-hash".into(), template.into());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("policies.assent.dev/evaluator-hash".into(), hash.into());
    pod
}

#[test]
fn outdated_pod_is_replaced_when_others_are_ready() {
    let check = |observed: i64, pods: [DynamicObject; 2], expect: Option<&str>| {
        let mut mirror = Mirror::default();
        let mut set = mk_set("set");
        set.metadata.generation = Some(2);
        set.data = json!({
            "spec": { "template": { "metadata": { "annotations": {
                "policies.assent.dev/evaluator-hash": "new",
            } } } },
            "status": { "observedGeneration": observed, "updateRevision": "t2" },
        });
        mirror.upsert(Kind::Sets, set);
        for pod in pods {
            mirror.upsert(Kind::Pods, pod);
        }
        let found = mirror
            .outdated_pod("default")
            .map(|pod| pod.meta.name.as_str());
        assert_eq!(found, expect);
    };
    let (good, bad) = (
        mk_injected_pod("p-0", true, "t2", "new"),
        mk_injected_pod("p-1", true, "t2", "old"),
    );
    check(2, [good.clone(), bad.clone()], Some("p-1"));
    check(2, [good, mk_injected_pod("p-1", true, "t2", "new")], None);
    // The StatefulSet exchanges these itself.
    let old = mk_injected_pod("p-1", true, "t1", "old");
    check(2, [mk_injected_pod("p-0", true, "t2", "new"), old], None);
    // What it will make of the template is not known yet.
    check(
        1,
        [mk_injected_pod("p-0", true, "t2", "new"), bad.clone()],
        None,
    );
    check(2, [mk_injected_pod("p-0", false, "t2", "new"), bad], None);
    let both = [
        mk_injected_pod("p-0", true, "t2", "old"),
        mk_injected_pod("p-1", true, "t2", "old"),
    ];
    check(2, both, Some("p-0"));
}

#[test]
fn unreadable_revision_belongs_to_no_policy() {
    let mut mirror = Mirror::default();
    let junk = mk_object(json!({
        "metadata": { "name": "junk", "namespace": "x", "uid": "u", "resourceVersion": "1" },
        "spec": { "policyRef": 7 },
    }));
    assert_eq!(mirror.upsert(Kind::Revisions, junk), vec![]);
    assert_eq!(mirror.all_revisions().count(), 0);
}

#[test]
fn policies_are_found_by_their_server() {
    let mut mirror = Mirror::default();
    let on = |name: &str, version, server: &str| {
        let mut policy = mk_policy(name, "u", version, 1);
        policy.data["spec"]["policyServer"] = server.into();
        policy
    };
    mirror.upsert(Kind::ClusterPolicies, on("a", 1, "x"));
    mirror.upsert(Kind::ClusterPolicies, on("b", 1, "x"));
    mirror.upsert(Kind::ClusterPolicies, on("b", 2, "y"));
    let of = |mirror: &Mirror, server: &str| -> Vec<String> {
        let found = mirror.policies_of(server);
        found.map(|key| key.name().to_owned()).collect()
    };
    assert_eq!(of(&mirror, "x"), ["a"]);
    assert_eq!(of(&mirror, "y"), ["b"]);
    mirror.reset(Kind::ClusterPolicies, Vec::new());
    assert!(of(&mirror, "x").is_empty() && of(&mirror, "y").is_empty());
}

#[test]
fn deleted_stateful_set_affects_its_server() {
    let mut mirror = Mirror::default();
    mirror.upsert(Kind::Sets, mk_set("s-1"));
    let other = mirror.delete(Kind::Sets, &mk_set("s-2"));
    assert_eq!(other, []);
    let affected = mirror.delete(Kind::Sets, &mk_set("s-1"));
    // Its pods no longer count as members of the server.
    let server = "default".to_owned();
    assert_eq!(
        affected,
        [Affected::Workload(server.clone()), Affected::Pods(server)]
    );
    assert!(mirror.set("default").is_none());
}

/// A stored revision of generation 3 of the cluster-wide policy "a".
fn mk_revision(namespace: &str) -> DynamicObject {
    mk_object(json!({
        "metadata": {
            "name": "a-3-u", "namespace": namespace, "uid": format!("in-{namespace}"),
            "resourceVersion": "1",
            "ownerReferences": [{
                "apiVersion": API_VERSION, "kind": "ClusterAdmissionPolicy",
                "name": "a", "uid": "u", "controller": true,
            }],
        },
        "spec": {
            "policyRef": { "kind": "ClusterAdmissionPolicy", "name": "a", "uid": "u" },
            "generation": 3,
            "moduleUrl": "registry://example.com/policy@sha256:00",
            "moduleDigest": format!("sha256:{}", "0".repeat(64)),
            "moduleSize": 7,
            "abi": "wapc",
            "contentDigest": format!("sha256:{}", "0".repeat(64)),
            "settings": "{}",
            "hostCapabilities": [],
            "timeoutMs": 1,
            "memoryBytes": 1,
            "policy": {},
        },
        "status": { "phase": "Active" },
    }))
}

/// A tenant who may write PolicyRevisions in his own namespace must not be able to change what
/// a cluster-wide policy enforces.
#[test]
fn forged_revision_in_a_tenants_namespace_is_ignored() {
    let mut mirror = Mirror::default();
    mirror.upsert(Kind::ClusterPolicies, mk_policy("a", "u", 9, 3));
    for namespace in ["aaa-tenant", "zzz-tenant"] {
        assert_eq!(mirror.upsert(Kind::Revisions, mk_revision(namespace)), []);
    }
    let listed = ["aaa-tenant", "assent-system", "zzz-tenant"].map(mk_revision);
    mirror.reset(Kind::Revisions, listed.into());
    let found: Vec<_> = mirror.revisions(&key("a"), "u").collect();
    let found: Vec<&str> = found.iter().map(|r| r.meta.namespace.as_str()).collect();
    assert_eq!(found, ["assent-system"]);
    assert_eq!(mirror.all_revisions().count(), 1);
}

#[test]
fn revision_without_its_owner_is_ignored() {
    let mut mirror = Mirror::default();
    let mut revision = mk_revision("assent-system");
    revision.metadata.owner_references = None;
    assert_eq!(mirror.upsert(Kind::Revisions, revision), []);
    assert_eq!(mirror.all_revisions().count(), 0);
    mirror.upsert(Kind::Revisions, mk_revision("assent-system"));
    let found = mirror.revisions(&key("a"), "u").next().unwrap();
    assert_eq!(found.phase, Phase::Active);
}

#[test]
fn statuses_are_read_as_they_are_written() {
    let mut policy = mk_policy("a", "u", 9, 3);
    policy.data["status"] = json!({ "observedGeneration": 3, "conditions": [] });
    let Some(Object::Policy(policy)) = mk_converter().object(Kind::ClusterPolicies, policy) else {
        panic!("a policy must be read");
    };
    assert_eq!(policy.status.unwrap().observed_generation, Some(3));
    let mut unreadable = mk_policy("a", "u", 9, 3);
    unreadable.data["status"] = json!({ "conditions": 7 });
    let Some(Object::Policy(policy)) = mk_converter().object(Kind::ClusterPolicies, unreadable)
    else {
        panic!("a policy must be read");
    };
    assert!(policy.status.is_none() && policy.parsed.is_ok());
}

#[test]
fn pod_has_the_identity_that_its_token_proves() {
    let Some(Object::Pod(pod)) = mk_converter().object(Kind::Pods, mk_pod("p-0", "s", true)) else {
        panic!("a pod must be read");
    };
    assert_eq!(
        pod.identity,
        pod_identity("assent-system", "p-0", "uid-p-0")
    );
}
