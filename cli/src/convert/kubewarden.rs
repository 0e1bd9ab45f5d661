//! Policies and PolicyServers of Kubewarden. The modules run as they are; most fields have the same names.

use serde_json::{Map, Value, json};

use super::Converted;

pub(super) const GROUP: &str = "policies.kubewarden.io";

/// Fields that mean the same.
const SAME: [&str; 18] = [
    "backgroundAudit",
    "contextAwareResources",
    "failurePolicy",
    "matchConditions",
    "matchPolicy",
    "message",
    "mode",
    "module",
    "mutating",
    "namespaceSelector",
    "objectSelector",
    "policyServer",
    "rules",
    "settings",
    "sideEffects",
    "timeoutEvalSeconds",
    "timeoutSeconds",
    "entrypoint",
];

/// Fields of a PolicyServer that mean the same.
const SAME_OF_SERVERS: [&str; 11] = [
    "affinity",
    "annotations",
    "imagePullSecret",
    "maxUnavailable",
    "minAvailable",
    "namespacedPoliciesCapabilities",
    "priorityClassName",
    "replicas",
    "securityContexts",
    "serviceAccountName",
    "tolerations",
];

pub(super) fn convert(documents: &[Value]) -> Converted {
    let mut converted = Converted::default();
    for document in documents {
        match document["kind"].as_str().unwrap_or_default() {
            kind @ ("ClusterAdmissionPolicy" | "AdmissionPolicy") => {
                policy(kind, document, &mut converted);
            }
            "PolicyServer" => server(document, &mut converted),
            "ClusterAdmissionPolicyGroup" | "AdmissionPolicyGroup" => converted.lose(
                document,
                "policy groups do not exist here; write the expression as one policy in Rego or CEL",
            ),
            _ => converted.lose(document, "this kind does not exist here"),
        }
    }
    converted
}

fn policy(kind: &str, document: &Value, converted: &mut Converted) {
    let mut spec = Map::new();
    for (name, value) in fields(document) {
        match name.as_str() {
            "module" => {
                spec.insert(name.clone(), module(value));
            }
            same if SAME.contains(&same) => {
                spec.insert(name.clone(), value.clone());
            }
            // Nobody sees the difference while it is off.
            "allowInsideAdmissionControllerNamespace" if *value != true => {}
            other => converted.lose(document, format_args!("spec.{other} has no counterpart")),
        }
    }
    converted.push(kind, document, Value::Object(spec));
}

/// Without a scheme Kubewarden takes it for an image of a registry.
fn module(value: &Value) -> Value {
    match value.as_str() {
        Some(url) if !url.contains("://") => json!(format!("registry://{url}")),
        _ => value.clone(),
    }
}

fn server(document: &Value, converted: &mut Converted) {
    let mut spec = Map::new();
    let mut resources = Map::new();
    for (name, value) in fields(document) {
        match name.as_str() {
            same if SAME_OF_SERVERS.contains(&same) => {
                spec.insert(name.clone(), value.clone());
            }
            "limits" | "requests" => {
                resources.insert(name.clone(), value.clone());
            }
            "insecureSources" => {
                spec.insert("sources".to_owned(), json!({ "insecure": value }));
            }
            "env" => converted.lose(
                document,
                "spec.env has variables of another program; see docs/evaluator.md for those of the evaluator",
            ),
            "image" => converted.lose(
                document,
                "spec.image is that of another program; the evaluator of the chart is used",
            ),
            "verificationConfig" => converted.lose(
                document,
                "spec.verificationConfig: write the keys into spec.verification",
            ),
            "sourceAuthorities" => converted.lose(
                document,
                "spec.sourceAuthorities: put the certificates into a ConfigMap and name it in spec.sources",
            ),
            other => converted.lose(document, format_args!("spec.{other} has no counterpart")),
        }
    }
    if !resources.is_empty() {
        spec.insert("resources".to_owned(), Value::Object(resources));
    }
    converted.push("PolicyServer", document, Value::Object(spec));
}

fn fields(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = document["spec"].as_object().into_iter().flatten();
    // What an API server shows of an unset field says nothing.
    fields.filter(|(_, value)| !value.is_null())
}
