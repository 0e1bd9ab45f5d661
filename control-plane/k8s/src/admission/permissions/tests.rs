#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn mk_server(spec: Value) -> Value {
    json!({
        "apiVersion": assent_api::API_VERSION, "kind": "PolicyServer",
        "metadata": {"name": "s"}, "spec": spec,
    })
}

/// What is asked for, in words.
fn asked(old: Option<Value>, new: Value) -> Vec<String> {
    let request = Request {
        operation: match old {
            Some(_) => Operation::Update,
            None => Operation::Create,
        },
        object: mk_server(new),
        old_object: old.map(mk_server).unwrap_or_default(),
        ..Request::default()
    };
    let required = required(&request, "assent-system", &assent_api::Options::default());
    let words = required.iter().map(|access| {
        let Access {
            verb,
            resource,
            name,
            namespace,
            ..
        } = access;
        format!("{verb} {resource} {name} {namespace}")
    });
    words.collect()
}

fn env(kind: &str, name: &str, key: &str) -> Value {
    json!({"name": "A", "valueFrom": {(kind): {"name": name, "key": key}}})
}

const PODS: &str = "create pods  assent-system";
const PRIVILEGED: &str = "use policyservers/privileged s ";

#[test]
fn what_shapes_no_pod_needs_no_permission() {
    let spec = json!({
        "replicas": 5,
        "limits": {"memory": "64Mi"},
        "allowedNamespaces": {"from": "All"},
        "injection": {"allowedNamespaces": ["shop"]},
        "sources": {"insecure": ["localhost:5000"]},
    });
    assert_eq!(asked(None, spec), Vec::<String>::new());
}

#[test]
fn every_field_of_a_pod_needs_the_permission_to_create_it() {
    for spec in [
        json!({"image": "evil"}),
        json!({"env": [{"name": "A", "value": "b"}]}),
        json!({"annotations": {"a": "b"}}),
        json!({"labels": {"a": "b"}}),
        json!({"priorityClassName": "system-node-critical"}),
        json!({"tolerations": [{"operator": "Exists"}]}),
        json!({"securityContexts": {"container": {"runAsUser": 0}}}),
        json!({"storage": {"size": "1Gi"}}),
        json!({"resources": {"limits": {"cpu": "64"}}}),
    ] {
        assert_eq!(asked(None, spec.clone()), [PODS], "{spec}");
        // Whoever changes something else is not asked for it again.
        let mut scaled = spec.clone();
        scaled["replicas"] = 3.into();
        assert_eq!(asked(Some(spec), scaled), Vec::<String>::new());
    }
}

#[test]
fn references_need_the_permission_to_read_them() {
    let secret = json!({"env": [env("secretKeyRef", "s", "k")]});
    let get = "get secrets s assent-system";
    assert_eq!(asked(None, secret.clone()), [PODS, get]);
    assert_eq!(
        asked(Some(secret.clone()), secret.clone()),
        Vec::<String>::new()
    );
    // Another key is another value.
    let key = json!({"env": [env("secretKeyRef", "s", "other")]});
    assert_eq!(asked(Some(secret), key), [PODS, get]);
    assert_eq!(
        asked(None, json!({"env": [env("configMapKeyRef", "c", "k")]})),
        [PODS, "get configmaps c assent-system"]
    );
    assert_eq!(asked(None, json!({"imagePullSecret": "s"})), [PODS, get]);
    let list = json!({"imagePullSecrets": [{"name": "s"}]});
    assert_eq!(asked(None, list), [PODS, get]);
    assert_eq!(
        asked(None, json!({"serviceAccountName": "admin"})),
        [PODS, "impersonate serviceaccounts admin assent-system"]
    );
    let secure = json!({"sources": {"secure": [{
        "name": "host", "certificateFrom": {"configMapKeyRef": {"name": "c", "key": "k"}},
    }]}});
    assert_eq!(asked(None, secure), ["get configmaps c assent-system"]);
}

#[test]
fn many_references_are_one_question() {
    let all: Vec<Value> = (0..100)
        .map(|i| env("secretKeyRef", &format!("s{i}"), "k"))
        .collect();
    assert_eq!(
        asked(None, json!({"env": all})),
        [PODS, "get secrets  assent-system"]
    );
}

#[test]
fn what_leaves_the_pod_needs_a_permission_of_its_own() {
    let container = |context: Value| json!({"securityContexts": {"container": context}});
    let pod = |context: Value| json!({"securityContexts": {"pod": context}});
    for spec in [
        container(json!({"privileged": true})),
        container(json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
        container(json!({"procMount": "Unmasked"})),
        container(json!({"seccompProfile": {"type": "Unconfined"}})),
        container(json!({"appArmorProfile": {"type": "Unconfined"}})),
        container(json!({"windowsOptions": {"hostProcess": true}})),
        pod(json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
        pod(json!({"seLinuxOptions": {"type": "spc_t"}})),
        pod(json!({"seccompProfile": {"type": "Unconfined"}})),
        json!({"annotations": {"container.apparmor.security.beta.kubernetes.io/evaluator": "unconfined"}}),
    ] {
        assert_eq!(asked(None, spec.clone()), [PODS, PRIVILEGED], "{spec}");
        // Another image in a pod that is privileged already.
        let mut image = spec.clone();
        image["image"] = "evil".into();
        assert_eq!(
            asked(Some(spec.clone()), image),
            [PODS, PRIVILEGED],
            "{spec}"
        );
    }
    let bind = container(json!({"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}));
    assert_eq!(asked(None, bind), [PODS]);
}

#[test]
fn refusal_names_fields_user_and_permission() {
    let request = Request {
        operation: Operation::Create,
        object: mk_server(json!({"serviceAccountName": "admin"})),
        ..Request::default()
    };
    let required = required(&request, "assent-system", &assent_api::Options::default());
    let user = UserInfo {
        username: Some("tenant".to_owned()),
        ..UserInfo::default()
    };
    let text = required[1].refusal(&user);
    assert!(
        text.starts_with(
            "spec.serviceAccountName: \"tenant\" needs the permission to impersonate \
             serviceaccounts \"admin\" in the namespace \"assent-system\""
        ),
        "{text}"
    );
    let review = required[1].review(&user);
    assert_eq!(review.user.as_deref(), Some("tenant"));
    let attributes = review.resource_attributes.unwrap();
    assert_eq!(attributes.namespace.as_deref(), Some("assent-system"));
}

fn mk_policy(module: &str, secrets: &[&str]) -> Value {
    let sources = secrets.iter().map(|name| {
        let reference = json!({"name": name, "key": "token"});
        json!({"secretKeyRef": reference, "path": format!("auth.{name}")})
    });
    json!({
        "apiVersion": assent_api::API_VERSION, "kind": "AdmissionPolicy",
        "metadata": {"name": "a", "namespace": "shop"},
        "spec": {
            "module": module,
            "settingsFrom": sources.collect::<Vec<_>>(),
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        },
    })
}

#[test]
fn every_edit_of_a_policy_with_secrets_needs_the_permission_to_read_them() {
    let asked = |old: Option<Value>, new: Value| {
        let request = Request {
            operation: match old {
                Some(_) => Operation::Update,
                None => Operation::Create,
            },
            object: new,
            old_object: old.unwrap_or_default(),
            ..Request::default()
        };
        let required = required(&request, "assent-system", &assent_api::Options::default());
        let words = required.iter().map(|a| {
            format!(
                "{}: {} {} {} {}",
                a.fields, a.verb, a.resource, a.name, a.namespace
            )
        });
        words.collect::<Vec<_>>()
    };
    let old = mk_policy("registry://example.com/a:1", &["db"]);
    let get = "spec.settingsFrom[0]: get secrets db shop";
    assert_eq!(asked(None, old.clone()), [get]);
    // Another module could print what the old one kept to itself.
    let module = mk_policy("registry://example.com/a:2", &["db"]);
    assert_eq!(asked(Some(old.clone()), module), [get]);
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(asked(Some(old.clone()), labelled), Vec::<String>::new());
    let without = mk_policy("registry://example.com/a:1", &[]);
    assert_eq!(asked(Some(old.clone()), without), Vec::<String>::new());
    let mut cluster = old;
    cluster["kind"] = "ClusterAdmissionPolicy".into();
    cluster["metadata"] = json!({"name": "a"});
    let own = "spec.settingsFrom[0]: get secrets db assent-system";
    assert_eq!(asked(None, cluster), [own]);
}
