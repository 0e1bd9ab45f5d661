//! Namespaces take turns.

use super::*;

#[tokio::test]
async fn single_policy_does_not_wait_for_a_namespace_with_many() {
    let mut harness = Harness::start(Registry::default()).await;
    let stored = harness
        .vetting
        .artefacts
        .store()
        .put(module(1, 100).into())
        .await;
    let digest = stored.unwrap();
    let job = |namespace: &str, name: &str| Job {
        pinned: Some(digest),
        ..mk_job(namespace, name, "registry://r.io/p:v1".to_owned())
    };
    let wait = harness.dir.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    for n in 0..20 {
        harness.start_job(job("many", &format!("p-{n}")));
    }
    // One of them is vetted, which does not end before all others wait.
    until(|| harness.vetting.compiler.turns.waiting() == 19).await;
    harness.start_job(job("single", "p"));
    until(|| harness.vetting.compiler.turns.waiting() == 20).await;
    std::fs::remove_file(&wait).unwrap();
    let order = harness.accepted(21).await;
    let place = order.iter().position(|key| key == "namespaced/single/p");
    assert!(place.unwrap() <= 2, "{order:?}");
}

#[tokio::test]
async fn cancelled_job_gives_its_turn_to_the_next() {
    let mut harness = Harness::start(Registry::default()).await;
    let stored = harness
        .vetting
        .artefacts
        .store()
        .put(module(1, 100).into())
        .await;
    let digest = stored.unwrap();
    let job = |name: &str| Job {
        pinned: Some(digest),
        ..mk_job("ns", name, "registry://r.io/p:v1".to_owned())
    };
    let wait = harness.dir.path().join("wait");
    std::fs::write(&wait, "").unwrap();
    let cancelled = CancellationToken::new();
    let sources = DeclaredSources::Given(Box::default());
    harness
        .vetting
        .start(job("first"), sources, cancelled.clone());
    until(|| harness.children().0 == 1).await;
    harness.start_job(job("second"));
    until(|| harness.vetting.compiler.turns.waiting() == 1).await;
    cancelled.cancel();
    std::fs::remove_file(&wait).unwrap();
    assert_eq!(harness.accepted(1).await, ["namespaced/ns/second"]);
}
