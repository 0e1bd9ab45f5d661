//! The life of an installation: everything that nodes, people and upgrades do to it.

use std::panic::{AssertUnwindSafe, resume_unwind};

use assent_e2e::kube::AUDIENCE;
use futures::FutureExt as _;
use serde_json::{Value, json};

use crate::{
    command_line, edits, faults,
    installation::{EVALUATORS, Installation, SYSTEM, WORDS, pod, timed, values},
    probe::Probe,
    prometheus, sidecar, uninstall,
};

#[tokio::test(flavor = "multi_thread")]
async fn installation_enforces_through_faults_and_uninstalls_cleanly() {
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
    let people = command_line::finds_the_leader(site);
    timed("people see it with a kubeconfig", people).await;

    let probe = Probe::start(site);
    edits::two_hundred_pods(site, &probe).await;
    faults::drained_node(site, &probe).await;
    faults::outdated_pod(site, &probe).await;
    faults::killed_evaluators(site, &probe).await;
    faults::deleted_leader(site, &probe).await;
    faults::killed_control_planes(site, &probe).await;
    faults::cut_network(site, &probe).await;
    faults::upgrade(site, &probe).await;
    faults::scaling(site, &probe).await;
    faults::rollback(site, &probe).await;
    sidecar::beside_a_container_of_a_user(site, &probe).await;
    let scrapes = prometheus::scrapes_both_sides(site);
    timed("Prometheus scrapes both sides", scrapes).await;

    // What is let through from now on is let through rightly.
    drop(probe);
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
