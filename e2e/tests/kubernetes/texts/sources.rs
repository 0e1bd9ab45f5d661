//! Texts in policies, and in ConfigMaps that policies name.

use assent_e2e::kube::harness::{NAMESPACE as SYSTEM, condition};
use serde_json::{Value, json};

use super::{NAMESPACE, Texts, cluster_policy, config_map, rego};

/// A text that is no policy by itself.
fn text(namespace: &str, label: &str) -> Value {
    let mut object = config_map("texts", &rego(label));
    object["metadata"]["labels"] = json!({});
    object["metadata"]["namespace"] = namespace.into();
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_use_texts_of_their_own_and_of_config_maps() {
    let texts = Texts::start().await;

    // In the policy itself; an edit of the text is a new generation.
    let inline = |label: &str| cluster_policy("inline", json!({"source": {"rego": rego(label)}}));
    texts.harness.enforce(&inline("red")).await;
    assert!(texts.denies("red").await);
    texts.harness.enforce(&inline("blue")).await;
    assert!(texts.denies("blue").await && !texts.denies("red").await);
    texts
        .apply(&cluster_policy(
            "inline",
            json!({"source": {"rego": "package p\n\ndeny contains"}}),
        ))
        .await;
    texts.wait_refused("inline", ":3:").await;
    assert!(texts.denies("blue").await);

    // In a ConfigMap: read once per generation of the policy.
    texts.apply(&text(NAMESPACE, "green")).await;
    let module = format!("configmap://{NAMESPACE}/texts/policy.rego");
    let named =
        |settings: Value| cluster_policy("named", json!({"module": module, "settings": settings}));
    texts.harness.enforce(&named(json!({}))).await;
    assert!(texts.denies("green").await);
    texts.apply(&text(NAMESPACE, "yellow")).await;
    assert!(texts.denies("green").await && !texts.denies("yellow").await);
    texts.harness.enforce(&named(json!({"edit": 1}))).await;
    assert!(texts.denies("yellow").await && !texts.denies("green").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn config_maps_are_read_in_policy_namespaces_only() {
    let texts = Texts::start().await;
    let can = async |verb: &str, namespace: &str| {
        let account = format!("--as=system:serviceaccount:{SYSTEM}:assent");
        let kubectl = texts.harness.kubectl.within(namespace);
        let ask = ["auth", "can-i", verb, "configmaps", &account];
        kubectl.attempt(&ask).await.is_ok()
    };
    assert!(can("list", NAMESPACE).await && can("get", NAMESPACE).await);
    assert!(!can("update", NAMESPACE).await && !can("create", NAMESPACE).await);
    assert!(!can("list", "default").await && !can("get", "default").await);

    // A policy of the cluster can't have others read; nor can one of a namespace, beside its own.
    texts.apply(&text("default", "red")).await;
    texts.apply(&text(NAMESPACE, "red")).await;
    let module = json!({"module": "configmap://default/texts/policy.rego"});
    texts.apply(&cluster_policy("outside", module)).await;
    texts
        .wait_refused("outside", "default is not a policy namespace")
        .await;
    let in_namespace = |namespace: &str, of: &str| {
        let module = json!({"module": format!("configmap://{of}/texts/policy.rego")});
        let mut policy = cluster_policy("tenant", module);
        policy["kind"] = "AdmissionPolicy".into();
        policy["metadata"]["namespace"] = namespace.into();
        policy
    };
    let refused = async |policy: Value, part: &str| {
        texts.apply(&policy).await;
        let namespace = policy["metadata"]["namespace"].as_str().unwrap();
        let kubectl = texts.harness.kubectl.within(namespace);
        let is = |object: &Value| {
            let accepted = condition(object, "Accepted");
            accepted["status"] == "False" && accepted["message"].to_string().contains(part)
        };
        kubectl.wait(&["admissionpolicy", "tenant"], part, is).await;
    };
    refused(
        in_namespace("default", NAMESPACE),
        "its own namespace default only",
    )
    .await;
    refused(in_namespace("default", "default"), "policyNamespaces").await;

    // Its own namespace, if that is a policy namespace.
    texts.apply(&in_namespace(NAMESPACE, NAMESPACE)).await;
    let kubectl = texts.harness.kubectl.within(NAMESPACE);
    let is = |object: &Value| condition(object, "Enforced")["status"] == "True";
    kubectl
        .wait(&["admissionpolicy", "tenant"], "enforced", is)
        .await;
}
