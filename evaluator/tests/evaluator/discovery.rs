//! The evaluator on its discovery stream.

use std::sync::atomic::Ordering::Relaxed;

use assent_core::{Digest, RouteState::*, Snapshot};
use assent_evaluator::Config;
use assent_proto::v1;
use tonic::Status;

use crate::{
    eventually, guests,
    http::{Client, get, revision},
    peer::Peer,
    set::{Revision, delta, full, snapshot},
    start, start_with,
};

#[tokio::test]
async fn it_tells_where_it_is_reached() {
    let mut peer = Peer::start().await;
    let advertise = |config: &mut Config| config.advertise = Some([10, 1, 2, 3].into());
    let evaluator = start_with(&peer, advertise).await;
    let stream = peer.stream().await;
    let port = evaluator.listen_addr().port();
    let endpoint = stream.hello.node.clone().unwrap().endpoint;
    assert_eq!(endpoint, format!("http://10.1.2.3:{port}"));
}

#[tokio::test]
async fn an_update_is_applied_and_acknowledged() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::deny("one"));
    peer.serve(&one);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let node = stream.hello.node.clone().unwrap();
    assert_eq!(
        (node.id.as_str(), node.policy_server.as_str()),
        ("evaluator-0", "default")
    );
    assert!(!node.instance_uid.is_empty() && !node.engine.is_empty());
    assert_eq!(node.abis, ["wapc", "opa", "gatekeeper", "wasi"]);
    assert_eq!(node.endpoint, format!("http://{}", evaluator.listen_addr()));
    assert_eq!(
        evaluator.ready(),
        Err("no complete set of policies has been loaded yet")
    );

    let first = snapshot(&[(&one, Active)]);
    stream.applied(full(&first, "n1")).await;
    assert_eq!(evaluator.ready(), Ok(()));
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(
        (status.as_u16(), revision(&answer)),
        (200, one.path().as_str())
    );
    assert_eq!(answer["response"]["status"]["message"], "one");

    // The next generation is in place the moment it is acknowledged.
    let two = Revision::new("a", 2, &guests::accept());
    peer.serve(&two);
    let second = snapshot(&[(&one, Active), (&two, Candidate)]);
    stream.applied(delta(&first, &second, "n2")).await;
    let (_, answer) = client.review(&format!("/validate/{}", two.path())).await;
    assert_eq!(answer["response"]["allowed"], true);
    // And a removal is one too.
    stream
        .applied(delta(&second, &Snapshot::empty(), "n3"))
        .await;
    let (status, _) = client.review(&format!("/validate/{}", two.path())).await;
    assert_eq!(status.as_u16(), 404);
}

#[tokio::test]
async fn each_bad_module_is_refused_at_its_stage_and_the_others_serve() {
    let mut peer = Peer::start().await;
    let good = Revision::new("good", 1, &guests::accept());
    let cases = [
        (Revision::new("a", 1, b"not wasm"), v1::Stage::Compile),
        (
            Revision::new("b", 1, &wat::parse_str("(module)").unwrap()),
            v1::Stage::Link,
        ),
        (
            Revision::new("c", 1, &guests::bad_settings()),
            v1::Stage::Settings,
        ),
        (Revision::new("d", 1, &guests::crash()), v1::Stage::Selftest),
    ];
    let mut all = vec![(&good, Active)];
    for (revision, _) in &cases {
        peer.serve(revision);
        all.push((revision, Active));
    }
    peer.serve(&good);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    stream.push(full(&snapshot(&all), "n")).await;
    let answer = stream.answer().await;
    assert!(answer.error_detail.is_some() && answer.version_info.is_empty());
    assert_eq!(answer.rejected.len(), cases.len());
    for ((revision, stage), rejected) in cases.iter().zip(&answer.rejected) {
        assert_eq!(rejected.revision, revision.path());
        assert_eq!(rejected.stage(), *stage, "{rejected:?}");
        assert!(!rejected.retryable && !rejected.status.as_ref().unwrap().message.is_empty());
    }
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.review(&format!("/validate/{}", good.path())).await;
    assert_eq!(status.as_u16(), 200);
    let (status, answer) = client
        .review(&format!("/validate/{}", cases[2].0.path()))
        .await;
    assert_eq!(status.as_u16(), 503);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("no such setting"),
        "{answer}"
    );
    // An active policy is missing: not ready.
    assert!(evaluator.ready().is_err());
}

#[tokio::test]
async fn the_last_good_revision_answers_for_a_rejected_one() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::deny("one"));
    let two = Revision::new("a", 2, b"not wasm");
    peer.serve(&one);
    peer.serve(&two);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let (first, second) = (snapshot(&[(&one, Active)]), snapshot(&[(&two, Active)]));
    stream.applied(full(&first, "n1")).await;
    stream.push(delta(&first, &second, "n2")).await;
    assert_eq!(stream.answer().await.rejected[0].revision, two.path());
    let mut client = Client::plain(evaluator.listen_addr()).await;
    for path in [one.path(), two.path()] {
        let (_, answer) = client.review(&format!("/validate/{path}")).await;
        assert_eq!(revision(&answer), one.path(), "{path}");
    }
}

#[tokio::test]
async fn a_version_that_is_not_its_content_changes_nothing() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let first = snapshot(&[(&one, Active)]);
    let mut forged = full(&first, "n1");
    forged.version_info = Snapshot::empty().version().to_string();
    stream.push(forged).await;
    let answer = stream.answer().await;
    assert!(answer.error_detail.is_some() && answer.rejected.is_empty());
    let mut twice = full(&first, "n2");
    twice.policies.push(twice.policies[0].clone());
    stream.push(twice).await;
    assert!(
        stream
            .answer()
            .await
            .error_detail
            .unwrap()
            .message
            .contains("twice")
    );
    assert!(evaluator.ready().is_err());
    stream.applied(full(&first, "n3")).await;
}

#[tokio::test]
async fn a_changed_content_is_refused_at_verify() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let _evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let mut forged = full(&snapshot(&[(&one, Active)]), "n1");
    forged.policies[0].mutating = true;
    stream.push(forged).await;
    let answer = stream.answer().await;
    assert_eq!(answer.rejected[0].stage(), v1::Stage::Verify);
}

#[tokio::test]
async fn a_missing_module_is_tried_again_and_the_same_nonce_answered() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let first = snapshot(&[(&one, Active)]);
    stream.push(full(&first, "n1")).await;
    let answer = stream.answer().await;
    assert_eq!(answer.rejected[0].stage(), v1::Stage::Fetch);
    assert!(answer.rejected[0].retryable);
    peer.serve(&one);
    let answer = stream.answer().await;
    assert_eq!(
        (answer.response_nonce.as_str(), answer.error_detail),
        ("n1", None)
    );
    assert_eq!(answer.version_info, first.version().to_string());
    assert_eq!(evaluator.ready(), Ok(()));
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_broke() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    peer.shared.break_transfers.store(true, Relaxed);
    let _evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    assert_eq!(peer.shared.fetches.load(Relaxed), 2);
}

#[tokio::test]
async fn equal_content_is_not_fetched_or_made_again() {
    let mut peer = Peer::start().await;
    let wasm = guests::accept();
    let (one, two) = (Revision::new("a", 1, &wasm), Revision::new("a", 2, &wasm));
    peer.serve(&one);
    let _evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let (first, second) = (snapshot(&[(&one, Active)]), snapshot(&[(&two, Active)]));
    stream.applied(full(&first, "n1")).await;
    stream.push(delta(&first, &second, "n2")).await;
    let timing = stream.answer().await.timing.unwrap();
    assert_eq!(peer.shared.fetches.load(Relaxed), 1);
    assert_eq!(timing.compile_us, 0);
}

#[tokio::test]
async fn an_artefact_is_used_only_with_its_digest() {
    let mut peer = Peer::start().await;
    let (one, two) = (
        Revision::new("a", 1, &guests::accept()),
        Revision::new("b", 1, &guests::deny("portable")),
    );
    let engine = crate::engine();
    let artefact = engine.precompile(one.wasm()).unwrap();
    let poisoned = engine.precompile(one.wasm()).unwrap();
    {
        let mut artefacts = peer.shared.artefacts.lock().unwrap();
        let claimed = Digest::of(&artefact).to_string();
        artefacts.insert(Digest::of(one.wasm()).to_string(), (artefact, claimed));
        // Claims one digest, sends other bytes.
        let claimed = Digest::of(b"something else").to_string();
        artefacts.insert(Digest::of(two.wasm()).to_string(), (poisoned, claimed));
    }
    // Only the second has a portable module.
    peer.serve(&two);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active), (&two, Active)]), "n1"))
        .await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (_, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(answer["response"]["allowed"], true);
    let (_, answer) = client.review(&format!("/validate/{}", two.path())).await;
    assert_eq!(answer["response"]["status"]["message"], "portable");
}

#[tokio::test]
async fn a_policy_that_crashes_at_its_first_review_is_a_late_nack() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::crash_later());
    peer.serve(&one);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, answer) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 200);
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(answer["response"]["status"]["code"], 500);
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("cluster/a") && message.contains(&one.path()),
        "{message}"
    );
    let late = stream.answer().await;
    assert_eq!(late.response_nonce, "n1");
    assert_eq!(late.rejected[0].stage(), v1::Stage::Runtime);
}

#[tokio::test]
async fn after_a_reconnect_it_says_what_it_holds() {
    let mut peer = Peer::start().await;
    let (good, bad) = (
        Revision::new("a", 1, &guests::accept()),
        Revision::new("b", 1, b"no"),
    );
    peer.serve(&good);
    peer.serve(&bad);
    let _evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    assert!(stream.hello.initial_revisions.is_empty() && stream.hello.version_info.is_empty());
    let set = snapshot(&[(&good, Active), (&bad, Candidate)]);
    stream.push(full(&set, "n1")).await;
    stream.answer().await;
    stream.fail(Status::aborted("another stream")).await;
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, "");
    let held = &stream.hello.initial_revisions;
    assert_eq!(held.len(), 1);
    assert_eq!(held[&good.path()], good.policy().content_digest.to_string());
    let only = snapshot(&[(&good, Active)]);
    let mut confirm = full(&only, "m1");
    confirm.policies.clear();
    stream.applied(confirm).await;
    drop(stream);
    // Whole now: the version goes first, and a confirmation is enough.
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, only.version().to_string());
    let confirm = v1::DeltaPolicyDiscoveryResponse {
        version_info: only.version().to_string(),
        nonce: "k1".into(),
        no_change: true,
        ..Default::default()
    };
    stream.applied(confirm).await;
}

#[tokio::test]
async fn a_lower_term_is_refused_and_left() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::accept());
    peer.serve(&one);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let set = snapshot(&[(&one, Active)]);
    let term = |mut response: v1::DeltaPolicyDiscoveryResponse, lease_transitions| {
        response.control_plane = Some(v1::ControlPlane {
            lease_transitions,
            ..Default::default()
        });
        response
    };
    stream.applied(term(full(&set, "n1"), 7)).await;
    stream
        .push(term(delta(&set, &Snapshot::empty(), "n2"), 6))
        .await;
    let answer = stream.answer().await;
    assert!(answer.error_detail.is_some() && answer.rejected.is_empty());
    stream.ended().await;
    let next = peer.stream().await;
    assert_eq!(next.hello.version_info, set.version().to_string());
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.review(&format!("/validate/{}", one.path())).await;
    assert_eq!(status.as_u16(), 200);
}

#[tokio::test]
async fn a_standby_sends_it_to_the_leader() {
    let standby = Peer::start().await;
    let mut leader = Peer::start().await;
    let mut status = Status::unavailable("not the leader");
    let address = leader.addr().to_string().parse().unwrap();
    status.metadata_mut().insert("assent-leader", address);
    *standby.shared.refusal.lock().unwrap() = Some(status);
    let _evaluator = start(&standby).await;
    let mut stream = leader.stream().await;
    stream.applied(full(&Snapshot::empty(), "n1")).await;
}

#[tokio::test]
async fn parts_are_one_response() {
    let mut peer = Peer::start().await;
    let (a, b) = (
        Revision::new("a", 1, &guests::accept()),
        Revision::new("b", 1, &guests::deny("b")),
    );
    peer.serve(&a);
    peer.serve(&b);
    let _evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let set = snapshot(&[(&a, Active), (&b, Active)]);
    let (mut first, mut second) = (full(&set, "n1"), full(&set, "n1"));
    (first.part, first.parts, second.part, second.parts) = (1, 2, 2, 2);
    first.policies.remove(1);
    first.routes.clear();
    second.policies.remove(0);
    stream.push(first).await;
    stream.applied(second).await;
}

#[tokio::test]
async fn requests_on_retired_paths_are_told() {
    let mut peer = Peer::start().await;
    let (one, two) = (
        Revision::new("a", 1, &guests::accept()),
        Revision::new("a", 2, &guests::deny("two")),
    );
    peer.serve(&one);
    peer.serve(&two);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let set = snapshot(&[(&one, Retired), (&two, Active)]);
    stream.applied(full(&set, "n1")).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    for _ in 0..3 {
        client.review(&format!("/validate/{}", one.path())).await;
    }
    client.review(&format!("/validate/{}", two.path())).await;
    let shared = peer.shared.clone();
    eventually(
        "three requests on the retired path are reported",
        async || {
            let health = shared.health.lock().unwrap();
            let told = health.iter().flat_map(|request| &request.retired_routes);
            told.map(|route| (route.path == one.path(), route.requests))
                .fold(0, |sum, (is, n)| {
                    assert!(is);
                    sum + n
                })
                == 3
        },
    )
    .await;
}

#[tokio::test]
async fn metrics_tell_what_is_loaded() {
    let mut peer = Peer::start().await;
    let one = Revision::new("a", 1, &guests::deny("no"));
    peer.serve(&one);
    let evaluator = start_with(&peer, |_| {}).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(&one, Active)]), "n1"))
        .await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    client.review(&format!("/validate/{}", one.path())).await;
    let mut admin = Client::plain(evaluator.admin_addr().unwrap()).await;
    let (_, text) = admin.send(get("/metrics")).await;
    let text = text.as_str().unwrap();
    for line in [
        "assent_connected 1",
        "assent_loaded_policies 1",
        "assent_evaluation_seconds_count 1",
        r#"assent_evaluations_total{policy="cluster/a",mode="protect",verdict="denied"} 1"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let (status, _) = admin.send(get("/readyz")).await;
    assert_eq!(status.as_u16(), 200);
}
