#![allow(clippy::unwrap_used)]

use std::time::SystemTime;

use assent_context::{Cluster, SyncState};
use assent_core::PolicyKey;
use serde_json::{Value, json};

use super::*;
use crate::context::live::FixedReads;

const WITHIN: Duration = Duration::from_secs(1);

fn resource(api_version: &str, kind: &str, fields: &[&str]) -> ContextResource {
    ContextResource {
        api_version: api_version.into(),
        kind: kind.into(),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
        ..ContextResource::default()
    }
}

fn ingress(namespace: &str, name: &str, host: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"rules": [{"host": host}]},
        "status": {"x": 1},
    })
}

/// Three ingresses with hosts only, and a node.
fn cluster() -> Cluster {
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"x": 1}});
    Cluster::new([
        ingress("b", "y", "h2"),
        ingress("a", "x", "h1"),
        ingress("a", "z", "h1"),
        node,
    ])
    .unwrap()
}

fn declared() -> Vec<ContextResource> {
    vec![
        resource("networking.k8s.io/v1", "Ingress", &["spec.rules.host"]),
        resource("v1", "Node", &[]),
    ]
}

fn data() -> Arc<ContextData> {
    let snapshots = declared()
        .iter()
        .map(|one| cluster().collection(one).unwrap().snapshot())
        .collect::<Vec<_>>();
    Arc::new(ContextData::fixed(snapshots))
}

fn kubernetes(policy: PolicyKey, capabilities: &[&str], data: &Arc<ContextData>) -> Kubernetes {
    let live: Arc<dyn LiveReads> = Arc::new(FixedReads {
        data: data.clone(),
        allow_all_access: true,
    });
    let subject = Subject {
        policy,
        revision: Arc::default(),
        declared: declared(),
        capabilities: capabilities.iter().map(|&one| one.to_owned()).collect(),
    };
    Kubernetes::new(subject, data, &live)
}

fn call(operation: &str, payload: Value) -> Result<String, String> {
    let host = kubernetes(PolicyKey::cluster("p"), &["kubernetes/*"], &data());
    ask(&host, operation, payload)
}

fn ask(host: &Kubernetes, operation: &str, payload: Value) -> Result<String, String> {
    let payload = payload.to_string();
    match host.call(operation, payload.as_bytes(), WITHIN) {
        Ok(reply) => Ok(String::from_utf8(reply).unwrap()),
        Err(error) => Err(error.message().clone()),
    }
}

/// As the Rust SDK writes it: absent options are null.
fn list(changes: Value) -> Value {
    let mut request = json!({
        "api_version": "networking.k8s.io/v1", "kind": "Ingress",
        "label_selector": null, "field_selector": null, "field_masks": null,
    });
    for (key, value) in changes.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

fn names(reply: &str) -> Vec<String> {
    let reply: Value = serde_json::from_str(reply).unwrap();
    let items = reply["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn lists_are_as_the_sdks_read_them() {
    let reply = call(LIST_NAMESPACE, list(json!({"namespace": "b"}))).unwrap();
    assert_eq!(
        reply,
        r#"{"apiVersion":"networking.k8s.io/v1","kind":"IngressList","metadata":{},"items":[{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"labels":{"app":"y"},"name":"y","namespace":"b"},"spec":{"rules":[{"host":"h2"}]}}]}"#
    );
    // The Go SDK leaves options out.
    let go = json!({"api_version": "networking.k8s.io/v1", "kind": "Ingress"});
    assert_eq!(names(&call(LIST_ALL, go).unwrap()), ["x", "z", "y"]);
    let none = call(LIST_NAMESPACE, list(json!({"namespace": "c"}))).unwrap();
    assert_eq!(names(&none), [""; 0]);
}

#[test]
fn selectors_and_masks_narrow_lists() {
    let select = |changes| names(&call(LIST_ALL, list(changes)).unwrap());
    assert_eq!(
        select(json!({"label_selector": "app in (x,y)"})),
        ["x", "y"]
    );
    assert_eq!(
        select(json!({"field_selector": "spec.rules.host=h1"})),
        ["x", "z"]
    );
    assert_eq!(
        select(json!({"field_selector": "spec.rules.host=h1,metadata.name!=x"})),
        ["z"]
    );
    let masked = call(LIST_ALL, list(json!({"field_masks": ["metadata.name"]}))).unwrap();
    assert!(!masked.contains("host"), "{masked}");
}

#[test]
fn mistakes_are_errors_that_say_what_to_change() {
    for (operation, payload, expect) in [
        (
            LIST_ALL,
            list(json!({"kind": "Service"})),
            "Service (networking.k8s.io/v1) is not declared: add it to spec.contextAwareResources",
        ),
        (
            LIST_ALL,
            list(json!({"field_selector": "status.x=1"})),
            "status.x is not replicated; add it to fields",
        ),
        (
            LIST_ALL,
            list(json!({"field_masks": ["spec"]})),
            "spec is not replicated; add it to fields",
        ),
        (
            LIST_ALL,
            list(json!({"label_selector": "a in"})),
            "label_selector: the selector \"a in\"",
        ),
        (
            LIST_ALL,
            list(json!({"field_selector": "a"})),
            "field_selector: ",
        ),
        (
            LIST_ALL,
            list(json!({"limit": 5})),
            "the option \"limit\" is not known",
        ),
        (
            LIST_NAMESPACE,
            list(json!({})),
            "the request has no namespace",
        ),
        (
            LIST_NAMESPACE,
            json!({"api_version": "v1", "kind": "Node", "namespace": "a"}),
            "is not namespaced",
        ),
        (
            GET,
            json!({"api_version": "v1", "kind": "Node", "name": "m"}),
            "Node (v1) \"m\" not found",
        ),
        (GET, list(json!({"name": "x"})), "needs a namespace"),
        (GET, json!({"kind": "Node"}), "failed to read the request"),
        (CAN_I, json!({}), "failed to read the request"),
    ] {
        let error = call(operation, payload.clone()).unwrap_err();
        assert!(error.contains(expect), "{operation} {payload}: {error}");
    }
}

#[test]
fn objects_are_found_by_name() {
    let request = json!({
        "api_version": "v1", "kind": "Node", "name": "n", "namespace": null, "disable_cache": false, "field_masks": null,
    });
    let expect = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"x":1}}"#;
    assert_eq!(call(GET, request).unwrap(), expect);
    let live = json!({"api_version": "v1", "kind": "Node", "name": "n", "disable_cache": true});
    let host = kubernetes(PolicyKey::cluster("p"), &[], &data());
    assert!(host.waits(GET, live.to_string().as_bytes()));
    assert_eq!(ask(&host, GET, live).unwrap(), expect);
}

#[test]
fn access_is_asked_in_both_spellings() {
    let attributes = json!({"namespace": "a", "resource": "pods", "verb": "create"});
    for key in ["resource_attributes", "resourceAttributes"] {
        let request = json!({"subject_access_review": {"groups": null, key: attributes, "user": "u"}, "disable_cache": false});
        assert_eq!(call(CAN_I, request).unwrap(), r#"{"allowed":true}"#);
    }
}

#[test]
fn namespaced_policies_read_their_own_namespace() {
    let host = kubernetes(PolicyKey::namespaced("a", "p"), &["kubernetes/*"], &data());
    assert_eq!(
        names(&ask(&host, LIST_ALL, list(json!({}))).unwrap()),
        ["x", "z"]
    );
    let error = ask(&host, LIST_NAMESPACE, list(json!({"namespace": "b"}))).unwrap_err();
    assert!(
        error.contains("a policy of namespace a can't read namespace b"),
        "{error}"
    );
    let error = ask(&host, GET, list(json!({"namespace": "b", "name": "y"}))).unwrap_err();
    assert!(error.contains("can't read namespace b"), "{error}");
    let node = json!({"api_version": "v1", "kind": "Node", "name": "n"});
    assert!(
        ask(&host, GET, node)
            .unwrap_err()
            .contains("not namespaced")
    );
    // A pattern does not grant access reviews to tenants.
    let review = json!({"subject_access_review": {"resource_attributes": {"resource": "pods", "verb": "get"}, "user": "u"}});
    let error = ask(&host, CAN_I, review.clone()).unwrap_err();
    assert!(error.contains("lists exactly that"), "{error}");
    let exact = kubernetes(
        PolicyKey::namespaced("a", "p"),
        &["kubernetes/can_i"],
        &data(),
    );
    assert!(ask(&exact, CAN_I, review).is_ok());
}

#[test]
fn one_evaluation_sees_one_state() {
    let data = data();
    let host = kubernetes(PolicyKey::cluster("p"), &[], &data);
    let pinned = host.pinned().unwrap();
    let mut changed = Cluster::new([ingress("a", "new", "h")])
        .unwrap()
        .collection(&declared()[0])
        .unwrap();
    publish(
        &data,
        Some(changed.snapshot()),
        SyncState::Synced,
        Duration::ZERO,
    );
    let payload = list(json!({})).to_string();
    let before = pinned.call(LIST_ALL, payload.as_bytes(), WITHIN).unwrap();
    assert_eq!(names(&String::from_utf8(before).unwrap()), ["x", "z", "y"]);
    assert_eq!(
        names(&ask(&host, LIST_ALL, list(json!({}))).unwrap()),
        ["new"]
    );
}

fn publish(data: &ContextData, snapshot: Option<Snapshot>, state: SyncState, age: Duration) {
    let spec = cluster().collection(&declared()[0]).unwrap().spec().clone();
    data.publish(View {
        snapshot,
        spec,
        state,
        detail: "why".into(),
        age,
        received: Instant::now(),
        observed_at: SystemTime::UNIX_EPOCH,
    });
}

#[test]
fn missing_and_old_collections_are_errors_and_never_empty() {
    let data = Arc::new(ContextData::default());
    let host = kubernetes(PolicyKey::cluster("p"), &[], &data);
    let error = || ask(&host, LIST_ALL, list(json!({}))).unwrap_err();
    assert!(error().contains("is not replicated yet"));
    publish(&data, None, SyncState::Syncing, Duration::ZERO);
    assert!(error().contains("is syncing (why)"));
    let mut collection = cluster().collection(&declared()[0]).unwrap();
    publish(
        &data,
        Some(collection.snapshot()),
        SyncState::Stale,
        Duration::from_secs(100),
    );
    assert_eq!(
        names(&ask(&host, LIST_ALL, list(json!({}))).unwrap()).len(),
        3
    );
    data.set_max_staleness(Some(Duration::from_secs(10)));
    let payload = list(json!({})).to_string();
    let failed = host.call(LIST_ALL, payload.as_bytes(), WITHIN).unwrap_err();
    let CallError::Fatal(why) = failed else {
        panic!("{failed:?}")
    };
    assert!(
        why.contains("is 100 s old (why), and the PolicyServer allows 10 s"),
        "{why}"
    );
    // The old state stays as old as it is.
    publish(&data, None, SyncState::Stale, Duration::ZERO);
    assert!(error().contains("is 100 s old"));
    publish(&data, None, SyncState::Absent, Duration::ZERO);
    assert!(error().contains("the API server does not serve Ingress"));
}
