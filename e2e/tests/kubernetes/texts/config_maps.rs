//! ConfigMaps that are policies.

use assent_e2e::eventually;
use serde_json::{Value, json};

use super::{NAMESPACE, OTHER, Texts, cluster_policy, config_map, rego};
use crate::{
    api::{self, POLICIES},
    hot::Asking,
};

const EDITS: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn config_map_is_a_policy_for_as_long_as_it_exists() {
    let texts = Texts::start().await;
    let kubectl = texts.harness.kubectl.within(NAMESPACE);

    // Created: enforced.
    texts.apply(&config_map("labels", &rego("red"))).await;
    texts.harness.kubectl.wait_there(&["cap", "labels"]).await;
    texts.harness.enforced("labels").await;
    assert!(texts.denies("red").await);
    assert!(!texts.denies("blue").await);

    // Edited: the new text takes over.
    texts.apply(&config_map("labels", &rego("blue"))).await;
    texts.wait_denied("blue").await;
    assert!(!texts.denies("red").await);

    // Broken: the last good text stays; the status and an event have the position of the mistake.
    let broken = config_map("labels", "package labels\n\ndeny contains");
    texts.apply(&broken).await;
    texts.wait_refused("labels", "policy.rego:3:").await;
    texts
        .wait_event(NAMESPACE, "labels", "Refused", "policy.rego:3:")
        .await;
    assert!(texts.denies("blue").await);

    // So does a spec that is none.
    let mut broken = config_map("labels", &rego("green"));
    broken["data"]["policy.yaml"] = "rules: 1".into();
    texts.apply(&broken).await;
    texts
        .wait_event(NAMESPACE, "labels", "Invalid", "policy.yaml")
        .await;
    assert!(texts.denies("blue").await);

    // Repaired. What others wrote on the policy stays.
    let patch = json!({"metadata": {"labels": {"team": "a"}}});
    texts
        .harness
        .kubectl
        .patch(&["cap", "labels"], &patch)
        .await;
    texts.apply(&config_map("labels", &rego("green"))).await;
    texts.wait_denied("green").await;
    let policy = texts.harness.kubectl.get(&["cap", "labels"]).await;
    assert_eq!(policy["metadata"]["labels"]["team"], "a");

    // Without the label no policy, and with it one again.
    let unlabel = [
        "label",
        "configmap",
        "labels",
        "policies.assent.dev/policy-",
    ];
    kubectl.run(&unlabel).await;
    texts.wait_allowed("green").await;
    texts.apply(&config_map("labels", &rego("green"))).await;
    texts.wait_denied("green").await;

    // Renamed.
    kubectl.run(&["delete", "configmap", "labels"]).await;
    texts.apply(&config_map("renamed", &rego("green"))).await;
    texts.harness.kubectl.wait_gone(&["cap", "labels"]).await;
    texts.harness.kubectl.wait_there(&["cap", "renamed"]).await;
    texts.wait_denied("green").await;

    // Deleted and recreated.
    kubectl.run(&["delete", "configmap", "renamed"]).await;
    texts.wait_allowed("green").await;
    texts.apply(&config_map("renamed", &rego("green"))).await;
    texts.wait_denied("green").await;

    // Deleted with its namespace, and with the permission to read there.
    let delete = ["delete", "namespace", NAMESPACE, "--wait=false"];
    kubectl.run(&delete).await;
    texts.harness.kubectl.wait_gone(&["cap", "renamed"]).await;
    texts.wait_allowed("green").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_edits_of_a_config_map_leave_no_request_unenforced() {
    let texts = Texts::start().await;
    texts.apply(&config_map("labels", &rego("red"))).await;
    texts.wait_denied("red").await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/labels");
    let asking = Asking::start(&texts.client);
    for edit in 1..=EDITS {
        let label = format!("edit{edit}");
        let patch = json!({"data": {"policy.rego": rego(&label)}});
        let (code, object) = api::ask(&texts.client, "PATCH", &path, &patch).await;
        assert_eq!(code, 200, "{object}");
        // Some follow each other at once, some after they took over.
        if edit % 5 == 0 {
            texts.wait_denied(&label).await;
        }
        asking.more().await;
    }
    assert_eq!(asking.end().await, Vec::<String>::new());
    assert!(!texts.denies("red").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn config_map_touches_no_policy_of_another() {
    let texts = Texts::start().await;
    let no_red = json!({"source": {"cel": {"validations": [{
        "expression": "!('red' in object.metadata.?labels.orValue({}))",
        "message": "red is not wanted",
    }]}}});
    texts
        .harness
        .enforce(&cluster_policy("labels", no_red))
        .await;
    let by_hand =
        async || api::get(&texts.client, &format!("{POLICIES}/labels")).await["spec"].clone();
    let before = by_hand().await;

    // A policy that somebody wrote.
    texts.apply(&config_map("labels", &rego("blue"))).await;
    texts
        .wait_event(
            NAMESPACE,
            "labels",
            "Conflicted",
            "not made for a ConfigMap",
        )
        .await;
    let kubectl = texts.harness.kubectl.within(NAMESPACE);
    kubectl.run(&["delete", "configmap", "labels"]).await;

    // Two ConfigMaps with one name: the first keeps its policy.
    texts.apply(&config_map("both", &rego("green"))).await;
    texts.wait_denied("green").await;
    let mut second = config_map("both", &rego("blue"));
    second["metadata"]["namespace"] = OTHER.into();
    texts.apply(&second).await;
    texts
        .wait_event(OTHER, "both", "Conflicted", NAMESPACE)
        .await;
    assert!(texts.denies("green").await);

    // It is the turn of the second when the first is gone.
    kubectl.run(&["delete", "configmap", "both"]).await;
    texts.wait_denied("blue").await;

    assert_eq!(by_hand().await, before);
    assert!(texts.denies("red").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_namespace_deletes_no_policy() {
    let texts = Texts::start().await;
    texts.apply(&config_map("labels", &rego("red"))).await;
    texts.wait_denied("red").await;
    let kubectl = texts.harness.kubectl.within(NAMESPACE);
    let delete = ["delete", "rolebinding", "--all"];
    kubectl.run(&delete).await;
    kubectl.run(&["delete", "configmap", "labels"]).await;
    // The leader fails to list, and keeps what there is: seen in its log, which it writes after each pass.
    let log = || texts.harness.planes[0].log();
    eventually("the leader fails to confirm", async || {
        log().contains("failed to keep the policy of a ConfigMap")
    })
    .await;
    assert!(texts.denies("red").await);
    let policy: Value = texts.harness.kubectl.get(&["cap", "labels"]).await;
    assert_eq!(policy["metadata"]["deletionTimestamp"], Value::Null);
}
