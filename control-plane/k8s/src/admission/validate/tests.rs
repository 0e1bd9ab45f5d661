use serde_json::json;

use super::*;
use crate::admission::{ServerView, review::Resource};

const KINDS: &[(&str, &str)] = &[
    ("AdmissionPolicy", "admissionpolicies"),
    ("ClusterAdmissionPolicy", "clusteradmissionpolicies"),
    ("PolicyServer", "policyservers"),
];

fn options() -> assent_api::Options {
    assent_api::Options {
        excluded_namespaces: vec!["kube-system".to_owned()],
        ..assent_api::Options::default()
    }
}

/// The servers `default`, which a policy protects by, and `idle`, which nobody uses.
fn known() -> AdmissionView {
    let server = |name: &str| (name.to_owned(), ServerView::default());
    let policies = (0..7)
        .map(|i| PolicyKey::cluster(&format!("p{i}")))
        .collect();
    AdmissionView {
        servers: [server("default"), server("idle")].into(),
        protecting: [("default".to_owned(), policies)].into(),
        ..AdmissionView::default()
    }
}

fn rules() -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}])
}

fn mk(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": assent_api::API_VERSION, "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    });
    if kind == "AdmissionPolicy" {
        object["metadata"]["namespace"] = json!("shop");
    }
    object
}

/// A valid cluster policy with these fields beside those that it must have.
fn policy(more: Value) -> Value {
    let mut spec = json!({"module": "registry://x/y:v1", "rules": rules()});
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    mk("ClusterAdmissionPolicy", "p", spec)
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(parent) = object.pointer_mut(parent) {
        parent[name.replace("~1", "/")] = value;
    }
    object
}

fn request(operation: Operation, old: Value, new: Value) -> Request {
    let either = if new.is_null() { &old } else { &new };
    let kind = KINDS.iter().find(|(kind, _)| either["kind"] == *kind);
    Request {
        uid: "u".to_owned(),
        resource: Resource {
            group: assent_api::GROUP.to_owned(),
            resource: kind
                .map_or("policyservers", |(_, plural)| plural)
                .to_owned(),
        },
        name: either["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        operation,
        object: new,
        old_object: old,
        ..Request::default()
    }
}

fn create(object: Value) -> Request {
    request(Operation::Create, Value::Null, object)
}

#[track_caller]
fn allowed(request: &Request, warnings: &[&str]) {
    let verdict = validate(request, Some(&known()), &options());
    assert_eq!(verdict.refusal, None);
    assert_eq!(verdict.patch, []);
    let given = &verdict.warnings;
    assert_eq!(given.len(), warnings.len(), "{given:?}");
    for (given, expect) in given.iter().zip(warnings) {
        assert!(given.contains(expect), "{given} lacks {expect}");
        assert!(given.len() <= 256, "API servers cut warnings: {given}");
    }
}

#[track_caller]
fn refused(request: &Request, code: u16, parts: &[&str]) {
    let verdict = validate(request, Some(&known()), &options());
    let refusal = verdict.refusal.expect("it must be refused");
    assert_eq!(refusal.code, code, "{}", refusal.message);
    for part in parts {
        assert!(
            refusal.message.contains(part),
            "{} lacks {part}",
            refusal.message
        );
    }
}

#[test]
fn validation_uses_the_parser() {
    allowed(&create(policy(json!({}))), &[]);
    let bad = policy(json!({"mode": "watch", "timeoutEvalSeconds": 10, "verdict": 1}));
    refused(
        &create(bad),
        422,
        &[
            "spec.mode: must be one of \"protect\", \"monitor\"",
            "spec.timeoutEvalSeconds: ",
            "; spec.verdict: unknown field; remove it",
        ],
    );
    let nested = with(policy(json!({})), "/spec/rules/0/verbs", json!(["get"]));
    refused(
        &create(nested),
        422,
        &["spec.rules[0].verbs: unknown field"],
    );
    let server = mk(
        "PolicyServer",
        "s",
        json!({"replicas": 1, "imagePullSecretes": ["x"]}),
    );
    refused(
        &create(server),
        422,
        &["spec.imagePullSecretes: unknown field"],
    );
}

#[test]
fn namespaced_policies_stay_out_of_excluded_namespaces() {
    let spec = json!({"module": "x", "rules": rules()});
    let object = mk("AdmissionPolicy", "p", spec);
    allowed(&create(object.clone()), &[]);
    let object = with(object, "/metadata/namespace", json!("kube-system"));
    refused(
        &create(object),
        422,
        &["metadata.namespace: policies never apply"],
    );
}

#[test]
fn policy_cannot_change_its_server() {
    let (old, new) = (policy(json!({})), policy(json!({"policyServer": "idle"})));
    let update = request(Operation::Update, old.clone(), new.clone());
    refused(
        &update,
        422,
        &["spec.policyServer: is immutable: \"default\" can't become \"idle\""],
    );
    let was_broken = with(old.clone(), "/spec/mode", json!("watch"));
    allowed(&request(Operation::Update, was_broken, new), &[]);
    let monitor = policy(json!({"mode": "monitor"}));
    allowed(
        &request(Operation::Update, monitor.clone(), old.clone()),
        &[],
    );
    allowed(&request(Operation::Update, old, monitor), &[]);
}

#[test]
fn tenants_must_not_change_what_decides_about_rights() {
    let rules = |resource: &str, group: &str| json!([{"apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": [resource]}]);
    let policy = |resource: &str, group: &str, mutating: bool| {
        let spec = json!({"module": "registry://x/y:v1", "rules": rules(resource, group), "mutating": mutating});
        create(mk("AdmissionPolicy", "p", spec))
    };
    const RBAC: &str = "rbac.authorization.k8s.io";
    for (resource, group) in [
        ("rolebindings", RBAC),
        ("*", RBAC),
        ("*", ""),
        ("*/token", ""),
    ] {
        let verdict = validate(&policy(resource, group, true), None, &options());
        let message = verdict.refusal.expect("the policy must be refused").message;
        let path = "spec.rules[0].resources[0]: ";
        assert!(message.starts_with(path), "{message}");
        assert!(message.contains("must not change"), "{message}");
        allowed(&policy(resource, group, false), &[]);
    }
    allowed(&policy("pods", "", true), &[]);
}

#[test]
fn risky_policies_get_warnings() {
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]);
    let star = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    let core =
        json!([{"apiGroups": [""], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    for (more, warnings) in [
        (json!({"rules": everything}), vec!["spec.rules: "]),
        (json!({"rules": star}), vec!["spec.rules: "]),
        (json!({"rules": core}), vec![]),
        (
            json!({"rules": everything, "failurePolicy": "Ignore"}),
            vec![],
        ),
        (
            json!({"mutating": true, "failurePolicy": "Ignore"}),
            vec!["spec.failurePolicy: "],
        ),
        (json!({"mutating": true}), vec![]),
        (json!({"timeoutSeconds": 16}), vec!["may wait for 16 s"]),
        (json!({"timeoutSeconds": 15}), vec![]),
        (
            json!({"policyServer": "other"}),
            vec!["there is no PolicyServer \"other\" yet"],
        ),
        (
            json!({"module": "http://x/y.wasm", "timeoutSeconds": 30}),
            vec!["30 s", "http:// is not"],
        ),
        (
            json!({"backgroundAudit": true}),
            vec!["spec.backgroundAudit: has no effect"],
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod"}]}),
            vec![],
        ),
    ] {
        allowed(&create(policy(more)), &warnings);
    }
    // Nobody knows yet which servers there are.
    let policy = create(policy(json!({"policyServer": "other"})));
    assert_eq!(validate(&policy, None, &options()), Verdict::allow());
}

#[test]
fn metadata_of_an_invalid_object_can_be_changed() {
    let bad = policy(json!({"mode": "watch"}));
    let freed = with(bad.clone(), "/metadata/finalizers", json!([]));
    allowed(
        &request(Operation::Update, bad.clone(), freed),
        &["this object is not valid and does not take effect: spec.mode: "],
    );
    let worse = with(bad.clone(), "/spec/mutating", json!(true));
    refused(
        &request(Operation::Update, bad.clone(), worse),
        422,
        &["spec.mode"],
    );
    let rollback = json!({"policies.assent.dev/rollback-to": "yesterday"});
    let good = policy(json!({}));
    let back = with(good.clone(), "/metadata/annotations", rollback.clone());
    let update = request(Operation::Update, good, back.clone());
    refused(&update, 422, &["must be \"previous\" or the number"]);
    // The annotation was there before.
    let labelled = with(back.clone(), "/metadata/labels", json!({"a": "b"}));
    allowed(&request(Operation::Update, back, labelled), &["not valid"]);
    // A risk that was there before is not told again.
    let risky = policy(json!({"timeoutSeconds": 30}));
    let labelled = with(risky.clone(), "/metadata/labels", json!({"a": "b"}));
    allowed(&request(Operation::Update, risky, labelled), &[]);
}

#[test]
fn objects_being_deleted_are_not_blocked() {
    let stamp = json!("2026-01-01T00:00:00Z");
    for object in [
        policy(json!({"mode": "watch"})),
        mk("PolicyServer", "default", json!({"replicas": 0})),
    ] {
        let leaving = with(object.clone(), "/metadata/deletionTimestamp", stamp.clone());
        allowed(&request(Operation::Update, object, leaving.clone()), &[]);
        allowed(&request(Operation::Delete, leaving, Value::Null), &[]);
    }
}

#[test]
fn default_server_cannot_be_deleted() {
    let server = |name: &str| mk("PolicyServer", name, json!({}));
    let delete = |old| request(Operation::Delete, old, Value::Null);
    refused(
        &delete(server("default")),
        403,
        &[
            "belongs to the installation",
            "policies.assent.dev/allow-delete=true",
        ],
    );
    let allow = |text: &str| json!({ALLOW_DELETE_ANNOTATION: text});
    let off = with(server("default"), "/metadata/annotations", allow("false"));
    refused(&delete(off), 403, &["belongs to the installation"]);
    let on = with(server("default"), "/metadata/annotations", allow("true"));
    allowed(&delete(on), &["no longer enforced: cluster/p0"]);
    allowed(&delete(server("idle")), &[]);
    allowed(&delete(policy(json!({}))), &[]);
    // A delete of many names none of them.
    let mut many = delete(server("default"));
    many.name = String::new();
    refused(&many, 403, &["\"default\" belongs"]);
}

#[test]
fn servers_with_protecting_policies_keep_a_replica() {
    let server =
        |name: &str, replicas: i64| mk("PolicyServer", name, json!({"replicas": replicas}));
    let update =
        |name: &str, old, new| request(Operation::Update, server(name, old), server(name, new));
    refused(
        &update("default", 3, 0),
        403,
        &[
            "\"default\" can't be scaled to 0",
            "p0, ",
            "and 2 more",
            "mode to monitor",
        ],
    );
    allowed(&update("default", 3, 1), &[]);
    allowed(&update("idle", 3, 0), &[]);
    allowed(
        &create(server("default", 0)),
        &["spec.replicas: policies wait"],
    );
    allowed(&create(server("idle", 0)), &[]);
    let image = with(server("default", 0), "/spec/image", json!("x"));
    let still = request(Operation::Update, server("default", 0), image);
    allowed(&still, &["spec.replicas: policies wait"]);
    let unknown = validate(&update("default", 3, 0), None, &options());
    assert_eq!(unknown.refusal.map(|refusal| refusal.code), Some(503));
}

#[test]
fn scale_subresource_is_validated_too() {
    let scale = |name: &str, old: Value, new: Value| {
        let scale = |spec| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}, "spec": spec});
        Request {
            sub_resource: "scale".to_owned(),
            ..request(Operation::Update, scale(old), scale(new))
        }
    };
    refused(
        &scale("default", json!({"replicas": 3}), json!({"replicas": 0})),
        403,
        &["scaled to 0"],
    );
    refused(
        &scale("default", json!({"replicas": 3}), json!({})),
        403,
        &["scaled to 0"],
    );
    allowed(
        &scale("default", json!({"replicas": 3}), json!({"replicas": 2})),
        &[],
    );
    allowed(&scale("default", json!({}), json!({})), &[]);
    allowed(&scale("idle", json!({"replicas": 3}), json!({})), &[]);
}

#[test]
fn revisions_are_written_by_nobody_else() {
    let resource = Resource {
        group: assent_api::GROUP.to_owned(),
        resource: "policyrevisions".to_owned(),
    };
    for operation in [Operation::Create, Operation::Update, Operation::Delete] {
        for sub_resource in ["", "status"] {
            let request = Request {
                operation,
                resource: resource.clone(),
                sub_resource: sub_resource.to_owned(),
                ..Request::default()
            };
            let refusal = validate(&request, None, &options())
                .refusal
                .expect("it must be refused");
            assert_eq!(refusal.code, 403);
        }
    }
}
