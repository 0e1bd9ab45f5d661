//! Many policies at once.

use std::time::{Duration, Instant};

use assent_e2e::{
    kube::{
        Harness,
        harness::{condition, no_privileged},
    },
    module::accept_all,
};
use kube::Client;
use serde_json::{Value, json};

use crate::api::{self, POLICIES};

const POLICIES_AT_ONCE: usize = 200;

/// The writer's budget: so many at once after quiet, then so many per second.
const BURST: f64 = 50.0;
const PER_SECOND: f64 = 20.0;

/// Each is accepted, programmed and enforced; its generation is seen first. More would be
/// writes for nothing.
const PER_POLICY: f64 = 5.0;

/// Longer than one thing may take: this is two hundred on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);

async fn writes(harness: &Harness, result: &str) -> f64 {
    let sample = format!("assent_status_writes_total{{result=\"{result}\"}}");
    harness.planes[0].metric(&sample).await.unwrap()
}

async fn not_enforced(client: &Client) -> Vec<Value> {
    let list = api::get(client, POLICIES).await;
    let list = list["items"].as_array().unwrap().iter();
    let waits = list.filter(|p| condition(p, "Enforced")["status"] != "True");
    waits.map(|p| p["status"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_policies_are_enforced_within_the_budget() {
    let harness = Harness::start(2).await;
    let module = harness
        .registry
        .push_example("nopriv:v1", "no-privileged")
        .await;
    harness.enforce(&no_privileged("first", &module, &[])).await;
    let client = api::admin(&harness).await;
    // A cluster that has just started is not representative.
    let quiet = harness.planes[0].log().len();

    let (start, before) = (Instant::now(), writes(&harness, "ok").await);
    let accept = harness
        .registry
        .push("accept:v1", &accept_all("many"))
        .await;
    for number in 0..POLICIES_AT_ONCE {
        let mut policy = no_privileged(&format!("p{number}"), &accept, &[]);
        policy["spec"]["settings"] = json!({"number": number});
        let (code, object) = api::ask(&client, "POST", POLICIES, &policy).await;
        assert_eq!(code, 201, "{object}");
    }
    loop {
        let waits = not_enforced(&client).await;
        if waits.is_empty() {
            break;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{} are not enforced, the first: {:#}",
            waits.len(),
            waits[0]
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let written = writes(&harness, "ok").await - before;
    let budget = BURST + PER_SECOND * start.elapsed().as_secs_f64();
    assert!(written <= budget, "{written} writes, {budget} allowed");
    let needed = PER_POLICY * POLICIES_AT_ONCE as f64;
    assert!(written <= needed, "{written} writes, {needed} are enough");

    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let hooks = api::get(&client, hooks).await;
    let ours = |hook: &&Value| {
        let name = hook["metadata"]["name"].as_str().unwrap();
        name.starts_with("assent.cluster.")
    };
    let hooks = hooks["items"].as_array().unwrap().iter().filter(ours);
    assert_eq!(hooks.count(), POLICIES_AT_ONCE + 1);
    let refused = api::try_pod(&client, true).await.unwrap_err();
    assert!(
        refused.contains("denied the request: privileged"),
        "{refused}"
    );
    api::try_pod(&client, false).await.unwrap();
    let mut asked = String::new();
    for evaluator in &harness.evaluators {
        asked += &evaluator.metrics().await;
    }
    for number in 0..POLICIES_AT_ONCE {
        let sample = format!("assent_evaluations_total{{policy=\"cluster/p{number}\"");
        assert!(asked.contains(&sample), "p{number} was not asked");
    }

    let log = harness.planes[0].log();
    let wrong: Vec<&str> = log[quiet..]
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("WARN"))
        .collect();
    assert_eq!(wrong, Vec::<&str>::new());
}
