//! F1, F4: the control plane is killed at every step of a change.

use assent_e2e::{Evaluator, Options, Up, manifest::Policy, up::condition};
use assent_proto::v1::RouteState;

use crate::Traffic;

async fn three(up: &Up) -> [Evaluator; 3] {
    let url = up.url();
    [
        Evaluator::start(&url, "a").await,
        Evaluator::start(&url, "b").await,
        Evaluator::start(&url, "c").await,
    ]
}

fn edit(up: &Up, generation: i64) {
    up.apply(
        "p",
        &Policy::cluster("p").settings(&format!("{{n: {generation}}}")),
    );
}

/// Kills it, starts it again, and waits until the edit is enforced after all.
async fn killed(up: &mut Up, generation: i64) {
    up.process.kill();
    up.restart().await;
    up.wait_enforced("p", generation).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_plane_killed_at_any_step_continues() {
    let options = Options::default().policy("p").policy("neighbour");
    let mut up = Up::start(options.args(&["--drain-seconds", "2", "--replica-grace", "60"])).await;
    let evaluators = three(&up).await;
    up.wait_enforced("p", 1).await;
    up.wait_enforced("neighbour", 1).await;
    let first = up.fetch("default").await.unwrap();
    let path = |policy: &str| {
        first
            .routes
            .iter()
            .find(|r| r.path.starts_with(policy))
            .unwrap()
            .path
            .clone()
    };
    let traffic = [
        Traffic::start(&evaluators[0], &path("cluster/p/")),
        Traffic::start(&evaluators[1], &path("cluster/p/")),
        Traffic::start(&evaluators[2], &path("cluster/neighbour/")),
    ];

    // Before the edit was looked at.
    edit(&up, 2);
    killed(&mut up, 2).await;
    // While it was being vetted, or as soon as its revision was written.
    edit(&up, 3);
    up.wait("p", "seen", |p| p["metadata"]["generation"] == 3)
        .await;
    killed(&mut up, 3).await;
    // When it was accepted and went out.
    edit(&up, 4);
    up.wait_accepted("p", 4, "Accepted").await;
    killed(&mut up, 4).await;
    // Right after the flip.
    edit(&up, 5);
    up.wait("p", "flipped", |p| p["status"]["active"]["generation"] == 5)
        .await;
    killed(&mut up, 5).await;
    // While the old revision drains.
    edit(&up, 6);
    up.wait_enforced("p", 6).await;
    let draining = up.fetch("default").await.unwrap();
    assert!(
        draining
            .routes
            .iter()
            .any(|r| r.state() == RouteState::Retired)
    );
    killed(&mut up, 6).await;

    for traffic in traffic {
        traffic.check().await;
    }
    let drained = async || up.fetch("default").await.unwrap().routes.len() == 2;
    assent_e2e::eventually("what had been active has left", drained).await;
    let object = up.wait_enforced("neighbour", 1).await;
    assert_eq!(object["status"]["rollout"]["applied"], 3, "{object:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_delete_is_finished() {
    let options = Options::default().policy("p").policy("stays");
    let mut up = Up::start(options.args(&["--drain-seconds", "3"])).await;
    let evaluator = Evaluator::start(&up.url(), "a").await;
    up.wait_enforced("p", 1).await;
    up.wait_enforced("stays", 1).await;
    up.remove("p.yaml");
    up.wait_gone("p").await;
    up.process.kill();
    up.restart().await;
    let left = async || up.fetch("default").await.unwrap().policies.len() == 1;
    assent_e2e::eventually("nothing of it is left", left).await;
    let loaded = async || evaluator.metric("assent_loaded_policies").await == 1.0;
    assent_e2e::eventually("the evaluator has dropped it", loaded).await;
    up.wait_enforced("stays", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluators_restart_with_last_good_set_without_control_plane() {
    let mut up = Up::start(
        Options::default()
            .policy("p")
            .args(&["--drain-seconds", "1"]),
    )
    .await;
    let mut evaluators = three(&up).await;
    let object = up.wait_enforced("p", 1).await;
    let revision = object["status"]["active"]["revision"].as_str().unwrap();
    let path = format!("cluster/p/{revision}");
    for evaluator in &evaluators {
        evaluator.wait_kept(&path).await;
    }
    up.process.kill();
    for evaluator in &mut evaluators {
        evaluator.restart().await;
        evaluator.wait_ready().await;
        assert_eq!(evaluator.validate(&path).await.0, 200);
    }
    // What was edited meanwhile comes with the control plane.
    edit(&up, 2);
    up.restart().await;
    up.wait_enforced("p", 2).await;
}

#[tokio::test]
async fn status_does_not_flap_over_a_restart() {
    let mut up = Up::start(Options::default().policy("p")).await;
    let evaluator = Evaluator::start(&up.url(), "a").await;
    let before = up.wait_enforced("p", 1).await;
    up.process.kill();
    up.restart().await;
    // The revision that is active is so from the first look on.
    let object = up.wait("p", "there", |_| true).await;
    assert_eq!(
        object["status"]["active"]["revision"],
        before["status"]["active"]["revision"]
    );
    assert_ne!(
        condition(&object, "Accepted")["status"],
        "False",
        "{object:#}"
    );
    up.wait_enforced("p", 1).await;
    evaluator.wait_ready().await;
}
