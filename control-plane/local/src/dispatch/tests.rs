#![allow(clippy::unwrap_used)]

mod admit;
mod matches;

use assent_api::{API_VERSION, parse};
use serde_json::{Value, json};

use super::*;

/// A policy of `kind` that sees pods, with `fields` in its spec.
fn mk_target(kind: &str, name: &str, fields: Value) -> Arc<Target> {
    let mut spec = json!({"module": "x", "rules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["pods"]}]});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let mut metadata = json!({"name": name});
    if kind == "AdmissionPolicy" {
        metadata["namespace"] = json!("team");
    }
    let value =
        json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec});
    let policy = parse::policy(&value, &parse::Options::default()).unwrap();
    let path = format!("{}/1-00000000", policy.key);
    Arc::new(Target::new(policy, path).unwrap())
}

fn cluster(name: &str, fields: Value) -> Arc<Target> {
    mk_target("ClusterAdmissionPolicy", name, fields)
}
