//! A policy that matches everything and fails closed, without any evaluator.

use assent_e2e::{
    eventually,
    kube::{
        Harness,
        harness::{condition, no_privileged},
    },
    module,
};
use kube::Client;
use serde_json::{Value, json};

use crate::api::{self, POLICIES};

/// Sees every request that a webhook can see.
fn everything(module: &str) -> Value {
    let mut policy = no_privileged("everything", module, &[]);
    policy["spec"]["settings"] = json!({});
    policy["spec"]["failurePolicy"] = "Fail".into();
    policy["spec"]["rules"] = json!([{
        "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"],
    }]);
    policy
}

/// Makes an object that no condition exempts, or does not.
async fn make_config_map(client: &Client) -> Result<(), String> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}});
    let path = "/api/v1/namespaces/default/configmaps?dryRun=All";
    match api::ask(client, "POST", path, &map).await {
        (201, _) => Ok(()),
        (code, status) => Err(format!("{code} {}", status["message"])),
    }
}

async fn renewed(client: &Client) -> (Value, Value) {
    let path = "/apis/coordination.k8s.io/v1/namespaces/assent-system/leases";
    let leases = api::get(client, path).await;
    let leases = leases["items"].as_array().unwrap();
    assert_eq!(leases.len(), 1, "{leases:?}");
    let spec = &leases[0]["spec"];
    (spec["renewTime"].clone(), spec["leaseTransitions"].clone())
}

fn kill_all(harness: &mut Harness) {
    for evaluator in &mut harness.evaluators {
        evaluator.process.kill();
    }
}

async fn wait_refused(client: &Client) {
    let refused = async || {
        let answer = make_config_map(client).await;
        answer.is_err_and(|why| why.contains("failed calling webhook"))
    };
    eventually("requests are refused", refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_recovers_from_a_policy_that_denies_everything() {
    let mut harness = Harness::start(2).await;
    let accept = module::accept_all("everything");
    let module = harness.registry.push("accept:v1", &accept).await;
    harness.enforce(&everything(&module)).await;
    let client = api::admin(&harness).await;
    make_config_map(&client)
        .await
        .expect("it is asked and taken");

    kill_all(&mut harness);
    wait_refused(&client).await;

    // The control plane leads on: nothing of its own waits for the policy.
    let (mut last, transitions) = renewed(&client).await;
    for _ in 0..3 {
        let again = async || renewed(&client).await.0 != last;
        eventually("the Lease is renewed", again).await;
        last = renewed(&client).await.0;
    }
    assert_eq!(renewed(&client).await.1, transitions, "it kept the Lease");
    assert_eq!(harness.planes[0].metric("assent_leader").await, Some(1.0));

    // The control plane accepts policies and reports their state.
    let late = no_privileged("late", &module, &[]);
    let mut late = late;
    late["spec"]["settings"] = json!({});
    let (code, object) = api::ask(&client, "POST", POLICIES, &late).await;
    assert_eq!(code, 201, "{object}");
    let waits = |object: &Value| {
        condition(object, "Accepted")["status"] == "True"
            && condition(object, "Programmed")["status"] == "False"
    };
    let waits = harness.kubectl.wait(&["cap", "late"], "accepted", waits);
    let late = waits.await;
    assert_ne!(condition(&late, "Enforced")["status"], "True");
    let everything = harness.kubectl.get(&["cap", "everything"]).await;
    assert_eq!(everything["status"]["active"]["generation"], 1);

    // Evaluators come back: their tokens are reviewed, they connect, all is enforced.
    for evaluator in &mut harness.evaluators {
        evaluator.restart().await;
        evaluator.wait_ready().await;
    }
    let current = "assent_replicas{policy_server=\"default\",state=\"current\"}";
    eventually("both replicas are current", async || {
        harness.planes[0].metric(current).await == Some(2.0)
    })
    .await;
    harness.enforced("late").await;
    harness.enforced("everything").await;
    let healed = async || make_config_map(&client).await.is_ok();
    eventually("requests are taken again", healed).await;

    // With nobody there again, deleting the policy is the way out.
    kill_all(&mut harness);
    wait_refused(&client).await;
    let delete = ["delete", "cap", "everything", "late", "--timeout=80s"];
    harness.kubectl.run(&delete).await;
    make_config_map(&client)
        .await
        .expect("nobody is asked any more");
    let hooks = [
        "validatingwebhookconfiguration",
        "assent.cluster.everything",
    ];
    harness.kubectl.try_get(&hooks).await.unwrap_err();
}

/// What is already there keeps working too: an evaluator without any state.
#[tokio::test(flavor = "multi_thread")]
async fn new_evaluators_join_a_cluster_that_denies_everything() {
    let mut harness = Harness::start(1).await;
    let accept = module::accept_all("everything");
    let module = harness.registry.push("accept:v1", &accept).await;
    harness.enforce(&everything(&module)).await;
    let client = api::admin(&harness).await;
    kill_all(&mut harness);
    harness.evaluators.clear();
    wait_refused(&client).await;

    // Another pod in its place: made by a controller, its token by the API server, its
    // evaluator with an empty disk.
    harness
        .system
        .run(&[
            "delete",
            "pod",
            "policy-server-default-0",
            "--grace-period=0",
            "--force",
        ])
        .await;
    harness.add_evaluator(0).await;
    let healed = async || make_config_map(&client).await.is_ok();
    eventually("requests are taken again", healed).await;
    harness.enforced("everything").await;
}
