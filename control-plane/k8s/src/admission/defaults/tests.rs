#![allow(clippy::unwrap_used)]

use super::*;
use crate::admission::review::Resource;

fn object(metadata: Value, spec: Value) -> Value {
    json!({
        "apiVersion": assent_api::API_VERSION, "kind": "AdmissionPolicy",
        "metadata": metadata, "spec": spec,
    })
}

fn request(object: Value) -> Request {
    Request {
        resource: Resource {
            group: assent_api::GROUP.to_owned(),
            resource: "admissionpolicies".to_owned(),
        },
        object,
        ..Request::default()
    }
}

/// The object as it is after the patch, which a second time must be empty.
#[track_caller]
fn applied(object: &Value) -> Value {
    let options = assent_api::Options::default();
    let patch = defaults(&request(object.clone()), &options);
    let mut after = object.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    assert_eq!(defaults(&request(after.clone()), &options), [], "{after}");
    after
}

fn rules() -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}])
}

#[test]
fn every_default_is_filled_in() {
    let spec = json!({"module": "x", "rules": rules(), "mode": "monitor"});
    let after = applied(&object(
        json!({"generateName": "p-", "namespace": "a"}),
        spec,
    ));
    assert_eq!(after["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(after["metadata"].get("name").is_none());
    let spec = &after["spec"];
    assert_eq!(spec["policyServer"], "default");
    assert_eq!(spec["timeoutSeconds"], 10);
    assert_eq!(spec["settings"], json!({}));
    assert_eq!(spec["mode"], "monitor");
    assert_eq!(spec["rules"], rules(), "what is written stays as it is");
    assert!(spec.get("backgroundAudit").is_none(), "it has no effect");
}

#[test]
fn servers_get_defaults() {
    let server = json!({
        "apiVersion": assent_api::API_VERSION, "kind": "PolicyServer",
        "metadata": {"name": "s", "finalizers": ["other/one"]}, "spec": {},
    });
    let after = applied(&server);
    assert_eq!(
        after["metadata"]["finalizers"],
        json!(["other/one", FINALIZER])
    );
    assert_eq!(after["spec"]["replicas"], 1);
    assert_eq!(after["spec"]["webhookMode"], "PerPolicy");
}

#[test]
fn deleted_and_invalid_objects_get_no_defaults() {
    let options = assent_api::Options::default();
    let leaving = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let leaving = request(object(leaving, json!({"module": "x", "rules": rules()})));
    assert_eq!(defaults(&leaving, &options), []);
    let metadata = json!({"name": "p", "namespace": "a", "finalizers": [FINALIZER]});
    let wrong = request(object(metadata, json!({"module": 1})));
    assert_eq!(defaults(&wrong, &options), []);
    let deleted = Request {
        operation: Operation::Delete,
        ..request(Value::Null)
    };
    assert_eq!(defaults(&deleted, &options), []);
}
