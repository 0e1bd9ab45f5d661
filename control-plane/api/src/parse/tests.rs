#![allow(clippy::unwrap_used)]

mod policies;
mod requests;
mod servers;

use serde_json::json;

use super::*;

fn standalone() -> Options {
    Options {
        standalone: true,
        excluded_namespaces: vec!["kube-system".into()],
        ..Options::default()
    }
}

fn rule() -> Value {
    json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]})
}

fn mk_policy(kind: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": "p"});
    if kind == "AdmissionPolicy" {
        metadata["namespace"] = json!("team");
    }
    let mut base = json!({"module": "example.com/p:v1", "rules": [rule()]});
    merge(&mut base, spec);
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": base})
}

/// Puts fields into an object; null removes one.
fn merge(base: &mut Value, with: Value) {
    for (name, value) in with.as_object().cloned().unwrap_or_default() {
        match value {
            Value::Null => base.as_object_mut().unwrap().remove(&name),
            value => base.as_object_mut().unwrap().insert(name, value),
        };
    }
}

#[track_caller]
fn accept(kind: &str, spec: Value) -> Parsed {
    policy(&mk_policy(kind, spec), &standalone()).unwrap()
}

#[track_caller]
fn refuse(value: &Value, expect: &[&str]) {
    let errors = manifest(value, &standalone()).unwrap_err();
    let mut seen: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    seen.sort();
    assert_eq!(seen, expect);
}

#[track_caller]
fn refuse_spec(kind: &str, spec: Value, expect: &[&str]) {
    refuse(&mk_policy(kind, spec), expect);
}

#[test]
fn all_errors_are_reported_at_once() {
    refuse_spec(
        "ClusterAdmissionPolicy",
        json!({
            "module": "ftp://x",
            "rules": [{"apiGroups": ["*", "apps"], "apiVersions": [], "operations": ["create"], "resources": [], "scope": "Nowhere"}],
            "mode": "audit",
            "timeoutSeconds": 31,
            "mutating": "yes",
            "policyserver": "x",
        }),
        &[
            "spec.mode: must be one of \"protect\", \"monitor\", not \"audit\"",
            "spec.module: unknown scheme \"ftp\"; known are registry, https, http, configmap and file",
            "spec.mutating: must be true or false, not a string",
            "spec.policyserver: unknown field; remove it (known are source, module, rules, timeoutSeconds, policyServer, settings, settingsFrom, settingsVersion, mutating, mode, failurePolicy, matchPolicy, matchConditions, objectSelector, sideEffects, timeoutEvalSeconds, message, entrypoint, contextAwareResources, backgroundAudit, rollout, revisionHistoryLimit, namespaceSelector)",
            "spec.rules[0].apiGroups: \"*\" is everything already; remove it or the others",
            "spec.rules[0].apiVersions: must not be empty; name at least one version or \"*\"",
            "spec.rules[0].operations[0]: must be one of \"CREATE\", \"UPDATE\", \"DELETE\", \"CONNECT\", \"*\", not \"create\"",
            "spec.rules[0].resources: must not be empty; name at least one resource or \"*\"",
            "spec.rules[0].scope: must be one of \"Cluster\", \"Namespaced\", \"*\", not \"Nowhere\"",
            "spec.timeoutSeconds: must be between 1 and 30, not 31",
        ],
    );
}

#[test]
fn unknown_fields_are_named_wherever_they_are() {
    let known = |list: &str| format!("unknown field; remove it (known are {list})");
    let mut value = mk_policy(
        "ClusterAdmissionPolicy",
        json!({
            "rollout": {"deadline": 1},
            "matchConditions": [{"name": "a", "expression": "true", "extra": 1}],
            "objectSelector": {"labels": {}},
            "contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "group": ""}],
        }),
    );
    value["spec"]["rules"][0]["verbs"] = json!(["get"]);
    value["extra"] = json!(1);
    value["metadata"]["label"] = json!({});
    let errors = policy(&value, &standalone()).unwrap_err();
    let paths: Vec<_> = errors.0.iter().map(|e| e.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "metadata.label",
            "spec.rules[0].verbs",
            "spec.matchConditions[0].extra",
            "spec.objectSelector.labels",
            "spec.contextAwareResources[0].group",
            "spec.rollout.deadline",
            "extra",
        ]
    );
    assert_eq!(errors.0[5].message, known("progressDeadlineSeconds"));
}

#[test]
fn metadata_names_are_validated() {
    let with = |kind: &str, metadata: Value| {
        let mut value = mk_policy(kind, json!({}));
        value["metadata"] = metadata;
        value
    };
    let parsed = policy(
        &with("AdmissionPolicy", json!({"name": "a"})),
        &standalone(),
    )
    .unwrap();
    assert_eq!(parsed.key, PolicyKey::namespaced("default", "a"));
    let in_cluster = policy(
        &with("AdmissionPolicy", json!({"name": "a"})),
        &Options::default(),
    );
    assert_eq!(
        in_cluster.unwrap_err().to_string(),
        "metadata.namespace: must be given; the policy applies to this namespace"
    );
    for (kind, metadata, expect) in [
        (
            "ClusterAdmissionPolicy",
            json!({"name": "a", "namespace": "b"}),
            "metadata.namespace: a ClusterAdmissionPolicy has no namespace; remove it",
        ),
        (
            "AdmissionPolicy",
            json!({"name": "a", "namespace": "B"}),
            "metadata.namespace: \"B\" is not a DNS label",
        ),
        (
            "AdmissionPolicy",
            json!({"name": "a", "namespace": "kube-system"}),
            "metadata.namespace: policies never apply to the namespace kube-system; put the policy elsewhere",
        ),
        (
            "ClusterAdmissionPolicy",
            json!({}),
            "metadata.name: must be given; it names the object",
        ),
        (
            "ClusterAdmissionPolicy",
            json!({"name": "../x"}),
            "metadata.name: \"../x\" is not a DNS subdomain: lower case letters, digits, '-' and '.', at most 253 characters",
        ),
        (
            "ClusterAdmissionPolicy",
            json!({"name": 12}),
            "metadata.name: must be a string; put it in quotes, not a number",
        ),
    ] {
        refuse(&with(kind, metadata), &[expect]);
    }
}

#[test]
fn kinds_and_versions_are_checked() {
    let mut value = mk_policy("Policy", json!({}));
    refuse(
        &value,
        &[
            "kind: unknown kind \"Policy\"; known are ClusterAdmissionPolicy, AdmissionPolicy, ClusterRequestPolicy, RequestPolicy and PolicyServer",
        ],
    );
    value["apiVersion"] = json!("policies.kubewarden.io/v1");
    refuse(
        &value,
        &[
            "apiVersion: must be \"policies.assent.dev/v1alpha1\", not \"policies.kubewarden.io/v1\"",
        ],
    );
    refuse(
        &json!([1]),
        &["a manifest must be an object with apiVersion and kind"],
    );
}

#[test]
fn invalid_rules_are_refused() {
    for (spec, expect) in [
        (
            json!({"module": null}),
            "spec.module: must be given; it is the URL of a Wasm module, or give source",
        ),
        (
            json!({"module": "a b"}),
            "spec.module: must be a URL without spaces, at most 2048 characters",
        ),
        (
            json!({"module": "file://"}),
            "spec.module: nothing follows \"file://\"; name the module",
        ),
        (
            json!({"rules": null}),
            "spec.rules: must be given; at least one rule must select the requests that the policy evaluates",
        ),
        (
            json!({"rules": []}),
            "spec.rules: must not be empty; at least one rule must select the requests that the policy evaluates",
        ),
        (
            json!({"settings": [1]}),
            "spec.settings: must be an object, not a list",
        ),
        (
            json!({"timeoutEvalSeconds": 10}),
            "spec.timeoutEvalSeconds: must be less than timeoutSeconds (10), so that the evaluation ends before the caller gives up",
        ),
        (
            json!({"timeoutSeconds": 2.5}),
            "spec.timeoutSeconds: must be an integer, not a number",
        ),
        (
            json!({"revisionHistoryLimit": -1}),
            "spec.revisionHistoryLimit: must be between 0 and 100, not -1",
        ),
        (
            json!({"rollout": {"progressDeadlineSeconds": 0}}),
            "spec.rollout.progressDeadlineSeconds: must be at least 1, not 0",
        ),
        (
            json!({"policyServer": "Default"}),
            "spec.policyServer: \"Default\" is not the name of a PolicyServer",
        ),
        (
            json!({"message": "x".repeat(4097)}),
            "spec.message: must not be longer than 4096 characters",
        ),
        (
            json!({"message": true}),
            "spec.message: must be a string; put it in quotes, not a boolean",
        ),
        (
            json!({"sideEffects": "Some"}),
            "spec.sideEffects: must be one of \"None\", \"NoneOnDryRun\", not \"Some\"",
        ),
        (
            json!({"matchConditions": [{"name": "a", "expression": " "}]}),
            "spec.matchConditions[0].expression: must not be empty; it is a condition in CEL",
        ),
        (
            json!({"matchConditions": [{"name": "a", "expression": "true"}, {"name": "a", "expression": "true"}]}),
            "spec.matchConditions[1].name: \"a\" is there twice; rename one of the two",
        ),
        (
            json!({"objectSelector": {"matchLabels": {"a": true}}}),
            "spec.objectSelector.matchLabels[a]: must be a string; put it in quotes, not a boolean",
        ),
        (
            json!({"objectSelector": {"matchLabels": {"-a": "x"}}}),
            "spec.objectSelector.matchLabels[-a]: \"-a\" is not the name of a label",
        ),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.objectSelector.matchExpressions[0].values: must not be empty for In and NotIn",
        ),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}}),
            "spec.objectSelector.matchExpressions[0].values: must be empty for Exists and DoesNotExist",
        ),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
            "spec.objectSelector.matchExpressions[0].operator: must be one of \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\", not \"Gt\"",
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "", "kind": "Pod"}]}),
            "spec.contextAwareResources[0].apiVersion: must not be empty",
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "fields": ["spec.a[0]"]}]}),
            "spec.contextAwareResources[0].fields[0]: \"spec.a[0]\" is not a path: lists are transparent, leave out '['; write for example spec.rules.host",
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "fields": ["metadata.managedFields"]}]}),
            "spec.contextAwareResources[0].fields[0]: is never replicated; remove it",
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "namespaces": ["A"]}]}),
            "spec.contextAwareResources[0].namespaces[0]: \"A\" is not the name of a namespace",
        ),
        (
            json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "labelSelector": {"matchLabels": {"a b": "c"}}}]}),
            "spec.contextAwareResources[0].labelSelector.matchLabels[a b]: \"a b\" is not the name of a label",
        ),
        (
            json!({"contextAwareResources": [
                {"apiVersion": "v1", "kind": "Pod"},
                {"apiVersion": "v1", "kind": "Pod", "fields": ["spec"]},
            ]}),
            "spec.contextAwareResources[1]: Pod (v1) is declared twice; declare it once, with the fields and namespaces of both",
        ),
    ] {
        refuse_spec("ClusterAdmissionPolicy", spec, &[expect]);
    }
}

#[test]
fn resources_of_a_rule_are_validated() {
    let check = |resources: &[&str], expect: &[&str]| {
        let mut rule = rule();
        rule["resources"] = json!(resources);
        let value = mk_policy("ClusterAdmissionPolicy", json!({"rules": [rule]}));
        let errors = policy(&value, &standalone())
            .err()
            .map(|e| e.0)
            .unwrap_or_default();
        let errors: Vec<_> = errors.iter().map(|e| e.path.as_str()).collect();
        assert_eq!(errors, expect, "{resources:?}");
    };
    check(&["pods", "pods/exec", "*/scale"], &[]);
    check(&["*", "pods/exec"], &[]);
    check(&["pods/*", "pods"], &[]);
    check(&["*/*", "pods"], &["spec.rules[0].resources[1]"]);
    check(&["*", "pods"], &["spec.rules[0].resources[1]"]);
    check(&["pods/*", "pods/exec"], &["spec.rules[0].resources[1]"]);
    check(&["*/exec", "pods/exec"], &["spec.rules[0].resources[1]"]);
    check(
        &["pods/", "/exec", "a/b/c"],
        &[
            "spec.rules[0].resources[0]",
            "spec.rules[0].resources[1]",
            "spec.rules[0].resources[2]",
        ],
    );
}

#[test]
fn invalid_objects_keep_their_identity() {
    let options = standalone();
    let broken = mk_policy("AdmissionPolicy", json!({"rules": "x", "nonsense": 1}));
    assert_eq!(
        identify(&broken, &options),
        Some(Object::Policy(PolicyKey::namespaced("team", "p")))
    );
    let server = json!({"apiVersion": API_VERSION, "kind": "PolicyServer", "metadata": {"name": "s"}, "spec": 1});
    assert_eq!(
        identify(&server, &options),
        Some(Object::Server("s".into()))
    );
    assert_eq!(
        identify(&json!({"kind": "AdmissionPolicy"}), &options),
        None
    );
}
