#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;

fn load(text: &str) -> Vec<Value> {
    let mut documents = Vec::new();
    for document in assent_yaml::load(text) {
        unpack(document.value.unwrap(), &mut documents);
    }
    documents
}

/// Converts, and checks that the only parser of manifests takes what comes out.
#[track_caller]
fn converted(text: &str) -> Converted {
    let converted = convert(&load(text)).unwrap();
    for manifest in &converted.manifests {
        let parsed = assent_api::parse::manifest(manifest, &assent_api::parse::Options::default());
        assert!(parsed.is_ok(), "{parsed:?}: {manifest:#}");
    }
    converted
}

const KUBEWARDEN: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: policies.kubewarden.io/v1
  kind: ClusterAdmissionPolicy
  metadata: {name: no-privileged, uid: gone, resourceVersion: "7"}
  spec:
    policyServer: default
    module: ghcr.io/kubewarden/policies/pod-privileged:v0.2.2
    mode: protect
    mutating: false
    settings: {}
    allowInsideAdmissionControllerNamespace: false
    rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
- apiVersion: policies.kubewarden.io/v1
  kind: PolicyServer
  metadata: {name: tenants}
  spec:
    image: ghcr.io/kubewarden/policy-server:v1
    replicas: 2
    insecureSources: ["registry.example:5000"]
    limits: {memory: 1Gi}
- apiVersion: policies.kubewarden.io/v1
  kind: ClusterAdmissionPolicyGroup
  metadata: {name: several}
  spec: {expression: "a() && b()"}
"#;

#[test]
fn kubewarden_policy_keeps_its_module_and_reports_the_rest() {
    let Converted { manifests, lost } = converted(KUBEWARDEN);
    assert_eq!(manifests.len(), 2);
    let spec = &manifests[0]["spec"];
    let module = "registry://ghcr.io/kubewarden/policies/pod-privileged:v0.2.2";
    assert_eq!(spec["module"], module);
    assert_eq!(manifests[0]["metadata"], json!({"name": "no-privileged"}));
    let server = &manifests[1]["spec"];
    assert_eq!(
        server["sources"]["insecure"],
        json!(["registry.example:5000"])
    );
    assert_eq!(server["resources"]["limits"]["memory"], "1Gi");
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(lost[0].contains("spec.image"), "{lost:?}");
    assert!(
        lost[1].contains("ClusterAdmissionPolicyGroup several"),
        "{lost:?}"
    );
}

const TEMPLATE: &str = r#"
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: k8srequiredlabels}
spec:
  crd: {spec: {names: {kind: K8sRequiredLabels}}}
  targets:
    - target: admission.k8s.gatekeeper.sh
      rego: |
        package k8srequiredlabels
        violation[{"msg": msg}] {
          required := input.parameters.labels[_]
          not input.review.object.metadata.labels[required]
          msg := sprintf("the label %v is missing", [required])
        }
---
"#;

const CONSTRAINT: &str = r#"
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: K8sRequiredLabels
metadata: {name: owner}
spec:
  enforcementAction: dryrun
  match:
    kinds: [{apiGroups: [""], kinds: [Pod]}, {apiGroups: [apps], kinds: [Deployment]}]
    excludedNamespaces: [kube-system, "team-*"]
    namespaces: [shop]
  parameters: {labels: [owner]}
"#;

#[test]
fn gatekeeper_constraint_becomes_a_policy_with_the_text() {
    let Converted { manifests, lost } = converted(&format!("{TEMPLATE}{CONSTRAINT}"));
    let spec = &manifests[0]["spec"];
    let text = spec["source"]["rego"].as_str().unwrap();
    assert!(
        text.starts_with("# rego.v0\npackage k8srequiredlabels"),
        "{text}"
    );
    assert_eq!(spec["settings"], json!({"labels": ["owner"]}));
    assert_eq!(spec["mode"], "monitor");
    assert_eq!(spec["rules"][0]["resources"], json!(["pods"]));
    assert_eq!(spec["rules"][1]["resources"], json!(["deployments"]));
    let expressions = &spec["namespaceSelector"]["matchExpressions"];
    assert_eq!(expressions[0]["values"], json!(["shop"]));
    assert_eq!(expressions[1]["values"], json!(["kube-system"]));
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(
        lost[0].contains("excludedNamespaces has patterns"),
        "{lost:?}"
    );
}

#[track_caller]
fn refused(text: &str, expect: &str) {
    let error = convert(&load(text)).unwrap_err().to_string();
    assert!(error.contains(expect), "{expect:?} is not in: {error}");
}

#[test]
fn what_would_mean_something_else_is_refused() {
    refused(CONSTRAINT, "has no template");
    let reads = TEMPLATE.replace("input.parameters.labels[_]", "data.inventory.cluster");
    refused(&format!("{reads}{CONSTRAINT}"), "data.inventory");
    refused(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
        "Pod a cannot be converted",
    );
    refused(
        &format!("{KUBEWARDEN}---\n{CONSTRAINT}"),
        "one engine at a time",
    );
    refused("", "nothing to convert");
}
