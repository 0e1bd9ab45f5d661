//! R9, R12, R14, R16, R21, R23, R24, R26, R27: the rules that bind the evaluator, with a
//! scripted control plane at the other end.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use assent_e2e::{
    Evaluator,
    evaluator::revision as answered_by,
    http, module,
    peer::{Peer, Stream},
    set::{Set, revision},
};
use assent_proto::v1::{
    self, ControlPlane, DeltaPolicyDiscoveryRequest, DeltaPolicyDiscoveryResponse,
    RouteState::{Active, Candidate, Retired},
    Stage,
};
use tonic::Status;

/// An evaluator and the stream that it opened.
async fn started(peer: &mut Peer, id: &str) -> (Evaluator, Stream) {
    let evaluator = Evaluator::start(&peer.url(), id).await;
    let stream = peer.stream().await;
    (evaluator, stream)
}

fn rejected(answer: &DeltaPolicyDiscoveryRequest) -> Vec<&str> {
    answer
        .rejected
        .iter()
        .map(|r| r.revision.as_str())
        .collect()
}

#[tokio::test]
async fn r09_every_answer_lists_all_rejected_revisions() {
    let mut peer = Peer::start().await;
    let (good, bad) = (module::accept_all(""), module::garbage());
    let refuses = module::no_settings();
    for wasm in [&good, &bad, &refuses] {
        peer.serve(wasm);
    }
    let (_evaluator, mut stream) = started(&mut peer, "r09").await;
    let (a, b) = (revision("a", 1, &bad), revision("b", 1, &good));
    let one = Set::new(&[(&a, Candidate), (&b, Active)]);
    let answer = stream.refused(one.full("n1")).await;
    assert_eq!(rejected(&answer), [a.revision.as_str()]);
    assert_eq!(answer.rejected[0].stage(), Stage::Compile);
    assert_eq!(answer.version_info, "");
    // Nothing in this one is bad, and it is listed again.
    let c = revision("c", 1, &good);
    let two = Set::new(&[(&a, Candidate), (&b, Active), (&c, Active)]);
    assert_eq!(
        rejected(&stream.refused(two.since(&one, "n2")).await),
        [a.revision.as_str()]
    );
    let d = revision("d", 1, &refuses);
    let three = Set::new(&[(&a, Candidate), (&b, Active), (&c, Active), (&d, Candidate)]);
    let answer = stream.refused(three.since(&two, "n3")).await;
    assert_eq!(
        rejected(&answer),
        [a.revision.as_str(), d.revision.as_str()]
    );
    assert_eq!(answer.rejected[1].stage(), Stage::Settings);
    let words = &answer.rejected[1].status.as_ref().unwrap().message;
    assert!(words.contains("no such setting here"), "{words}");
    // Once they are no longer wanted the version is loaded whole.
    stream
        .applied(two_without(&two, &a).since(&three, "n4"))
        .await;
}

fn two_without(set: &Set, policy: &v1::Policy) -> Set {
    let mut set = set.clone();
    set.policies.retain(|p| p.revision != policy.revision);
    set.routes.retain(|r| r.path != policy.revision);
    set
}

#[tokio::test]
async fn r09_more_than_64_rejections_are_truncated() {
    let mut peer = Peer::start().await;
    let bad = module::garbage();
    peer.serve(&bad);
    let (_evaluator, mut stream) = started(&mut peer, "r09b").await;
    let policies: Vec<_> = (0..70)
        .map(|n| revision(&format!("p{n}"), 1, &bad))
        .collect();
    let routes: Vec<_> = policies.iter().map(|p| (p, Candidate)).collect();
    let answer = stream.refused(Set::new(&routes).full("n1")).await;
    assert!(answer.rejected_truncated);
    assert!(answer.rejected.len() <= 64);
}

#[tokio::test]
async fn r12_retryable_failure_is_retried_and_the_same_nonce_answered() {
    let mut peer = Peer::start().await;
    let (evaluator, mut stream) = started(&mut peer, "r12").await;
    let wasm = module::deny_all("it came after all");
    let a = revision("a", 1, &wasm);
    let set = Set::new(&[(&a, Active)]);
    let answer = stream.refused(set.full("n1")).await;
    assert_eq!(rejected(&answer), [a.revision.as_str()]);
    assert_eq!(answer.rejected[0].stage(), Stage::Fetch);
    assert!(answer.rejected[0].retryable);
    assert!(!evaluator.ready().await);
    peer.serve(&wasm);
    let answer = loop {
        let answer = stream.answer().await;
        assert_eq!(answer.response_nonce, "n1");
        if answer.error_detail.is_none() {
            break answer;
        }
    };
    assert_eq!(answer.version_info, set.version());
    let (code, verdict) = evaluator.validate(&a.revision).await;
    assert_eq!(
        (code, &verdict["response"]["allowed"]),
        (200, &false.into())
    );
}

#[tokio::test]
async fn r14_last_good_revision_answers_for_a_rejected_one() {
    let mut peer = Peer::start().await;
    let (good, bad) = (module::deny_all("one"), module::garbage());
    peer.serve(&good);
    peer.serve(&bad);
    let (evaluator, mut stream) = started(&mut peer, "r14").await;
    let (one, two) = (revision("a", 1, &good), revision("a", 2, &bad));
    let before = Set::new(&[(&one, Active)]);
    stream.applied(before.full("n1")).await;
    // Even if the control plane insists.
    let after = Set::new(&[(&two, Active)]);
    stream.refused(after.since(&before, "n2")).await;
    for path in [&one.revision, &two.revision] {
        let (code, verdict) = evaluator.validate(path).await;
        assert_eq!(code, 200, "{path}: {verdict}");
        assert_eq!(answered_by(&verdict), one.revision, "{path}");
        assert_eq!(verdict["response"]["allowed"], false);
    }
    assert!(evaluator.ready().await);
}

#[tokio::test]
async fn r16_first_message_lists_only_loaded_revisions() {
    let mut peer = Peer::start().await;
    let (good, bad) = (module::accept_all(""), module::garbage());
    peer.serve(&good);
    peer.serve(&bad);
    let (_evaluator, mut stream) = started(&mut peer, "r16").await;
    let node = stream.hello.node.clone().unwrap();
    assert_eq!(
        (node.id.as_str(), node.policy_server.as_str()),
        ("r16", "default")
    );
    assert!(!node.instance_uid.is_empty() && !node.engine.is_empty());
    assert!(stream.hello.initial_revisions.is_empty() && stream.hello.version_info.is_empty());
    let (a, b) = (revision("a", 1, &good), revision("b", 1, &bad));
    let set = Set::new(&[(&a, Active), (&b, Candidate)]);
    stream.refused(set.full("n1")).await;
    stream.end(Status::aborted("another stream")).await;
    let mut stream = peer.stream().await;
    let held = &stream.hello.initial_revisions;
    assert_eq!(held.len(), 1);
    assert_eq!(held[&a.revision], a.content_digest);
    assert_eq!(stream.hello.version_info, "", "it was not loaded whole");
    assert_eq!(
        stream.hello.node.as_ref().unwrap().instance_uid,
        node.instance_uid
    );
    // It is offered once more: refused once more, by what it is.
    let mut offer = set.full("m1");
    offer.policies.retain(|p| p.revision == b.revision);
    assert_eq!(
        rejected(&stream.refused(offer).await),
        [b.revision.as_str()]
    );
    let only = Set::new(&[(&a, Active)]);
    stream.applied(only.since(&set, "m2")).await;
    stream.end(Status::unavailable("going")).await;
    // Whole now: a confirmation is enough.
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, only.version());
    stream
        .applied(DeltaPolicyDiscoveryResponse {
            version_info: only.version(),
            nonce: "k1".into(),
            no_change: true,
            ..DeltaPolicyDiscoveryResponse::default()
        })
        .await;
}

#[tokio::test]
async fn r21_additions_and_removals_are_one_swap() {
    let mut peer = Peer::start().await;
    let (evaluator, mut stream) = started(&mut peer, "r21").await;
    let wasm = module::accept_all("1");
    peer.serve(&wasm);
    let mut policy = revision("a", 1, &wasm);
    let mut set = Set::new(&[(&policy, Active)]);
    stream.applied(set.full("n1")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let url = format!("http://{}/validate/{}", evaluator.listen, policy.revision);
    let asking = tokio::spawn(ask_until(url, stop.clone()));
    for generation in 2..12 {
        let wasm = module::accept_all(&generation.to_string());
        peer.serve(&wasm);
        let next = revision("a", generation, &wasm);
        let after = Set::new(&[(&next, Active)]);
        stream
            .applied(after.since(&set, &format!("n{generation}")))
            .await;
        (policy, set) = (next, after);
    }
    // At least one request after the last swap.
    let (code, verdict) = evaluator.validate(&policy.revision).await;
    assert_eq!(
        (code, answered_by(&verdict)),
        (200, policy.revision.as_str())
    );
    stop.store(true, Ordering::Relaxed);
    let seen = asking.await.unwrap();
    assert!(!seen.is_empty());
    // Never nothing, never back.
    assert!(seen.is_sorted(), "{seen:?}");
}

/// Asks one path all the time: the generations that answered, in order.
async fn ask_until(url: String, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (code, verdict) = http::review(&url, &http::pod()).await.unwrap();
        assert_eq!(code, 200, "{verdict}");
        let by = answered_by(&verdict).strip_prefix("cluster/a/").unwrap();
        seen.push(by.split('-').next().unwrap().parse().unwrap());
    }
    seen
}

#[tokio::test]
async fn r23_duplicate_revision_is_rejected() {
    let mut peer = Peer::start().await;
    let wasm = module::accept_all("");
    peer.serve(&wasm);
    let (evaluator, mut stream) = started(&mut peer, "r23").await;
    let a = revision("a", 1, &wasm);
    let set = Set::new(&[(&a, Active)]);
    let mut twice = set.full("n1");
    twice.policies.push(a.clone());
    let answer = stream.refused(twice).await;
    assert!(answer.rejected.is_empty() && answer.version_info.is_empty());
    assert!(!evaluator.ready().await);
    stream.applied(set.full("n2")).await;
    evaluator.wait_ready().await;
}

#[tokio::test]
async fn r24_mismatching_version_is_rejected() {
    let mut peer = Peer::start().await;
    let wasm = module::accept_all("");
    peer.serve(&wasm);
    let (_evaluator, mut stream) = started(&mut peer, "r24").await;
    let (a, b) = (revision("a", 1, &wasm), revision("b", 1, &wasm));
    let set = Set::new(&[(&a, Active)]);
    let other = Set::new(&[(&a, Active), (&b, Active)]);
    let mut wrong = set.full("n1");
    wrong.version_info = other.version();
    let answer = stream.refused(wrong).await;
    assert!(answer.rejected.is_empty() && answer.version_info.is_empty());
    // A missing route, and one with another state.
    let mut wrong = set.full("n2");
    wrong.routes.clear();
    stream.refused(wrong).await;
    let mut wrong = set.full("n3");
    wrong.routes[0].state = Retired.into();
    stream.refused(wrong).await;
    // Content that does not match its digest rejects that revision.
    let mut forged = set.full("n4");
    forged.policies[0].message = "changed on the way".into();
    let answer = stream.refused(forged).await;
    assert_eq!(rejected(&answer), [a.revision.as_str()]);
    assert_eq!(answer.rejected[0].stage(), Stage::Verify);
}

#[tokio::test]
async fn r26_parts_are_buffered_and_answered_once() {
    let mut peer = Peer::start().await;
    let wasm = module::accept_all("");
    peer.serve(&wasm);
    let (evaluator, mut stream) = started(&mut peer, "r26").await;
    let (a, b) = (revision("a", 1, &wasm), revision("b", 1, &wasm));
    let set = Set::new(&[(&a, Active), (&b, Active)]);
    let part = |part| {
        let mut response = set.full("n1");
        let n = part as usize - 1;
        response.policies = vec![response.policies[n].clone()];
        response.routes = vec![response.routes[n].clone()];
        DeltaPolicyDiscoveryResponse {
            part,
            parts: 2,
            ..response
        }
    };
    stream.push(part(1)).await;
    stream.silent().await;
    assert!(!evaluator.ready().await, "half a set is no set");
    stream.applied(part(2)).await;
    evaluator.wait_ready().await;
    for policy in [&a, &b] {
        assert_eq!(evaluator.validate(&policy.revision).await.0, 200);
    }
}

#[tokio::test]
async fn r27_older_leader_is_rejected() {
    let mut peer = Peer::start().await;
    let wasm = module::accept_all("");
    peer.serve(&wasm);
    let (evaluator, mut stream) = started(&mut peer, "r27").await;
    let (a, b) = (revision("a", 1, &wasm), revision("b", 1, &wasm));
    let term = |mut response: DeltaPolicyDiscoveryResponse, lease_transitions| {
        response.control_plane = Some(ControlPlane {
            lease_transitions,
            ..ControlPlane::default()
        });
        response
    };
    let new = Set::new(&[(&a, Active), (&b, Active)]);
    stream.applied(term(new.full("n1"), 5)).await;
    let old = Set::new(&[(&a, Active)]);
    let answer = stream.refused(term(old.since(&new, "n2"), 4)).await;
    assert!(answer.rejected.is_empty());
    stream.ended().await;
    // It holds and reports the same set, and still knows the number of transitions.
    assert_eq!(evaluator.validate(&b.revision).await.0, 200);
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, new.version());
    // Until a response of the stream was taken, routes are complete.
    let mut back = old.since(&new, "m1");
    (back.routes, back.removed_routes) = (old.routes.clone(), Vec::new());
    stream.applied(term(back, 6)).await;
}
