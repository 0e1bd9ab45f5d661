//! The memory that evaluations share.

use assent_core::RouteState::Active;
use assent_wasm::{Engine, EngineConfig, MemoryBudget};
use http::StatusCode;

use crate::{
    guests,
    http::{Client, get},
    peer::Peer,
    set::{Revision, full, snapshot},
    start_with,
};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn evaluations_beyond_the_budget_are_refused_and_others_go_on() {
    // Each real request takes 40 MiB, and holds it until its deadline.
    let mut hungry = Revision::new("hungry", 1, &guests::hungry(640, true));
    hungry.timeout_ms = 1_000;
    let modest = Revision::new("modest", 1, &guests::accept());
    let memory = MemoryBudget::new(100 * MIB);
    let engine = Engine::new(EngineConfig {
        memory: memory.clone(),
        ..EngineConfig::small()
    });
    let mut peer = Peer::start().await;
    for revision in [&hungry, &modest] {
        peer.serve(revision);
    }
    let evaluator = start_with(&peer, |config| config.engine = Some(engine.unwrap())).await;
    let mut stream = peer.stream().await;
    let set = snapshot(&[(&hungry, Active), (&modest, Active)]);
    stream.applied(full(&set, "n1")).await;
    let at_rest = memory.used();

    let path = format!("/validate/{}", hungry.path());
    let requests: Vec<_> = (0..6)
        .map(|_| {
            let (addr, path) = (evaluator.listen_addr(), path.clone());
            tokio::spawn(async move { Client::plain(addr).await.review(&path).await.0 })
        })
        .collect();
    let mut client = Client::plain(evaluator.listen_addr()).await;
    for _ in 0..50 {
        let (status, _) = client.review(&format!("/validate/{}", modest.path())).await;
        assert_eq!(status, StatusCode::OK);
        assert!(memory.used() <= 100 * MIB);
    }
    for request in requests {
        // A denial because of the deadline, or a refusal.
        let status = request.await.unwrap();
        assert!(
            [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&status),
            "{status}"
        );
    }
    assert_eq!(memory.used(), at_rest);
}

#[tokio::test]
async fn an_evaluation_that_needs_more_than_there_is_is_a_counted_503() {
    let hungry = Revision::new("hungry", 1, &guests::hungry(640, false));
    let engine = Engine::new(EngineConfig {
        memory: MemoryBudget::new(20 * MIB),
        ..EngineConfig::small()
    });
    let mut peer = Peer::start().await;
    peer.serve(&hungry);
    let evaluator = start_with(&peer, |config| config.engine = Some(engine.unwrap())).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&hungry, Active)]), "n1"))
        .await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, answer) = client.review(&format!("/validate/{}", hungry.path())).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let mut admin = Client::plain(evaluator.admin_addr().unwrap()).await;
    let (_, text) = admin.send(get("/metrics")).await;
    let counted = |line: &str| line == "assent_overload_rejections_total 1";
    assert!(text.as_str().unwrap().lines().any(counted), "{text}");
}
