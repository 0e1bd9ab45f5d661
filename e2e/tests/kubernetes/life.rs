//! The life of policies in a cluster, as a user sees it through kubectl.

use assent_e2e::{
    eventually,
    kube::{
        Stage,
        stage::{condition, no_privileged},
    },
};
use serde_json::{Value, json};

/// Waits until a policy's condition is as wanted: `("Accepted", "False", "Invalid")`.
async fn wait(stage: &Stage, name: &str, (kind, status, reason): (&str, &str, &str)) -> Value {
    let is = |object: &Value| {
        let found = condition(object, kind);
        found["status"] == status
            && found["reason"] == reason
            && found["observedGeneration"] == object["metadata"]["generation"]
    };
    let what = format!("{kind}={status}/{reason}");
    stage.kubectl.wait(&["cap", name], &what, is).await
}

fn active(policy: &Value) -> &Value {
    &policy["status"]["active"]["generation"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_applied_edited_refused_rolled_back_and_deleted() {
    let stage = Stage::start(3).await;
    let module = stage
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;

    // Applied: enforced on all replicas, and a privileged pod is refused by the API server.
    let policy = stage.enforce(&no_privileged("np", &module, &[])).await;
    assert_eq!(active(&policy), 1);
    assert_eq!(policy["status"]["rollout"]["applied"], 3);
    assert_eq!(
        policy["status"]["replicas"].as_array().map(Vec::len),
        Some(3)
    );
    let refused = stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    assert!(
        refused.contains("denied the request: privileged containers"),
        "{refused}"
    );
    stage
        .try_pod("a", false)
        .await
        .expect("a plain pod must be taken");

    // Edited: the new generation takes over.
    stage
        .enforce(&no_privileged("np", &module, &["busybox:*"]))
        .await;
    stage.try_pod("a", true).await.expect("it is exempt now");

    // Bad settings: refused in the module's own words, the last good generation goes on.
    stage
        .kubectl
        .apply(&no_privileged("np", &module, &["*"]).to_string())
        .await;
    let policy = wait(&stage, "np", ("Accepted", "False", "Invalid")).await;
    let message = condition(&policy, "Accepted")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains("would exempt every image"), "{message}");
    assert_eq!(active(&policy), 2);
    assert_eq!(condition(&policy, "Ready")["reason"], "LastGood");
    stage
        .try_pod("a", true)
        .await
        .expect("generation 2 goes on");

    // Rolled back: the spec of generation 1 with its very module, the annotation is gone.
    let annotate = ["annotate", "cap", "np", "policies.assent.dev/rollback-to=1"];
    stage.kubectl.run(&annotate).await;
    let policy = stage.enforced("np").await;
    assert_eq!(active(&policy), 4);
    assert_eq!(policy["spec"]["settings"], json!({"exemptImages": []}));
    let pinned = policy["spec"]["module"].as_str().unwrap_or_default();
    assert!(pinned.contains("@sha256:"), "{pinned}");
    let left = &policy["metadata"]["annotations"]["policies.assent.dev/rollback-to"];
    assert_eq!(*left, Value::Null);
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused again");

    // Deleted: the webhook goes, then the object.
    stage
        .kubectl
        .run(&["delete", "cap", "np", "--timeout=60s"])
        .await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];
    assert!(stage.kubectl.try_get(&webhook).await.is_err());
    stage.try_pod("a", true).await.expect("nobody refuses it");

    // Created again under the same name: another life, generation 1.
    let again = stage.enforce(&no_privileged("np", &module, &[])).await;
    assert_eq!(active(&again), 1);
    assert_ne!(again["metadata"]["uid"], policy["metadata"]["uid"]);
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_said_and_healed_when_it_comes() {
    let mut stage = Stage::start(1).await;

    // A module that is not there: said, tried again, healed.
    let address = stage.registry.address;
    let url = format!("registry://{address}/late:v1");
    stage
        .eventually_apply(&no_privileged("late", &url, &[]))
        .await;
    let policy = wait(&stage, "late", ("Accepted", "False", "PullError")).await;
    let message = condition(&policy, "Accepted")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains("tried again"), "{message}");
    let module = stage
        .registry
        .push_example("late:v1", "no-privileged")
        .await;
    stage.enforced("late").await;

    // Not a module at all: said, not tried for ever.
    let text = stage.registry.push("text:v1", b"this is no module").await;
    stage
        .kubectl
        .apply(&no_privileged("text", &text, &[]).to_string())
        .await;
    wait(&stage, "text", ("Accepted", "False", "Invalid")).await;

    // A registry that is down keeps nothing that is enforced from being enforced.
    stage.registry.stop();
    stage
        .kubectl
        .apply(&no_privileged("late", &url, &["busybox:*"]).to_string())
        .await;
    let policy = wait(&stage, "late", ("Accepted", "False", "PullError")).await;
    assert_eq!(active(&policy), 1);
    stage
        .try_pod("a", true)
        .await
        .expect_err("generation 1 goes on");
    stage.registry.restart().await;
    stage.enforced("late").await;

    // A server that is not there.
    let mut other = no_privileged("other", &module, &[]);
    other["spec"]["policyServer"] = "other".into();
    stage.kubectl.apply(&other.to_string()).await;
    wait(&stage, "other", ("Accepted", "False", "TargetNotFound")).await;
    let server = json!({
        "apiVersion": "policies.assent.dev/v1alpha1", "kind": "PolicyServer",
        "metadata": {"name": "other"},
        "spec": {"sources": {"insecure": [address.to_string()]}},
    });
    stage.kubectl.apply(&server.to_string()).await;
    // Nobody evaluates for it, and that is said too.
    wait(&stage, "other", ("Programmed", "False", "NoReplicas")).await;

    // Deleted: its policies stay and say so.
    stage
        .kubectl
        .run(&["delete", "policyserver", "other", "--timeout=60s"])
        .await;
    wait(&stage, "other", ("Accepted", "False", "TargetNotFound")).await;
    stage
        .system
        .wait_gone(&["statefulset", "policy-server-other"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_changes_is_put_right() {
    let (stage, _) = Stage::enforcing(1).await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];

    let before = stage.kubectl.get(&webhook).await;
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
    stage.kubectl.run(&patch).await;
    let right = |object: &Value| object.pointer(url) == before.pointer(url);
    stage
        .kubectl
        .wait(&webhook, "pointed right again", right)
        .await;

    stage.kubectl.run(&["delete", webhook[0], webhook[1]]).await;
    stage.kubectl.wait(&webhook, "there again", right).await;
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");

    stage
        .system
        .run(&["delete", "service", "policy-server-default"])
        .await;
    stage
        .system
        .wait_there(&["service", "policy-server-default"])
        .await;
    let scale = [
        "scale",
        "statefulset",
        "policy-server-default",
        "--replicas=2",
    ];
    stage.system.run(&scale).await;
    let one = |object: &Value| object["spec"]["replicas"] == 1;
    stage
        .system
        .wait(
            &["statefulset", "policy-server-default"],
            "scaled back",
            one,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutating_policy_changes_objects_and_may_stop_to() {
    let stage = Stage::start(1).await;
    let module = stage.registry.push_example("labels:v1", "add-labels").await;
    let policy = |mutating: bool| {
        let mut policy = no_privileged("labels", &module, &[]);
        policy["spec"]["mutating"] = mutating.into();
        policy["spec"]["settings"] = json!({"labels": {"team": "shop"}});
        policy
    };
    stage.enforce(&policy(true)).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "m"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    });
    stage.kubectl.apply(&pod.to_string()).await;
    let pod = stage.kubectl.get(&["pod", "m"]).await;
    assert_eq!(pod["metadata"]["labels"]["team"], "shop");

    // The other kind of webhook takes over, and the first one goes.
    stage.kubectl.apply(&policy(false).to_string()).await;
    stage.enforced("labels").await;
    let name = "assent.cluster.labels";
    stage
        .kubectl
        .wait_there(&["validatingwebhookconfiguration", name])
        .await;
    stage
        .kubectl
        .wait_gone(&["mutatingwebhookconfiguration", name])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespaced_policy_sees_its_own_namespace_only() {
    let stage = Stage::start(1).await;
    let module = stage
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    stage.kubectl.run(&["create", "namespace", "team"]).await;
    let mut policy = no_privileged("np", &module, &[]);
    policy["kind"] = "AdmissionPolicy".into();
    policy["metadata"]["namespace"] = "team".into();
    let team = stage.kubectl.within("team");
    eventually("the policy is taken", async || {
        team.try_apply(&policy.to_string()).await.is_ok()
    })
    .await;
    let enforced = |object: &Value| condition(object, "Enforced")["status"] == "True";
    team.wait(&["ap", "np"], "enforced", enforced).await;
    stage
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
    // Its revisions are where it is.
    let revisions = team.get(&["policyrevisions"]).await;
    assert_eq!(revisions["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_discovery_state_is_for_those_who_may_see_it() {
    let stage = Stage::start(1).await;
    let plane = &stage.planes[0];
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
async fn a_pod_that_missed_its_injection_is_made_again() {
    let stage = Stage::start(1).await;
    let pod = "policy-server-default-0";
    let bare = "mutatingwebhookconfiguration";
    stage
        .kubectl
        .run(&["delete", bare, "assent-injector"])
        .await;
    let before = stage.system.get(&["pod", pod]).await;
    stage
        .system
        .run(&["delete", "pod", pod, "--wait=false"])
        .await;
    let injected = |object: &Value| {
        let container = &object["spec"]["containers"][0];
        object["metadata"]["uid"] != before["metadata"]["uid"]
            && container["image"] != "assent.invalid/auto"
    };
    stage.system.wait(&["pod", pod], "injected", injected).await;
}
