//! Policies written as text on a real API server: in ConfigMaps, in policies, and the values of expressions.

mod config_maps;
mod expressions;
mod sources;

use assent_e2e::{
    eventually,
    kube::{
        Harness,
        harness::{chart_with, condition},
    },
};
use kube::Client;
use serde_json::{Value, json};

use crate::api;

/// The policy namespaces.
const NAMESPACE: &str = "policies";
const OTHER: &str = "more-policies";

/// A cluster with two policy namespaces and one evaluator.
struct Texts {
    harness: Harness,
    client: Client,
}

/// Denies privileged pods, and pods with this label.
fn rego(label: &str) -> String {
    format!(
        "package labels\n\n\
         deny contains \"privileged is not wanted\" if {{\n\
         \tsome container in input.request.object.spec.containers\n\
         \tcontainer.securityContext.privileged\n\
         }}\n\n\
         deny contains \"{label} is not wanted\" if input.request.object.metadata.labels.{label}\n"
    )
}

fn pods() -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}])
}

/// A ConfigMap with a policy that denies.
fn config_map(name: &str, text: &str) -> Value {
    let spec = json!({"mode": "protect", "rules": pods()});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"policies.assent.dev/policy": "true"}},
        "data": {"policy.rego": text, "policy.yaml": spec.to_string()},
    })
}

fn cluster_policy(name: &str, mut spec: Value) -> Value {
    spec["rules"] = pods();
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Applies an object in its namespace.
async fn apply(harness: &Harness, object: &Value) {
    let namespace = object["metadata"]["namespace"].as_str();
    let kubectl = harness.kubectl.within(namespace.unwrap_or("default"));
    kubectl.apply(&object.to_string()).await;
}

// === impl Texts ===

impl Texts {
    async fn start() -> Self {
        let mut harness = Harness::empty().await;
        for namespace in [NAMESPACE, OTHER] {
            let create = ["create", "namespace", namespace];
            harness.kubectl.run(&create).await;
        }
        let namespaces = format!("{NAMESPACE},{OTHER}");
        let values = format!("policyNamespaces={{{namespaces}}}");
        let rights = chart_with(&["rbac.yaml"], &[&values]);
        for document in rights.split("\n---") {
            let object = assent_api::yaml::load_first(document).unwrap_or_default();
            if object.is_object() {
                apply(&harness, &object).await;
            }
        }
        let env = [("ASSENT_POLICY_NAMESPACES", namespaces.as_str())];
        harness.add_plane("a", &env).await;
        harness.serve(1).await;
        let client = api::admin(&harness).await;
        Self { harness, client }
    }

    async fn apply(&self, object: &Value) {
        apply(&self.harness, object).await;
    }

    /// Whether a pod with this label is denied because of it.
    async fn denies(&self, label: &str) -> bool {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "probe", "labels": {label: "x"}},
            "spec": {"containers": [{"name": "c", "image": "busybox"}]},
        });
        let path = "/api/v1/namespaces/default/pods?dryRun=All";
        match api::ask(&self.client, "POST", path, &pod).await {
            (201, _) => false,
            (_, status) => {
                let message = status["message"].to_string();
                assert!(
                    message.contains(&format!("{label} is not wanted")),
                    "{message}"
                );
                true
            }
        }
    }

    async fn wait_denied(&self, label: &str) {
        let denied = async || self.denies(label).await;
        eventually(&format!("{label} is denied"), denied).await;
    }

    async fn wait_allowed(&self, label: &str) {
        let allowed = async || !self.denies(label).await;
        eventually(&format!("{label} is allowed"), allowed).await;
    }

    /// Waits until the newest generation of a policy is refused with this text.
    async fn wait_refused(&self, name: &str, part: &str) {
        let is = |object: &Value| {
            let accepted = condition(object, "Accepted");
            accepted["status"] == "False"
                && accepted["observedGeneration"] == object["metadata"]["generation"]
                && accepted["message"].to_string().contains(part)
        };
        self.harness.kubectl.wait(&["cap", name], part, is).await;
    }

    /// Waits for an event on a ConfigMap.
    async fn wait_event(&self, namespace: &str, name: &str, reason: &str, part: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let seen = async || {
            let events = api::get(&self.client, &path).await;
            let mut events = events["items"].as_array().into_iter().flatten();
            events.any(|event| {
                event["involvedObject"]["kind"] == "ConfigMap"
                    && event["involvedObject"]["name"] == name
                    && event["reason"] == reason
                    && event["message"].to_string().contains(part)
            })
        };
        eventually(&format!("event {reason} on {name}: {part}"), seen).await;
    }
}
