//! F6: evaluators are killed while they fetch, compile and swap.

use std::time::Duration;

use assent_e2e::{Evaluator, Options, Up, eventually, manifest::Policy, module, up::condition};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluator_killed_while_loading_recovers() {
    let options = Options::default()
        .policy("neighbour")
        .file("large.wasm", module::large(300))
        .args(&["--drain-seconds", "1", "--replica-grace", "60"]);
    let up = Up::start(options).await;
    let mut evaluator = Evaluator::start(&up.url(), "a").await;
    let object = up.wait_enforced("neighbour", 1).await;
    let revision = object["status"]["active"]["revision"]
        .as_str()
        .unwrap()
        .to_owned();
    let neighbour = format!("cluster/neighbour/{revision}");
    let mut generation = 0;
    for (round, delay) in [0, 5, 20, 50, 100, 200].into_iter().enumerate() {
        // Another module each time, so that nothing of it is there already.
        let more = format!("{{round: {round}}}");
        up.write("large.wasm", module::large(300 + round));
        up.apply(
            "large",
            &Policy::cluster("large")
                .module("large.wasm")
                .settings(&more),
        );
        let newer = |p: &serde_json::Value| {
            p["metadata"]["generation"].as_i64() > Some(generation) && accepted(p)
        };
        up.wait("large", "accepted", newer).await;
        tokio::time::sleep(Duration::from_millis(delay)).await;
        evaluator.restart().await;
        evaluator.wait_ready().await;
        // Whatever happened to the other one, this one is decided.
        assert_eq!(evaluator.validate(&neighbour).await.0, 200);
        let settled = |p: &serde_json::Value| accepted(p) && (enforced(p) || went_down(p));
        let object = up
            .wait(
                "large",
                "enforced, or refused as what brought it down",
                settled,
            )
            .await;
        generation = object["metadata"]["generation"].as_i64().unwrap();
    }
    // One more change of content gets through in any case.
    up.apply(
        "large",
        &Policy::cluster("large")
            .module("large.wasm")
            .settings("{last: true}"),
    );
    up.wait("large", "enforced", |p| {
        p["metadata"]["generation"].as_i64() > Some(generation) && accepted(p) && enforced(p)
    })
    .await;
    let whole = async || evaluator.metric("assent_loaded_policies").await >= 2.0;
    eventually("both are loaded", whole).await;
}

fn accepted(object: &serde_json::Value) -> bool {
    let condition = condition(object, "Accepted");
    condition["status"] == "True"
        && condition["observedGeneration"] == object["metadata"]["generation"]
}

fn enforced(object: &serde_json::Value) -> bool {
    condition(object, "Enforced")["status"] == "True"
}

/// It reports the content that crashed it and does not try that again.
fn went_down(object: &serde_json::Value) -> bool {
    object["status"]["replicas"]
        .to_string()
        .contains("went down while")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_evaluators_receive_no_resources() {
    let up = Up::start(
        Options::default()
            .policy("p")
            .args(&["--replica-grace", "60"]),
    )
    .await;
    let mut evaluators = Vec::new();
    for id in ["a", "b", "c"] {
        evaluators.push(Evaluator::start(&up.url(), id).await);
    }
    let object = up.wait_enforced("p", 1).await;
    let revision = object["status"]["active"]["revision"].as_str().unwrap();
    for evaluator in &evaluators {
        evaluator.wait_kept(&format!("cluster/p/{revision}")).await;
    }
    let full = "assent_discovery_pushes_total{kind=\"full\"}";
    let before = up.metric(full).await;
    for evaluator in &mut evaluators {
        evaluator.process.kill();
    }
    for evaluator in &mut evaluators {
        evaluator.restart().await;
        evaluator.wait_ready().await;
    }
    up.wait_enforced("p", 1).await;
    for id in ["a", "b", "c"] {
        let current = |r: &assent_proto::v1::ReplicaStatus| {
            r.state() == assent_proto::v1::ReplicaState::Current
        };
        up.wait_replica("default", id, current).await;
    }
    assert_eq!(
        up.metric(full).await,
        before,
        "what they hold is not sent again"
    );
}
