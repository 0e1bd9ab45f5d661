use serde_json::Map;

use super::*;
use crate::rules::{Operation, Operator, Requirement, Scope};

#[test]
fn defaults_are_filled_in() {
    let parsed = accept("ClusterAdmissionPolicy", json!({}));
    assert_eq!(parsed.key, PolicyKey::cluster("p"));
    assert_eq!(parsed.server, "default");
    assert_eq!(parsed.module, "registry://example.com/p:v1");
    assert_eq!(&*parsed.settings, b"{}");
    assert_eq!(parsed.rules[0].scope, Scope::All);
    assert_eq!(parsed.mode, Mode::Protect);
    assert_eq!(parsed.failure_policy, FailurePolicy::Fail);
    assert_eq!(parsed.match_policy, MatchPolicy::Equivalent);
    assert_eq!(parsed.side_effects, SideEffects::None);
    assert_eq!((parsed.timeout_seconds, parsed.timeout_eval_ms), (10, None));
    assert_eq!(
        (parsed.progress_deadline_seconds, parsed.history_limit),
        (600, 5)
    );
    assert!(parsed.background_audit && !parsed.mutating);
    assert_eq!(parsed.limits(Limits::default()), Limits::default());
    assert_eq!(parsed.rollback, None);
}

fn everything() -> Value {
    json!({
        "policyServer": "tenants",
        "module": "https://example.com/p.wasm",
        "settings": {"b": [1, 2.50], "a": {"x": 9007199254740993i64}},
        "rules": [{"apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": ["deployments", "deployments/scale"], "scope": "Namespaced"}],
        "mutating": true,
        "mode": "monitor",
        "failurePolicy": "Ignore",
        "matchPolicy": "Exact",
        "matchConditions": [{"name": "not-system", "expression": "request.userInfo.username != 'x'"}],
        "objectSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["prod"]}]},
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 5,
        "timeoutEvalSeconds": 3,
        "message": "no",
        "entrypoint": "policy/main",
        "contextAwareResources": [{"apiVersion": "v1", "kind": "Namespace"}],
        "backgroundAudit": false,
        "rollout": {"progressDeadlineSeconds": 60},
        "revisionHistoryLimit": 0
    })
}

#[test]
fn every_field_is_read() {
    let parsed = accept("ClusterAdmissionPolicy", everything());
    assert_eq!(parsed.server, "tenants");
    assert_eq!(
        &*parsed.settings,
        br#"{"a":{"x":9007199254740993},"b":[1,2.5]}"#
    );
    assert_eq!(
        parsed.rules[0].operations,
        [Operation::Create, Operation::Update]
    );
    assert_eq!(parsed.rules[0].scope, Scope::Namespaced);
    assert_eq!(parsed.match_conditions[0].name, "not-system");
    assert_eq!(
        parsed.object_selector.as_ref().unwrap().match_labels["app"],
        "web"
    );
    assert_eq!(
        parsed
            .namespace_selector
            .as_ref()
            .unwrap()
            .match_expressions,
        [Requirement {
            key: "env".into(),
            operator: Operator::In,
            values: vec!["prod".into()]
        }]
    );
    assert_eq!(parsed.limits(Limits::default()).timeout_ms, 3000);
    assert_eq!(parsed.context_resources[0].to_string(), "v1/Namespace");
    assert_eq!(
        (parsed.progress_deadline_seconds, parsed.history_limit),
        (60, 0)
    );
    assert_eq!(
        (parsed.message.as_str(), parsed.entrypoint.as_str()),
        ("no", "policy/main")
    );
    assert_eq!(
        (parsed.mode, parsed.mutating, parsed.background_audit),
        (Mode::Monitor, true, false)
    );
}

/// What a revision keeps reads back as the same policy: a rollback is by this parser too.
#[test]
fn stored_spec_reads_back() {
    for (kind, spec_fields) in [
        ("ClusterAdmissionPolicy", everything()),
        ("ClusterAdmissionPolicy", json!({})),
        ("AdmissionPolicy", json!({"settings": {"a": 1}})),
    ] {
        let parsed = accept(kind, spec_fields);
        let kept: Value = serde_json::from_slice(&parsed.spec_json).unwrap();
        assert_eq!(spec(&parsed.key, &kept, &standalone()).unwrap(), parsed);
    }
}

/// A default that is spelled out, another order or null make no new generation.
#[test]
fn equal_specs_have_equal_bytes() {
    let short = accept("ClusterAdmissionPolicy", json!({}));
    let long = accept(
        "ClusterAdmissionPolicy",
        json!({"mode": "protect", "timeoutSeconds": 10, "policyServer": "default", "rollout": {}}),
    );
    assert_eq!(short.spec_json, long.spec_json);
    let mut with_null = mk_policy("ClusterAdmissionPolicy", json!({}));
    with_null["spec"]["message"] = Value::Null;
    assert_eq!(policy(&with_null, &standalone()).unwrap(), short);
    let other = accept("ClusterAdmissionPolicy", json!({"mode": "monitor"}));
    assert_ne!(short.spec_json, other.spec_json);
}

#[test]
fn namespaced_policies_stay_in_their_namespace() {
    let parsed = accept("AdmissionPolicy", json!({}));
    assert_eq!(parsed.key, PolicyKey::namespaced("team", "p"));
    assert_eq!(parsed.rules[0].scope, Scope::Namespaced);
    let with_rule = |fields: Value| {
        let mut rule = rule();
        merge(&mut rule, fields);
        json!({"rules": [rule]})
    };
    let everything = "spec.rules[0].resources: a namespaced policy must name its resources: wildcards on everything are refused";
    refuse_spec(
        "AdmissionPolicy",
        with_rule(json!({"resources": ["*/*"]})),
        &[everything],
    );
    refuse_spec(
        "AdmissionPolicy",
        with_rule(json!({"resources": ["*"], "apiGroups": ["*"]})),
        &[everything],
    );
    accept("AdmissionPolicy", with_rule(json!({"resources": ["*"]})));
    accept(
        "ClusterAdmissionPolicy",
        with_rule(json!({"resources": ["*/*"], "apiGroups": ["*"]})),
    );
    refuse_spec(
        "AdmissionPolicy",
        with_rule(json!({"scope": "Cluster"})),
        &["spec.rules[0].scope: a namespaced policy sees no cluster-scoped objects; remove it"],
    );
    refuse_spec(
        "AdmissionPolicy",
        json!({"namespaceSelector": {}, "contextAwareResources": []}),
        &["spec.namespaceSelector: is for ClusterAdmissionPolicy only; remove it"],
    );
}

#[test]
fn file_modules_require_standalone() {
    let value = mk_policy(
        "ClusterAdmissionPolicy",
        json!({"module": "file:///p.wasm"}),
    );
    assert!(policy(&value, &standalone()).is_ok());
    let error = policy(&value, &Options::default()).unwrap_err().to_string();
    assert!(
        error.starts_with("spec.module: file:// modules work only without a cluster"),
        "{error}"
    );
}

#[test]
fn rollback_annotation_is_parsed() {
    let with = |text: &str| {
        let mut value = mk_policy("ClusterAdmissionPolicy", json!({}));
        value["metadata"]["annotations"] =
            json!({"policies.assent.dev/rollback-to": text, "other": "x"});
        policy(&value, &standalone()).map(|parsed| parsed.rollback)
    };
    assert_eq!(with("previous"), Ok(Some(Rollback::Previous)));
    assert_eq!(with("7"), Ok(Some(Rollback::Generation(7))));
    for bad in ["0", "-1", "Previous", ""] {
        assert!(with(bad).is_err(), "{bad}");
    }
}

#[test]
fn policy_server_is_immutable() {
    let a = accept("ClusterAdmissionPolicy", json!({"policyServer": "a"}));
    let b = accept("ClusterAdmissionPolicy", json!({"policyServer": "b"}));
    assert!(immutable_fields(&a, &a).is_ok());
    assert_eq!(
        immutable_fields(&a, &b).unwrap_err().0[0].path,
        "spec.policyServer"
    );
}

/// What the schema of the cluster knows and what the parser knows is the same.
#[test]
fn schema_and_parser_know_the_same_fields() {
    use kube::CustomResourceExt;
    for (kind, crd) in [
        (
            "ClusterAdmissionPolicy",
            crate::ClusterAdmissionPolicy::crd(),
        ),
        ("AdmissionPolicy", crate::AdmissionPolicy::crd()),
    ] {
        let crd = serde_json::to_value(crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut fields: Vec<_> = schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        fields.sort();
        let value = mk_policy(
            kind,
            Value::Object(Map::from_iter([("?".to_owned(), json!(1))])),
        );
        let error = policy(&value, &standalone())
            .unwrap_err()
            .0
            .remove(0)
            .message;
        let list = error
            .split_once("known are ")
            .unwrap()
            .1
            .trim_end_matches(')');
        let mut known: Vec<_> = list.split(", ").map(str::to_owned).collect();
        if kind == "AdmissionPolicy" {
            known.retain(|name| name != "namespaceSelector");
        }
        known.sort();
        assert_eq!(fields, known, "{kind}");
    }
}

#[test]
fn mutating_namespaced_policy_must_not_change_protected_resources() {
    let secrets = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}]);
    let spec = |mutating: bool| json!({"rules": secrets, "mutating": mutating});
    refuse(
        &mk_policy("AdmissionPolicy", spec(true)),
        &[
            "spec.rules[0].resources[0]: \"secrets\" includes secrets, which a mutating AdmissionPolicy must not change; name other resources, or set mutating to false",
        ],
    );
    policy(&mk_policy("AdmissionPolicy", spec(false)), &standalone()).unwrap();
    policy(
        &mk_policy("ClusterAdmissionPolicy", spec(true)),
        &standalone(),
    )
    .unwrap();
    // What a revision stored stays readable.
    let stored = mk_policy("AdmissionPolicy", spec(true))["spec"].clone();
    let key = PolicyKey::namespaced("team", "p");
    super::super::spec(&key, &stored, &standalone()).unwrap();
    // Operators decide.
    let options = Options {
        protected_resources: ProtectedResources::none(),
        ..standalone()
    };
    policy(&mk_policy("AdmissionPolicy", spec(true)), &options).unwrap();
}

#[test]
fn warnings_are_about_what_was_written() {
    let warned = |spec: Value| warnings(&mk_policy("ClusterAdmissionPolicy", spec)).len();
    assert_eq!(warned(json!({})), 0);
    assert_eq!(warned(json!({"contextAwareResources": []})), 0);
    assert_eq!(warned(json!({"backgroundAudit": false})), 1);
    let kinds = json!([{"apiVersion": "v1", "kind": "Pod"}]);
    assert_eq!(warned(json!({"contextAwareResources": kinds})), 0);
}

fn with_secrets(kind: &str, sources: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": kind,
        "metadata": {"name": "a"},
        "spec": {
            "module": "registry://example.com/a:1",
            "settingsFrom": sources,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        },
    });
    if kind == "AdmissionPolicy" {
        policy["metadata"]["namespace"] = "shop".into();
    }
    policy
}

#[test]
fn settings_from_secrets_are_read_and_kept_in_the_spec() {
    let sources = json!([
        {"secretKeyRef": {"name": "db", "key": "token"}, "path": "auth.token"},
        {"secretKeyRef": {"name": "db", "key": "more.yaml"}},
    ]);
    let policy = with_secrets("AdmissionPolicy", sources.clone());
    let parsed = super::policy(&policy, &Options::default()).unwrap();
    assert_eq!(parsed.settings_from.len(), 2);
    assert_eq!(parsed.settings_from[0].path.as_deref(), Some("auth.token"));
    let spec: Value = serde_json::from_slice(&parsed.spec_json).unwrap();
    assert_eq!(spec["settingsFrom"], sources);
    let none = with_secrets("AdmissionPolicy", json!([]));
    let parsed = super::policy(&none, &Options::default()).unwrap();
    let spec: Value = serde_json::from_slice(&parsed.spec_json).unwrap();
    assert!(
        spec.get("settingsFrom").is_none(),
        "existing specs stay the same"
    );
}

#[test]
fn bad_settings_from_say_what_to_do() {
    let reserved = crate::tenancy::Reserved {
        secrets: ["assent-ca".to_owned()].into(),
        ..Default::default()
    };
    let options = Options {
        reserved,
        ..Options::default()
    };
    let check = |kind: &str, source: Value, expected: &str| {
        let policy = with_secrets(kind, json!([source]));
        let errors = super::policy(&policy, &options).map_err(|e| e.to_string());
        match expected {
            "" => assert!(errors.is_ok(), "{errors:?}"),
            _ => assert!(
                errors.as_ref().is_err_and(|e| e.contains(expected)),
                "{errors:?}"
            ),
        }
    };
    let key = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let at = "spec.settingsFrom[0]";
    check(
        "AdmissionPolicy",
        json!({}),
        &format!("{at}.secretKeyRef: must be given"),
    );
    check(
        "AdmissionPolicy",
        json!({"file": "a"}),
        &format!("{at}.file: unknown field"),
    );
    check(
        "AdmissionPolicy",
        key("A b", "k"),
        "is not the name of a Secret",
    );
    check(
        "AdmissionPolicy",
        key("db", "a/b"),
        "must be a key of a Secret",
    );
    let mut path = key("db", "k");
    for bad in ["", ".a", "a..b", "a."] {
        path["path"] = bad.into();
        check(
            "AdmissionPolicy",
            path.clone(),
            &format!("{at}.path: must be names"),
        );
    }
    let foreign = json!({"secretKeyRef": {"name": "db", "key": "k", "namespace": "other"}});
    check("AdmissionPolicy", foreign, "namespace: unknown field");
    check(
        "ClusterAdmissionPolicy",
        key("assent-ca", "ca.key"),
        "belongs to the control plane",
    );
    // A Secret of that name in another namespace is somebody else's.
    check("AdmissionPolicy", key("assent-ca", "ca.key"), "");
    let many = with_secrets("AdmissionPolicy", json!(vec![key("db", "k"); 17]));
    let errors = super::policy(&many, &options).unwrap_err().to_string();
    assert!(errors.contains("not have more than 16"), "{errors}");
    let standalone = Options {
        standalone: true,
        ..Options::default()
    };
    let policy = with_secrets("AdmissionPolicy", json!([key("db", "k")]));
    let errors = super::policy(&policy, &standalone).unwrap_err().to_string();
    assert!(errors.contains("works only in a cluster"), "{errors}");
}

#[test]
fn declarations_are_normalised() {
    let context = |kind: &str, resource: Value| {
        let parsed = accept(
            kind,
            json!({"contextAwareResources": [resource.clone(), resource]}),
        );
        assert_eq!(
            parsed.context_resources.len(),
            1,
            "equal declarations are one"
        );
        parsed.context_resources[0].clone()
    };
    let resource = json!({
        "apiVersion": "v1", "kind": "Pod",
        "fields": ["spec.nodeName", "spec.hostNetwork"],
        "labelSelector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        },
    });
    let found = context("ClusterAdmissionPolicy", resource.clone());
    assert_eq!(found.fields, ["spec.hostNetwork", "spec.nodeName"]);
    assert_eq!(found.label_selector, "app=web,!old,tier in (a,b)");
    assert!(found.namespaces.is_empty());
    // A namespaced policy reads its own namespace, whatever it declares.
    let found = context("AdmissionPolicy", resource);
    assert_eq!(found.namespaces, ["team"]);
    refuse_spec(
        "AdmissionPolicy",
        json!({"contextAwareResources": [{"apiVersion": "v1", "kind": "Pod", "namespaces": ["kube-system"]}]}),
        &[
            "spec.contextAwareResources[0].namespaces: is for ClusterAdmissionPolicy only, because an AdmissionPolicy reads its own namespace; remove it",
        ],
    );
}
