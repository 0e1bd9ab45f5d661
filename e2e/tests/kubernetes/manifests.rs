//! Manifests: migrated ones, invalid ones, and invalid ones that bypassed admission.

use assent_e2e::{
    eventually,
    kube::{
        Harness, Kubectl,
        harness::{condition, no_privileged},
    },
};
use serde_json::{Value, json};

use crate::api::{self, POLICIES};

/// A Kubewarden policy as people have them.
const KUBEWARDEN: &str = r#"
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata:
  name: privileged-pods
  labels:
    app.kubernetes.io/part-of: security
  annotations:
    io.kubewarden.policy.category: PSP
spec:
  policyServer: default
  module: MODULE
  mode: protect
  mutating: false
  failurePolicy: Fail
  matchPolicy: Equivalent
  sideEffects: None
  timeoutSeconds: 10
  timeoutEvalSeconds: 2
  backgroundAudit: true
  rules:
  - apiGroups: [""]
    apiVersions: ["v1"]
    resources: ["pods"]
    operations:
    - CREATE
    - UPDATE
    scope: Namespaced
  objectSelector:
    matchExpressions:
    - key: exempt
      operator: DoesNotExist
  namespaceSelector:
    matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: ["elsewhere"]
  matchConditions:
  - name: no-nodes
    expression: '!("system:nodes" in request.userInfo.groups)'
  message: "no privileged pods here"
  settings:
    exemptImages: []
"#;

#[tokio::test(flavor = "multi_thread")]
async fn kubewarden_policy_works_after_changing_api_version() {
    let harness = Harness::start(1).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    let theirs = KUBEWARDEN.replace("MODULE", &module);
    let ours = theirs.replace("policies.kubewarden.io/v1", "policies.assent.dev/v1alpha1");
    eventually("the policy is taken", async || {
        harness.kubectl.try_apply(&ours).await.is_ok()
    })
    .await;
    harness.enforced("privileged-pods").await;
    let refused = harness.try_pod("a", true).await.unwrap_err();
    assert!(refused.contains("no privileged pods here"), "{refused}");
    harness.try_pod("a", false).await.unwrap();

    // Nothing that was written is dropped.
    let hook = [
        "validatingwebhookconfiguration",
        "assent.cluster.privileged-pods",
    ];
    let hook = harness.kubectl.get(&hook).await;
    let hook = &hook["webhooks"][0];
    assert_eq!(hook["timeoutSeconds"], 10);
    assert_eq!(hook["rules"][0]["scope"], "Namespaced");
    let exempt = json!([{"key": "exempt", "operator": "DoesNotExist"}]);
    assert_eq!(hook["objectSelector"]["matchExpressions"], exempt);
    let named = |c: &Value| c["name"] == "no-nodes";
    let conditions = hook["matchConditions"].as_array().unwrap();
    assert!(conditions.iter().any(named), "{conditions:?}");
    let selector = hook["namespaceSelector"].to_string();
    assert!(selector.contains("elsewhere"), "{selector}");

    // Kinds are declared as in Kubewarden.
    let context = "  contextAwareResources: [{apiVersion: v1, kind: Namespace}]\n  message:";
    let reading = ours.replace("  message:", context);
    let reading = reading.replace("name: privileged-pods", "name: reading");
    harness.kubectl.apply(&reading).await;
    harness.enforced("reading").await;
}

fn cluster(spec: &Value) -> Value {
    let mut policy = no_privileged("wrong", "registry.example/p:v1", &[]);
    merge(&mut policy["spec"], spec);
    policy
}

fn namespaced(spec: &Value) -> Value {
    let mut policy = cluster(spec);
    policy["kind"] = "AdmissionPolicy".into();
    policy["metadata"]["namespace"] = "default".into();
    policy
}

fn server(spec: &Value) -> Value {
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "wrong"}, "spec": spec,
    })
}

fn merge(base: &mut Value, with: &Value) {
    for (name, value) in with.as_object().unwrap() {
        base[name] = value.clone();
    }
}

/// The rule of [`no_privileged`] with other fields.
fn rule(fields: &Value) -> Value {
    let mut rule = no_privileged("", "", &[])["spec"]["rules"][0].clone();
    merge(&mut rule, fields);
    json!({"rules": [rule]})
}

/// Rejected by the schema or by the webhook: each with the path that must be named.
fn wrong() -> Vec<(Value, &'static str)> {
    let mut all = unseen_by_the_schema();
    let rollback = |mut policy: Value| {
        policy["metadata"]["annotations"] = json!({"policies.assent.dev/rollback-to": "zero"});
        policy
    };
    let elsewhere = |mut policy: Value| {
        policy["metadata"]["namespace"] = "kube-system".into();
        policy
    };
    all.extend([
        (cluster(&json!({"rules": []})), "spec.rules"),
        (cluster(&json!({"mode": "audit"})), "spec.mode"),
        (cluster(&json!({"module": ""})), "spec.module"),
        (cluster(&json!({"mutating": "yes"})), "spec.mutating"),
        (cluster(&json!({"settings": []})), "spec.settings"),
        (
            cluster(&json!({"timeoutSeconds": 31})),
            "spec.timeoutSeconds",
        ),
        (
            cluster(&json!({"timeoutSeconds": 5, "timeoutEvalSeconds": 5})),
            "spec.timeoutEvalSeconds",
        ),
        (
            cluster(&json!({"failurePolicy": "Maybe"})),
            "spec.failurePolicy",
        ),
        (
            cluster(&json!({"matchPolicy": "Roughly"})),
            "spec.matchPolicy",
        ),
        (cluster(&json!({"sideEffects": "Some"})), "spec.sideEffects"),
        (
            cluster(&json!({"revisionHistoryLimit": 101})),
            "spec.revisionHistoryLimit",
        ),
        (
            cluster(&json!({"rollout": {"progressDeadlineSeconds": 0}})),
            "spec.rollout.progressDeadlineSeconds",
        ),
        (
            cluster(&rule(&json!({"operations": ["create"]}))),
            "spec.rules[0].operations[0]",
        ),
        (
            cluster(&rule(&json!({"resources": []}))),
            "spec.rules[0].resources",
        ),
        (
            cluster(&rule(&json!({"scope": "Nowhere"}))),
            "spec.rules[0].scope",
        ),
        (
            cluster(&json!({"contextAwareResources": [{"apiVersion": "v1"}]})),
            "spec.contextAwareResources[0].kind",
        ),
        (
            cluster(&json!({"matchConditions": [
                {"name": "a", "expression": "true"}, {"name": "a", "expression": "false"},
            ]})),
            "spec.matchConditions[1]",
        ),
        (rollback(cluster(&json!({}))), "metadata.annotations"),
        (elsewhere(namespaced(&json!({}))), "metadata.namespace"),
        (
            namespaced(&rule(&json!({"resources": ["*/*"]}))),
            "spec.rules",
        ),
        (
            namespaced(&rule(&json!({"scope": "Cluster"}))),
            "spec.rules",
        ),
        (server(&json!({"replicas": -1})), "spec.replicas"),
        (
            server(&json!({"minAvailable": 1, "maxUnavailable": 1})),
            "spec",
        ),
        (
            server(&json!({"verification": {"publicKeys": []}})),
            "spec.verification.publicKeys",
        ),
        (
            server(&json!({"sources": {"secure": [{"name": "r"}]}})),
            "spec.sources.secure[0]",
        ),
        (
            server(&json!({"limits": {"memory": "1"}})),
            "spec.limits.memory",
        ),
    ]);
    all
}

/// Errors that only Assent's own validation finds.
fn unseen_by_the_schema() -> Vec<(Value, &'static str)> {
    vec![
        (cluster(&json!({"module": "ftp://x/p.wasm"})), "spec.module"),
        (cluster(&json!({"module": "file:///p.wasm"})), "spec.module"),
        (
            cluster(&json!({"policyServer": "No Server"})),
            "spec.policyServer",
        ),
        (
            cluster(&rule(&json!({"apiGroups": ["*", "apps"]}))),
            "spec.rules[0].apiGroups",
        ),
        (
            cluster(&rule(&json!({"operations": ["*", "CREATE"]}))),
            "spec.rules[0].operations",
        ),
        (
            cluster(&json!({"matchConditions": [{"name": "a b", "expression": "true"}]})),
            "spec.matchConditions[0].name",
        ),
        (
            cluster(
                &json!({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            ),
            "spec.objectSelector.matchExpressions[0].values",
        ),
    ]
}

/// A cluster whose API server already calls Assent's webhooks.
async fn watched() -> Harness {
    let harness = Harness::start(0).await;
    let client = api::admin(&harness).await;
    let (object, _) = unseen_by_the_schema().remove(0);
    let dry = format!("{POLICIES}?dryRun=All");
    let asked = async || api::ask(&client, "POST", &dry, &object).await.0 != 201;
    eventually("Assent's webhooks are asked", asked).await;
    harness
}

async fn refused(kubectl: &Kubectl, object: &Value, path: &str) {
    let namespace = object["metadata"]["namespace"].as_str();
    let kubectl = kubectl.within(namespace.unwrap_or("default"));
    let why = kubectl.try_apply(&object.to_string()).await;
    let why = why.expect_err(&format!("{path} must be refused: {object}"));
    assert!(why.contains(path), "{path} is not named: {why}");
    assert!(!why.contains("failed calling webhook"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_fields_are_rejected_by_path() {
    let harness = watched().await;
    for (object, path) in wrong() {
        refused(&harness.kubectl, &object, path).await;
    }
    // The PolicyServer of a policy is immutable.
    let policy = no_privileged("np", "registry.example/p:v1", &[]);
    harness.kubectl.apply(&policy.to_string()).await;
    let mut moved = policy;
    moved["spec"]["policyServer"] = "other".into();
    refused(&harness.kubectl, &moved, "spec.policyServer").await;
}

/// Without the webhook the API server checks the schema only; status reports the rest.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_bypassed_admission_are_invalid_in_status() {
    const STOP: i32 = 19;
    const GO_ON: i32 = 18;
    let harness = watched().await;
    let mut said = Vec::new();
    for (object, path) in unseen_by_the_schema() {
        let why = harness.kubectl.try_apply(&object.to_string()).await;
        said.push((object, path, why.unwrap_err()));
    }
    // A control plane at work would put its webhooks back.
    let plane = &harness.planes[0].process;
    plane.signal(STOP);
    for kind in [
        "validatingwebhookconfiguration",
        "mutatingwebhookconfiguration",
    ] {
        harness.kubectl.run(&["delete", kind, "--all"]).await;
    }
    for (number, (object, ..)) in said.iter_mut().enumerate() {
        object["metadata"]["name"] = format!("wrong-{number}").into();
        // The API server sees a moment later that nobody is to be asked.
        harness.eventually_apply(object).await;
    }
    plane.signal(GO_ON);
    for (number, (_, path, refusal)) in said.iter().enumerate() {
        let invalid = |object: &Value| condition(object, "Accepted")["reason"] == "Invalid";
        let name = format!("wrong-{number}");
        let args = ["cap", &name];
        let object = harness.kubectl.wait(&args, "invalid", invalid).await;
        let accepted = condition(&object, "Accepted");
        assert_eq!(accepted["status"], "False");
        let message = accepted["message"].as_str().unwrap();
        assert!(message.starts_with(path), "{message}");
        assert!(refusal.contains(message), "{refusal} is not {message}");
    }
    harness
        .kubectl
        .wait_there(&["validatingwebhookconfiguration", "assent"])
        .await;
}
