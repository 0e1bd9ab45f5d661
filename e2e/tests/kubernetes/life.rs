//! The life of policies in a cluster, as a user sees it through kubectl.

use assent_e2e::{
    eventually,
    kube::{
        Harness,
        harness::{condition, no_privileged},
    },
};
use serde_json::{Value, json};

/// Waits until a policy's condition is as wanted: `("Accepted", "False", "Invalid")`.
async fn wait(harness: &Harness, name: &str, (kind, status, reason): (&str, &str, &str)) -> Value {
    let is = |object: &Value| {
        let found = condition(object, kind);
        found["status"] == status
            && found["reason"] == reason
            && found["observedGeneration"] == object["metadata"]["generation"]
    };
    let what = format!("{kind}={status}/{reason}");
    harness.kubectl.wait(&["cap", name], &what, is).await
}

fn active(policy: &Value) -> &Value {
    &policy["status"]["active"]["generation"]
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_is_applied_edited_refused_rolled_back_and_deleted() {
    let harness = Harness::start(3).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;

    // Applied: enforced on all replicas, and a privileged pod is refused by the API server.
    let policy = harness.enforce(&no_privileged("np", &module, &[])).await;
    assert_eq!(active(&policy), 1);
    assert_eq!(policy["status"]["rollout"]["applied"], 3);
    assert_eq!(
        policy["status"]["replicas"].as_array().map(Vec::len),
        Some(3)
    );
    let refused = harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    assert!(
        refused.contains("denied the request: privileged containers"),
        "{refused}"
    );
    harness
        .try_pod("a", false)
        .await
        .expect("a plain pod must be taken");

    // Edited: the new generation takes over.
    harness
        .enforce(&no_privileged("np", &module, &["busybox:*"]))
        .await;
    harness.try_pod("a", true).await.expect("it is exempt now");

    // Bad settings are refused with the module's message; the last good generation stays.
    harness
        .kubectl
        .apply(&no_privileged("np", &module, &["*"]).to_string())
        .await;
    let policy = wait(&harness, "np", ("Accepted", "False", "Invalid")).await;
    let message = condition(&policy, "Accepted")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains("would exempt every image"), "{message}");
    assert_eq!(active(&policy), 2);
    assert_eq!(condition(&policy, "Ready")["reason"], "LastGood");
    harness
        .try_pod("a", true)
        .await
        .expect("generation 2 goes on");

    // Rolled back: the spec of generation 1 with its very module, the annotation is gone.
    let annotate = ["annotate", "cap", "np", "policies.assent.dev/rollback-to=1"];
    harness.kubectl.run(&annotate).await;
    let policy = harness.enforced("np").await;
    assert_eq!(active(&policy), 4);
    assert_eq!(policy["spec"]["settings"], json!({"exemptImages": []}));
    let pinned = policy["spec"]["module"].as_str().unwrap_or_default();
    assert!(pinned.contains("@sha256:"), "{pinned}");
    let left = &policy["metadata"]["annotations"]["policies.assent.dev/rollback-to"];
    assert_eq!(*left, Value::Null);
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused again");

    // Deleted: the webhook goes, then the object.
    harness
        .kubectl
        .run(&["delete", "cap", "np", "--timeout=60s"])
        .await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];
    assert!(harness.kubectl.try_get(&webhook).await.is_err());
    harness.try_pod("a", true).await.expect("nobody refuses it");

    // Created again under the same name: another life, generation 1.
    let again = harness.enforce(&no_privileged("np", &module, &[])).await;
    assert_eq!(active(&again), 1);
    assert_ne!(again["metadata"]["uid"], policy["metadata"]["uid"]);
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_prerequisites_are_reported_until_they_exist() {
    let mut harness = Harness::start(1).await;

    // A missing module is reported and retried until it exists.
    let address = harness.registry.address;
    let url = format!("registry://{address}/late:v1");
    harness
        .eventually_apply(&no_privileged("late", &url, &[]))
        .await;
    let policy = wait(&harness, "late", ("Accepted", "False", "PullError")).await;
    let message = condition(&policy, "Accepted")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains("retrying"), "{message}");
    let module = harness
        .registry
        .push_example("late:v1", "no-privileged")
        .await;
    harness.enforced("late").await;

    // Something that is no module is reported, and not retried for ever.
    let text = harness.registry.push("text:v1", b"this is no module").await;
    harness
        .kubectl
        .apply(&no_privileged("text", &text, &[]).to_string())
        .await;
    wait(&harness, "text", ("Accepted", "False", "Invalid")).await;

    // A registry that is down keeps nothing that is enforced from being enforced.
    harness.registry.stop();
    harness
        .kubectl
        .apply(&no_privileged("late", &url, &["busybox:*"]).to_string())
        .await;
    let policy = wait(&harness, "late", ("Accepted", "False", "PullError")).await;
    assert_eq!(active(&policy), 1);
    harness
        .try_pod("a", true)
        .await
        .expect_err("generation 1 goes on");
    harness.registry.restart().await;
    harness.enforced("late").await;

    // A server that is not there.
    let mut other = no_privileged("other", &module, &[]);
    other["spec"]["policyServer"] = "other".into();
    harness.kubectl.apply(&other.to_string()).await;
    wait(&harness, "other", ("Accepted", "False", "TargetNotFound")).await;
    let server = json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "other"},
        "spec": {"sources": {"insecure": [address.to_string()]}},
    });
    harness.kubectl.apply(&server.to_string()).await;
    // It has no evaluators, which is reported too.
    wait(&harness, "other", ("Programmed", "False", "NoReplicas")).await;

    // After its deletion the policies stay and report it.
    harness
        .kubectl
        .run(&["delete", "policyserver", "other", "--timeout=60s"])
        .await;
    wait(&harness, "other", ("Accepted", "False", "TargetNotFound")).await;
    harness
        .system
        .wait_gone(&["statefulset", "policy-server-other"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_changes_to_webhooks_are_reverted() {
    let (harness, _) = Harness::enforcing(1).await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];

    let before = harness.kubectl.get(&webhook).await;
    let url = "/webhooks/0/clientConfig/url";
    let broken = json!([{"op": "replace", "path": url, "value": "https://127.0.0.1:1/elsewhere"}]);
    let patch = [
        "patch",
        webhook[0],
        webhook[1],
        "--type=json",
        "-p",
        &broken.to_string(),
    ];
    harness.kubectl.run(&patch).await;
    let right = |object: &Value| object.pointer(url) == before.pointer(url);
    harness
        .kubectl
        .wait(&webhook, "pointed right again", right)
        .await;

    harness
        .kubectl
        .run(&["delete", webhook[0], webhook[1]])
        .await;
    harness.kubectl.wait(&webhook, "there again", right).await;
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");

    harness
        .system
        .run(&["delete", "service", "policy-server-default"])
        .await;
    harness
        .system
        .wait_there(&["service", "policy-server-default"])
        .await;
    let scale = [
        "scale",
        "statefulset",
        "policy-server-default",
        "--replicas=2",
    ];
    harness.system.run(&scale).await;
    let one = |object: &Value| object["spec"]["replicas"] == 1;
    harness
        .system
        .wait(
            &["statefulset", "policy-server-default"],
            "scaled back",
            one,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_policy_may_become_validating() {
    let harness = Harness::start(1).await;
    let module = harness
        .registry
        .push_example("labels:v1", "add-labels")
        .await;
    let policy = |mutating: bool| {
        let mut policy = no_privileged("labels", &module, &[]);
        policy["spec"]["mutating"] = mutating.into();
        policy["spec"]["settings"] = json!({"labels": {"team": "shop"}});
        policy
    };
    harness.enforce(&policy(true)).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    });
    harness.kubectl.apply(&pod.to_string()).await;
    let pod = harness.kubectl.get(&["pod", "m"]).await;
    assert_eq!(pod["metadata"]["labels"]["team"], "shop");

    // The other kind of webhook takes over, and the first one goes.
    harness.kubectl.apply(&policy(false).to_string()).await;
    harness.enforced("labels").await;
    let name = "assent.cluster.labels";
    harness
        .kubectl
        .wait_there(&["validatingwebhookconfiguration", name])
        .await;
    harness
        .kubectl
        .wait_gone(&["mutatingwebhookconfiguration", name])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaced_policy_applies_to_its_own_namespace_only() {
    let harness = Harness::start(1).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    harness.kubectl.run(&["create", "namespace", "team"]).await;
    let mut policy = no_privileged("np", &module, &[]);
    policy["kind"] = "AdmissionPolicy".into();
    policy["metadata"]["namespace"] = "team".into();
    let team = harness.kubectl.within("team");
    eventually("the policy is taken", async || {
        team.try_apply(&policy.to_string()).await.is_ok()
    })
    .await;
    let enforced = |object: &Value| condition(object, "Enforced")["status"] == "True";
    team.wait(&["ap", "np"], "enforced", enforced).await;
    harness
        .try_pod("a", true)
        .await
        .expect("another namespace must not be touched");
    team.wait_there(&["serviceaccount", "default"]).await;
    let run = [
        "run",
        "a",
        "--image=busybox:1",
        "--privileged",
        "--dry-run=server",
    ];
    let refused = team.attempt(&run).await.expect_err("it must be refused");
    assert!(refused.contains("denied the request"), "{refused}");
    // Its revisions are in its own namespace.
    let revisions = team.get(&["policyrevisions"]).await;
    assert_eq!(revisions["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_requires_permission() {
    let harness = Harness::start(1).await;
    let plane = &harness.planes[0];
    let metrics = plane.metrics().await.expect("metrics must be served");
    let checked = assent_e2e::tools::promtool(metrics.as_bytes());
    assert!(
        checked.status.success(),
        "{}",
        assent_e2e::process::text(&checked)
    );
    eventually("the replica is current", async || {
        let sample = "assent_replicas{policy_server=\"default\",state=\"current\"}";
        plane.metric(sample).await == Some(1.0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uninjected_pod_is_recreated() {
    let harness = Harness::start(1).await;
    let pod = "policy-server-default-0";
    let bare = "mutatingwebhookconfiguration";
    harness
        .kubectl
        .run(&["delete", bare, "assent-injector"])
        .await;
    let before = harness.system.get(&["pod", pod]).await;
    harness
        .system
        .run(&["delete", "pod", pod, "--wait=false"])
        .await;
    let injected = |object: &Value| {
        let container = &object["spec"]["containers"][0];
        object["metadata"]["uid"] != before["metadata"]["uid"]
            && container["image"] != "assent.invalid/auto"
    };
    harness
        .system
        .wait(&["pod", pod], "injected", injected)
        .await;
}
