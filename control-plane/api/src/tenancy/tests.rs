#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::parse::{self, Options};

fn spec(value: Value) -> PolicyServerSpec {
    serde_json::from_value(value).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn only_the_default_server_takes_every_namespace_by_default() {
    assert!(allows_policies("default", None, "shop", None));
    assert!(allows_policies(
        "default",
        Some(&spec(json!({}))),
        "shop",
        None
    ));
    assert!(!allows_policies("other", None, "shop", None));
    assert!(!allows_policies(
        "other",
        Some(&spec(json!({}))),
        "shop",
        None
    ));
}

#[test]
fn allowed_namespaces_replace_the_default() {
    let none = spec(json!({"allowedNamespaces": {"from": "None"}}));
    assert!(!allows_policies("default", Some(&none), "shop", None));
    let all = spec(json!({"allowedNamespaces": {"from": "All"}}));
    assert!(allows_policies("other", Some(&all), "shop", None));
    let some = spec(json!({"allowedNamespaces": {
        "from": "Selected",
        "names": ["shop"],
        "selector": {"matchLabels": {"team": "web"}},
    }}));
    let allows = |namespace: &str, labels: Option<&BTreeMap<String, String>>| {
        allows_policies("other", Some(&some), namespace, labels)
    };
    assert!(allows("shop", None));
    assert!(allows("blog", Some(&labels(&[("team", "web")]))));
    assert!(!allows("blog", Some(&labels(&[("team", "data")]))));
    assert!(!allows("blog", None));
}

#[test]
fn unknown_labels_match_no_selector() {
    let spec = spec(json!({"allowedNamespaces": {
        "from": "Selected",
        "selector": {"matchExpressions": [{"key": "untrusted", "operator": "DoesNotExist"}]},
    }}));
    assert!(!allows_policies("other", Some(&spec), "shop", None));
    let trusted = labels(&[("a", "b")]);
    assert!(allows_policies(
        "other",
        Some(&spec),
        "shop",
        Some(&trusted)
    ));
}

#[test]
fn contradictory_allowed_namespaces_are_refused() {
    let read = |allowed: Value| {
        let server = json!({
            "apiVersion": crate::API_VERSION, "kind": "PolicyServer",
            "metadata": {"name": "s"}, "spec": {"allowedNamespaces": allowed},
        });
        parse::manifest(&server, &Options::default()).map_err(|e| e.to_string())
    };
    for (allowed, why) in [
        (
            json!({"from": "Selected"}),
            "spec.allowedNamespaces: from: Selected needs names or a selector",
        ),
        (
            json!({"from": "All", "names": ["shop"]}),
            "spec.allowedNamespaces: names and selector are for from: Selected",
        ),
        (
            json!({"from": "Selected", "names": ["a"], "namse": ["b"]}),
            "spec.allowedNamespaces.namse: unknown field; remove it",
        ),
    ] {
        assert_eq!(read(allowed).unwrap_err(), why);
    }
    read(json!({"from": "Selected", "selector": {}})).unwrap();
}

#[test]
fn objects_of_the_control_plane_are_out_of_reach() {
    let names = |name: &str| BTreeSet::from([name.to_owned()]);
    let options = Options {
        reserved: Reserved {
            secrets: names("assent-ca"),
            config_maps: names("assent-ca"),
            service_accounts: names("assent"),
        },
        ..Options::default()
    };
    let read = |spec: Value, options: &Options| {
        let server = json!({
            "apiVersion": crate::API_VERSION, "kind": "PolicyServer",
            "metadata": {"name": "s"}, "spec": spec,
        });
        parse::manifest(&server, options).map_err(|e| e.to_string())
    };
    let from = |field: &str, name: &str| json!({"env": [{"name": "A", "valueFrom": {(field): {"name": name, "key": "k"}}}]});
    let secure = json!({"sources": {"secure": [{
        "name": "host", "certificateFrom": {"configMapKeyRef": {"name": "assent-ca", "key": "k"}},
    }]}});
    for (spec, path) in [
        (
            from("secretKeyRef", "assent-ca"),
            "spec.env[0].valueFrom.secretKeyRef",
        ),
        (
            from("configMapKeyRef", "assent-ca"),
            "spec.env[0].valueFrom.configMapKeyRef",
        ),
        (
            json!({"imagePullSecret": "assent-ca"}),
            "spec.imagePullSecret",
        ),
        (
            json!({"imagePullSecrets": [{"name": "other"}, {"name": "assent-ca"}]}),
            "spec.imagePullSecrets[1]",
        ),
        (
            json!({"serviceAccountName": "assent"}),
            "spec.serviceAccountName",
        ),
        (
            secure,
            "spec.sources.secure[0].certificateFrom.configMapKeyRef",
        ),
    ] {
        let why = read(spec.clone(), &options).unwrap_err();
        assert!(why.starts_with(path), "{why}");
        assert!(why.contains("is the control plane's own"), "{why}");
        read(spec, &Options::default()).unwrap();
    }
    read(from("secretKeyRef", "other"), &options).unwrap();
    // A service account's name is not a Secret's.
    read(json!({"imagePullSecret": "assent"}), &options).unwrap();
}
