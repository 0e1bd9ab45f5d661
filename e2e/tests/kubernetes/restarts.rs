//! Control planes that end at the worst moments, and what the next one makes of it.

use std::time::Duration;

use assent_e2e::{
    eventually,
    kube::{
        Stage,
        stage::{condition, no_privileged},
    },
};
use serde_json::{Value, json};

/// Where the control plane ends, between any two steps of a change.
const FAILPOINTS: [&str; 8] = [
    "revision.before",
    "revision.after",
    "flip.before",
    "flip.after",
    "retire.before",
    "retire.after",
    "unroute.before",
    "unroute.after",
];

fn generation(policy: &Value) -> i64 {
    policy["status"]["active"]["generation"]
        .as_i64()
        .unwrap_or(0)
}

/// Whether the process ended within the patience of a test.
async fn ended(stage: &mut Stage, place: &str) {
    let plane = &mut stage.planes[0];
    eventually(&format!("it ends at {place}"), async || {
        plane.process.ended().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_any_two_steps_the_next_one_goes_on() {
    let (mut stage, module) = Stage::enforcing(2).await;

    for (round, place) in FAILPOINTS[..6].iter().enumerate() {
        // The one that dies was asked for by an edit, which waits for it.
        stage.replace_plane(&[("ASSENT_FAILPOINT", place)]).await;
        let exempt = [format!("example.com/round-{round}:*")];
        let exempt: Vec<&str> = exempt.iter().map(String::as_str).collect();
        stage
            .eventually_apply(&no_privileged("np", &module, &exempt))
            .await;
        ended(&mut stage, place).await;
        // Nobody decides now, and the cluster is protected all the same.
        let refused = stage
            .try_pod("a", true)
            .await
            .expect_err("it must be refused");
        assert!(
            refused.contains("privileged containers"),
            "after {place}: {refused}"
        );

        stage.replace_plane(&[]).await;
        let policy = stage.enforced("np").await;
        assert_eq!(
            policy["metadata"]["generation"],
            generation(&policy),
            "after {place}"
        );
        stage
            .try_pod("a", true)
            .await
            .expect_err("it must be refused");
    }

    for (round, place) in FAILPOINTS[6..].iter().enumerate() {
        let name = format!("gone-{round}");
        stage.enforce(&no_privileged(&name, &module, &[])).await;
        stage.replace_plane(&[("ASSENT_FAILPOINT", place)]).await;
        stage.planes[0].wait_leading().await;
        stage
            .kubectl
            .run(&["delete", "cap", &name, "--wait=false"])
            .await;
        ended(&mut stage, place).await;
        stage.replace_plane(&[]).await;
        stage.kubectl.wait_gone(&["cap", &name]).await;
        let webhook = format!("assent.cluster.{name}");
        stage
            .kubectl
            .wait_gone(&["validatingwebhookconfiguration", &webhook])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_changes_nothing_and_sends_nothing() {
    let (mut stage, _) = Stage::enforcing(2).await;
    let settled = |object: &Value| object["status"]["rollout"]["applied"] == 2;
    let before = stage
        .kubectl
        .wait(&["cap", "np"], "applied on both", settled)
        .await;
    let version =
        stage.kubectl.get(&["policyserver", "default"]).await["status"]["snapshot"].clone();

    stage.replace_plane(&[]).await;
    stage.planes[0].wait_leading().await;
    eventually("both are confirmed", async || {
        let sample = "assent_discovery_pushes_total{kind=\"no_change\"}";
        stage.planes[0].metric(sample).await == Some(2.0)
    })
    .await;
    let after = stage.kubectl.get(&["cap", "np"]).await;
    for kind in ["Accepted", "Programmed", "Enforced", "Ready"] {
        assert_eq!(condition(&before, kind), condition(&after, kind));
    }
    assert_eq!(before["status"]["active"], after["status"]["active"]);
    let server = stage.kubectl.get(&["policyserver", "default"]).await;
    assert_eq!(server["status"]["snapshot"], version);
    for kind in ["full", "delta"] {
        let sample = format!("assent_discovery_pushes_total{{kind=\"{kind}\"}}");
        let pushed = stage.planes[0].metric(&sample).await;
        assert_eq!(pushed.unwrap_or_default(), 0.0, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_leader_wakes_up_as_nobody() {
    let (mut stage, module) = Stage::enforcing(2).await;
    stage.add_plane("b", &[]).await;
    stage.planes[0].process.signal(19);

    // As a Service does when a pod no longer answers its probes.
    stage.entry.set([stage.planes[1].discovery]);
    stage.planes[1].wait_leading().await;
    stage
        .eventually_apply(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    let policy = stage.enforced("np").await;
    assert_eq!(generation(&policy), 2);

    stage.planes[0].process.signal(18);
    eventually("the first one knows that it does not lead", async || {
        stage.planes[0].metric("assent_leader").await == Some(0.0)
    })
    .await;
    stage
        .enforce(&no_privileged("np", &module, &["example.com/y:*"]))
        .await;
    // Longer than anything that it had in hand could take.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let policy = stage.kubectl.get(&["cap", "np"]).await;
    assert_eq!(generation(&policy), 3);
    assert_eq!(condition(&policy, "Enforced")["status"], "True");
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");

    // In good order the Lease is given up, and the other takes over at once.
    stage.planes[1].process.terminate();
    stage.entry.set([stage.planes[0].discovery]);
    stage.planes[0].wait_leading().await;
    stage
        .enforce(&no_privileged("np", &module, &["example.com/z:*"]))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_may_go_and_come_back() {
    let (stage, module) = Stage::enforcing(1).await;
    stage.api.restart_apiserver().await;
    stage
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    // What was deleted while nobody looked is not missed.
    stage
        .kubectl
        .run(&["delete", "cap", "np", "--timeout=60s"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_is_trusted_before_it_signs() {
    let (stage, module) = Stage::enforcing(1).await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];
    let bundle = "/webhooks/0/clientConfig/caBundle";
    let before = stage.kubectl.get(&webhook).await;
    let before = before.pointer(bundle).cloned().unwrap_or_default();

    let rotate = json!({"metadata": {"annotations": {"policies.assent.dev/rotate": "now"}}});
    stage.system.patch(&["secret", "assent-ca"], &rotate).await;
    let grown = |object: &Value| {
        let length = |v: Option<&Value>| v.and_then(Value::as_str).map_or(0, str::len);
        length(object.pointer(bundle)) > length(Some(&before))
    };
    stage
        .kubectl
        .wait(&webhook, "of both authorities", grown)
        .await;
    // Evaluators go on with what they have, and new pods are told of both.
    stage
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    let both = |object: &Value| {
        let text = object["data"]["ca.crt"].as_str().unwrap_or_default();
        text.matches("BEGIN CERTIFICATE").count() == 2
    };
    stage
        .system
        .wait(&["configmap", "assent-ca"], "of both authorities", both)
        .await;
    stage
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
}
