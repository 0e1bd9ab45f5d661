//! The life of an installation: everything that nodes, people and upgrades do to it.

use std::panic::{AssertUnwindSafe, resume_unwind};

use assent_e2e::kube::AUDIENCE;
use futures::FutureExt as _;
use serde_json::{Value, json};

use crate::{
    edits, faults,
    installation::{EVALUATORS, Installation, SYSTEM, WORDS, pod, timed, values},
    prometheus, sidecar, uninstall,
    witness::Witness,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_enforces_through_every_fault_and_leaves_nothing() {
    let _turn = crate::turn().await;
    let site = timed("a cluster is there", Installation::prepare()).await;
    let outcome = AssertUnwindSafe(life(&site)).catch_unwind().await;
    if let Err(panic) = outcome {
        site.dump().await;
        resume_unwind(panic);
    }
}

async fn life(site: &Installation) {
    let install = async {
        site.helm(&["install", "--create-namespace"], &values("Never"));
        site.whole(3).await;
        injected(site).await;
    };
    timed("the chart is installed", install).await;
    timed("a policy is enforced", site.protect()).await;
    refused(site).await;

    let witness = Witness::start(site);
    edits::two_hundred_pods(site, &witness).await;
    faults::drained_node(site, &witness).await;
    faults::misfit(site, &witness).await;
    faults::killed_evaluators(site, &witness).await;
    faults::deleted_leader(site, &witness).await;
    faults::killed_control_planes(site, &witness).await;
    faults::cut_network(site, &witness).await;
    faults::upgrade(site, &witness).await;
    faults::scaling(site, &witness).await;
    faults::rollback(site, &witness).await;
    sidecar::beside_a_container_of_a_user(site, &witness).await;
    let scrapes = prometheus::scrapes_both_sides(site);
    timed("Prometheus scrapes both sides", scrapes).await;

    // What is let through from now on is let through rightly.
    drop(witness);
    let gone = uninstall::leaves_nothing(site);
    timed("the chart is uninstalled", gone).await;
}

/// Evaluators come by injection: the template does not even know their image. They have a token
/// for the control plane, and none for the API server.
async fn injected(site: &Installation) {
    let system = site.kubectl.within(SYSTEM);
    let set = system.get(&["statefulset", "policy-server-default"]).await;
    let image = set.pointer("/spec/template/spec/containers/0/image");
    assert_eq!(image, Some(&json!("assent.invalid/auto")));

    for pod in site.pods(EVALUATORS).await {
        let image = &pod["spec"]["containers"][0]["image"];
        assert_eq!(*image, json!("localhost/assent-evaluator:dev"), "{pod:#}");
        let tokens = tokens(&pod);
        assert_eq!(tokens, [AUDIENCE], "{pod:#}");
    }
}

/// Audiences of the tokens that a pod has.
fn tokens(pod: &Value) -> Vec<&str> {
    let volumes = pod["spec"]["volumes"].as_array();
    let sources = volumes.into_iter().flatten().filter_map(|volume| {
        let sources = volume.pointer("/projected/sources");
        sources.and_then(Value::as_array)
    });
    let tokens = sources.flatten().map(|s| &s["serviceAccountToken"]);
    tokens
        .filter(|token| !token.is_null())
        .map(|token| token["audience"].as_str().unwrap_or("the API server"))
        .collect()
}

/// As a user sees it: here, and not where the policy does not apply.
async fn refused(site: &Installation) {
    let pod = pod("privileged", "localhost/busybox:1", true).to_string();
    let words = site.kubectl.try_apply(&pod).await;
    let words = words.expect_err("a privileged pod must be refused");
    assert!(words.contains(WORDS), "{words}");
    let elsewhere = site.kubectl.within("default");
    elsewhere.apply(&pod).await;
    elsewhere.run(&["delete", "pod", "privileged"]).await;
}
