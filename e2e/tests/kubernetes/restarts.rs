//! Control planes that end at the worst moments, and what the next one makes of it.

use std::time::Duration;

use assent_e2e::{
    eventually,
    kube::{
        Harness,
        harness::{condition, no_privileged},
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
async fn ended(harness: &mut Harness, place: &str) {
    let plane = &mut harness.planes[0];
    eventually(&format!("it ends at {place}"), async || {
        plane.process.ended().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_killed_between_any_two_steps_is_continued() {
    let (mut harness, module) = Harness::enforcing(2).await;

    for (round, place) in FAILPOINTS[..6].iter().enumerate() {
        // The one that dies was asked for by an edit, which waits for it.
        harness.replace_plane(&[("ASSENT_FAILPOINT", place)]).await;
        let exempt = [format!("example.com/round-{round}:*")];
        let exempt: Vec<&str> = exempt.iter().map(String::as_str).collect();
        harness
            .eventually_apply(&no_privileged("np", &module, &exempt))
            .await;
        ended(&mut harness, place).await;
        // Nobody decides now, and the cluster is protected all the same.
        let refused = harness
            .try_pod("a", true)
            .await
            .expect_err("it must be refused");
        assert!(
            refused.contains("privileged containers"),
            "after {place}: {refused}"
        );

        harness.replace_plane(&[]).await;
        let policy = harness.enforced("np").await;
        assert_eq!(
            policy["metadata"]["generation"],
            generation(&policy),
            "after {place}"
        );
        harness
            .try_pod("a", true)
            .await
            .expect_err("it must be refused");
    }

    for (round, place) in FAILPOINTS[6..].iter().enumerate() {
        let name = format!("gone-{round}");
        harness.enforce(&no_privileged(&name, &module, &[])).await;
        harness.replace_plane(&[("ASSENT_FAILPOINT", place)]).await;
        harness.planes[0].wait_leading().await;
        harness
            .kubectl
            .run(&["delete", "cap", &name, "--wait=false"])
            .await;
        ended(&mut harness, place).await;
        harness.replace_plane(&[]).await;
        harness.kubectl.wait_gone(&["cap", &name]).await;
        let webhook = format!("assent.cluster.{name}");
        harness
            .kubectl
            .wait_gone(&["validatingwebhookconfiguration", &webhook])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_changes_and_sends_nothing() {
    let (mut harness, _) = Harness::enforcing(2).await;
    let settled = |object: &Value| object["status"]["rollout"]["applied"] == 2;
    let before = harness
        .kubectl
        .wait(&["cap", "np"], "applied on both", settled)
        .await;
    let version =
        harness.kubectl.get(&["policyserver", "default"]).await["status"]["snapshot"].clone();

    harness.replace_plane(&[]).await;
    harness.planes[0].wait_leading().await;
    eventually("both are confirmed", async || {
        let sample = "assent_discovery_pushes_total{kind=\"no_change\"}";
        harness.planes[0].metric(sample).await == Some(2.0)
    })
    .await;
    let after = harness.kubectl.get(&["cap", "np"]).await;
    for kind in ["Accepted", "Programmed", "Enforced", "Ready"] {
        assert_eq!(condition(&before, kind), condition(&after, kind));
    }
    assert_eq!(before["status"]["active"], after["status"]["active"]);
    let server = harness.kubectl.get(&["policyserver", "default"]).await;
    assert_eq!(server["status"]["snapshot"], version);
    for kind in ["full", "delta"] {
        let sample = format!("assent_discovery_pushes_total{{kind=\"{kind}\"}}");
        let pushed = harness.planes[0].metric(&sample).await;
        assert_eq!(pushed.unwrap_or_default(), 0.0, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_leader_loses_leadership() {
    let (mut harness, module) = Harness::enforcing(2).await;
    harness.add_plane("b", &[]).await;
    harness.planes[0].process.signal(19);

    // As a Service does when a pod no longer answers its probes.
    harness.entry.set([harness.planes[1].discovery]);
    harness.planes[1].wait_leading().await;
    harness
        .eventually_apply(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    let policy = harness.enforced("np").await;
    assert_eq!(generation(&policy), 2);

    harness.planes[0].process.signal(18);
    eventually("the first one knows that it does not lead", async || {
        harness.planes[0].metric("assent_leader").await == Some(0.0)
    })
    .await;
    harness
        .enforce(&no_privileged("np", &module, &["example.com/y:*"]))
        .await;
    // Longer than anything that it had in hand could take.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let policy = harness.kubectl.get(&["cap", "np"]).await;
    assert_eq!(generation(&policy), 3);
    assert_eq!(condition(&policy, "Enforced")["status"], "True");
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");

    // In good order the Lease is given up, and the other takes over at once.
    harness.planes[1].process.terminate();
    harness.entry.set([harness.planes[0].discovery]);
    harness.planes[0].wait_leading().await;
    harness
        .enforce(&no_privileged("np", &module, &["example.com/z:*"]))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_outage_is_survived() {
    let (harness, module) = Harness::enforcing(1).await;
    harness.api.restart_apiserver().await;
    harness
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    // What was deleted while nobody looked is not missed.
    harness
        .kubectl
        .run(&["delete", "cap", "np", "--timeout=60s"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_ca_is_trusted_before_it_signs() {
    let (harness, module) = Harness::enforcing(1).await;
    let webhook = ["validatingwebhookconfiguration", "assent.cluster.np"];
    let bundle = "/webhooks/0/clientConfig/caBundle";
    let before = harness.kubectl.get(&webhook).await;
    let before = before.pointer(bundle).cloned().unwrap_or_default();

    let rotate = json!({"metadata": {"annotations": {"policies.assent.dev/rotate": "now"}}});
    harness
        .system
        .patch(&["secret", "assent-ca"], &rotate)
        .await;
    let grown = |object: &Value| {
        let length = |v: Option<&Value>| v.and_then(Value::as_str).map_or(0, str::len);
        length(object.pointer(bundle)) > length(Some(&before))
    };
    harness
        .kubectl
        .wait(&webhook, "of both authorities", grown)
        .await;
    // Evaluators keep what they have, and new pods trust both.
    harness
        .try_pod("a", true)
        .await
        .expect_err("it must be refused");
    let both = |object: &Value| {
        let text = object["data"]["ca.crt"].as_str().unwrap_or_default();
        text.matches("BEGIN CERTIFICATE").count() == 2
    };
    harness
        .system
        .wait(&["configmap", "assent-ca"], "of both authorities", both)
        .await;
    harness
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_restored_from_a_backup_is_raised() {
    let (mut harness, module) = Harness::enforcing(2).await;
    let lease = ["lease", "assent-control-plane"];
    let transitions = |lease: &Value| lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
    let seen = transitions(&harness.system.get(&lease).await);
    assert!(seen > 0);
    // A backup has an older Lease, and everything that remembers a newer one restarts, except for
    // the evaluators.
    harness.planes[0].process.kill();
    let old = json!({"spec": {"leaseTransitions": seen / 2}});
    harness.system.patch(&lease, &old).await;
    harness.replace_plane(&[]).await;
    harness
        .enforce(&no_privileged("np", &module, &["example.com/x:*"]))
        .await;
    let raised = transitions(&harness.system.get(&lease).await);
    assert!(raised > seen, "{raised} is not above {seen}");
    let log = harness.planes[0].log();
    assert!(log.contains("restored from a backup"), "{log}");
}
