//! What a stage is set with.

use std::time::Duration;

use assent_api::parse::{self, Module};
use assent_core::Digest;
use assent_k8s::{names, webhook::Site, workload};
use assent_modules::pull::Reach;
use serde_json::{Value, json};

use super::super::Options;

/// The control plane's namespace.
pub(super) const OWN: &str = "assent-system";

pub(super) fn mk_options() -> Options {
    Options {
        namespace: OWN.into(),
        parse: parse::Options::default(),
        site: Site {
            namespace: OWN.into(),
            namespace_uid: uid("namespace"),
            ca_bundle: b"a CA".to_vec(),
            excluded_namespaces: Vec::new(),
            service_accounts: Vec::new(),
        },
        base_url: None,
        drain: Some(Duration::ZERO),
        workload: None,
        reach: Reach::default(),
    }
}

pub(super) fn mk_workload() -> workload::Options {
    workload::Options {
        namespace: OWN.into(),
        image: "example.com/assent-evaluator:v1".into(),
        image_pull_policy: None,
        discovery: "https://assent.assent-system.svc:15010".into(),
        network_policy: false,
    }
}

pub(super) fn mk_module(url: &str) -> Module {
    Module {
        digest: Digest::of(url.as_bytes()),
        size: 7,
        abi: "wapc".into(),
        host_capabilities: Vec::new(),
        url: url.to_owned(),
    }
}

/// A cluster-wide policy of generation 1 that is held already.
pub(super) fn mk_policy(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": uid(name), "generation": 1,
            "finalizers": [names::FINALIZER],
        },
        "spec": {
            "module": "registry://example.com/policy:v1",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        },
    })
}

pub(super) fn mk_server(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": uid(name), "generation": 1,
            "finalizers": [names::FINALIZER],
        },
        "spec": {},
    })
}

pub(super) fn mk_set(server: &str) -> Value {
    json!({
        "metadata": {
            "name": names::server(server), "namespace": OWN, "uid": uid("set"),
            "labels": { names::SERVER_LABEL: server },
        },
        "status": { "replicas": 2, "readyReplicas": 2 },
    })
}

pub(super) fn mk_pod(name: &str, ready: bool) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": OWN, "uid": uid(name),
            "labels": { names::SERVER_LABEL: "default" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet",
                "name": names::server("default"), "uid": uid("set"), "controller": true,
            }],
        },
        "spec": {
            "containers": [{ "name": names::EVALUATOR_CONTAINER, "image": "example.com/e:v1" }],
        },
        "status": {
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    })
}

/// One that looks like one, the same for the same name.
pub(super) fn uid(name: &str) -> String {
    let digest = Digest::of(name.as_bytes()).to_string();
    let hex: String = digest
        .chars()
        .filter(char::is_ascii_hexdigit)
        .rev()
        .collect();
    format!("{}-{}-4000-8000-{}", &hex[..8], &hex[8..12], &hex[12..24])
}

/// `namespace/name`, or the name alone.
pub(super) fn path(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str();
    let name = text("name").unwrap();
    text("namespace").map_or_else(|| name.to_owned(), |n| format!("{n}/{name}"))
}
