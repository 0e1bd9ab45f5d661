//! Modules that bring the process down, and artefacts that outlive it.

use super::*;

#[tokio::test]
async fn module_that_brought_the_process_down_twice_is_refused() {
    let mut harness = Harness::start(Registry::default()).await;
    let store = harness.vetting.artefacts.store().clone();
    let digest = store.put(module(1, 100).into()).await.unwrap();
    let state = harness.dir.path().to_owned();
    for deaths in 0..2 {
        harness.restart();
        let attempt = harness.vetting.compiler.begin(digest).await.unwrap();
        assert_eq!(attempt.is_careful(), deaths > 0);
        // The process dies while the module is vetted.
        std::mem::forget(attempt);
    }
    harness.restart();
    harness.start_job(pinned("p", digest));
    let failure = harness.outcome().await.result.unwrap_err();
    assert!(!failure.retryable);
    assert_eq!(failure.refusal.reason, RefusalReason::Invalid);
    let message = failure.refusal.message;
    assert!(
        message.contains("brought the control plane down"),
        "{message}"
    );
    assert_eq!(harness.children(), (0, 0));
    // Other modules are not affected, and leave nothing behind.
    let other = store.put(module(2, 100).into()).await.unwrap();
    harness.start_job(pinned("other", other));
    harness.accepted(1).await;
    let marks = std::fs::read_dir(state.join("attempts")).unwrap();
    assert_eq!(marks.count(), 1);
}

#[tokio::test]
async fn careful_attempt_gets_less_memory() {
    let mut harness = Harness::start(Registry::default()).await;
    let store = harness.vetting.artefacts.store().clone();
    let digest = store.put(module(1, 100).into()).await.unwrap();
    let attempt = harness.vetting.compiler.begin(digest).await.unwrap();
    let usual = harness.vetting.compiler.vetter(&attempt).memory_bytes();
    std::mem::forget(attempt);
    harness.restart();
    let compiler = &harness.vetting.compiler;
    let attempt = compiler.begin(digest).await.unwrap();
    assert_eq!(compiler.vetter(&attempt).memory_bytes(), usual / 2);
}

#[tokio::test]
async fn artefacts_of_modules_that_were_never_vetted_here_are_made() {
    let mut harness = Harness::start(Registry::default()).await;
    let store = harness.vetting.artefacts.store().clone();
    let first = store.put(module(1, 100).into()).await.unwrap();
    let second = store.put(module(2, 100).into()).await.unwrap();
    let artefacts = harness.vetting.artefacts().clone();
    // A standby or a new leader: nothing was vetted by this process.
    artefacts.want([first, second, Digest::of(b"not fetched yet")]);
    let making = tokio::spawn(artefacts.clone().run());
    until_async(async || {
        let made = store.stat_artefact("test", first).await.unwrap().is_some();
        made && store.stat_artefact("test", second).await.unwrap().is_some()
    })
    .await;
    assert_eq!(harness.children(), (2, 0));
    // They are made once.
    artefacts.want([first, second]);
    harness.start_job(pinned("p", first));
    harness.accepted(1).await;
    assert_eq!(harness.children(), (2, 1));
    making.abort();
}

#[tokio::test]
async fn artefact_outlives_collections_while_a_revision_names_its_module() {
    let mut harness = Harness::start(Registry::default()).await;
    let store = harness.vetting.artefacts.store().clone();
    let digest = store.put(module(1, 100).into()).await.unwrap();
    harness.start_job(pinned("p", digest));
    harness.accepted(1).await;
    let hour = std::time::SystemTime::now() + Duration::from_secs(3600);
    let artefacts = harness.vetting.artefacts().clone();
    artefacts.collect_at(HashSet::from([digest]), hour).await;
    assert!(store.stat_artefact("test", digest).await.unwrap().is_some());
    artefacts.collect_at(HashSet::new(), hour).await;
    assert!(store.stat_artefact("test", digest).await.unwrap().is_none());
    assert!(store.stat(digest).await.unwrap().is_none());
}
