//! R34: an evaluator without a control plane.

use std::fs;

use assent_e2e::{
    Evaluator,
    evaluator::{kept_set, revision as answered_by},
    eventually, module,
    peer::{Peer, Stream},
    set::{Set, revision},
};
use assent_proto::v1::{
    DeltaPolicyDiscoveryResponse, Policy,
    RouteState::{Active, Candidate},
};

/// An evaluator that holds one policy which denies; its set is on disk, its stream open.
async fn settled(peer: &mut Peer, id: &str) -> (Evaluator, Policy, Set, Stream) {
    let wasm = module::deny_all("by the last good set");
    peer.serve(&wasm);
    let evaluator = Evaluator::start(&peer.url(), id).await;
    let mut stream = peer.stream().await;
    let policy = revision("a", 1, &wasm);
    let set = Set::new(&[(&policy, Active)]);
    stream.applied(set.full("n1")).await;
    evaluator.wait_kept(&policy.revision).await;
    (evaluator, policy, set, stream)
}

async fn check_denied(evaluator: &Evaluator, policy: &Policy) {
    let (code, verdict) = evaluator.validate(&policy.revision).await;
    assert_eq!(
        (code, answered_by(&verdict)),
        (200, policy.revision.as_str()),
        "{verdict}"
    );
    assert_eq!(verdict["response"]["allowed"], false);
}

#[tokio::test]
async fn r34_evaluators_serve_and_restart_without_control_plane() {
    let mut peer = Peer::start().await;
    let (mut evaluator, policy, set, _stream) = settled(&mut peer, "r34").await;
    let address = peer.stop().await;
    check_denied(&evaluator, &policy).await;
    evaluator.restart().await;
    evaluator.wait_ready().await;
    check_denied(&evaluator, &policy).await;
    // The control plane is back: it learns what is held, and confirms without resources.
    let mut peer = Peer::start_at(address).await;
    let mut stream = peer.stream().await;
    assert_eq!(stream.hello.version_info, set.version());
    assert_eq!(
        stream.hello.initial_revisions[&policy.revision],
        policy.content_digest
    );
    stream
        .applied(DeltaPolicyDiscoveryResponse {
            version_info: set.version(),
            nonce: "m1".into(),
            no_change: true,
            ..DeltaPolicyDiscoveryResponse::default()
        })
        .await;
}

#[tokio::test]
async fn r34_evaluator_without_a_stored_set_is_never_ready() {
    let address = assent_e2e::up::free_address();
    let evaluator = Evaluator::start(&format!("http://{address}"), "r34b").await;
    // Longer than it waits for a control plane when it has a set.
    tokio::time::sleep(assent_e2e::QUIET * 2).await;
    assert!(!evaluator.ready().await);
    let (code, _) = evaluator.validate("cluster/a/1-5f2a9c1e").await;
    assert!(
        code >= 400,
        "nothing may be allowed by an unknown set: {code}"
    );
}

#[tokio::test]
async fn r34_damaged_set_is_fetched_again() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("truncated", |bytes| bytes.truncate(bytes.len() / 2)),
        ("emptied", Vec::clear),
        ("flipped", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("grown", |bytes| bytes.extend(b"more")),
    ];
    let mut peer = Peer::start().await;
    let (mut evaluator, policy, set, mut open) = settled(&mut peer, "r34c").await;
    let file = kept_set(&evaluator.state());
    for (what, damage) in damages {
        evaluator.process.kill();
        let mut bytes = fs::read(&file).unwrap();
        damage(&mut bytes);
        fs::write(&file, &bytes).unwrap();
        evaluator.restart().await;
        let mut stream = peer.stream().await;
        assert!(stream.hello.initial_revisions.is_empty(), "{what}");
        assert_eq!(stream.hello.version_info, "", "{what}");
        assert!(!evaluator.ready().await, "{what}");
        stream.applied(set.full("again")).await;
        evaluator.wait_ready().await;
        check_denied(&evaluator, &policy).await;
        let kept = async || fs::read(&file).is_ok_and(|now| now != bytes);
        eventually("the set is on disk again", kept).await;
        // One that ended would be opened again before the evaluator is killed.
        open = stream;
    }
    drop(open);
}

#[tokio::test]
async fn r34_damaged_module_is_fetched_again() {
    let mut peer = Peer::start().await;
    let (mut evaluator, policy, set, _stream) = settled(&mut peer, "r34d").await;
    evaluator.process.kill();
    let modules: Vec<_> = fs::read_dir(evaluator.state().join("modules"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(modules.len(), 1);
    // Another module under this one's name: it would allow everything.
    fs::write(modules[0].path(), module::accept_all("")).unwrap();
    evaluator.restart().await;
    let mut stream = peer.stream().await;
    let mut answer = set.full("n2");
    answer
        .policies
        .retain(|p| !stream.hello.initial_revisions.contains_key(&p.revision));
    stream.applied(answer).await;
    evaluator.wait_ready().await;
    check_denied(&evaluator, &policy).await;
}

#[tokio::test]
async fn r34_crashing_content_is_not_tried_again() {
    let mut peer = Peer::start().await;
    let (mut evaluator, good, set, _stream) = settled(&mut peer, "r34e").await;
    // It takes long to compile: the process dies in the middle of that.
    let wasm = module::large(600);
    peer.serve(&wasm);
    let bad = revision("b", 1, &wasm);
    let more = Set::new(&[(&good, Active), (&bad, Candidate)]);
    evaluator.restart().await;
    let mut stream = peer.stream().await;
    let confirm = DeltaPolicyDiscoveryResponse {
        version_info: set.version(),
        nonce: "m1".into(),
        no_change: true,
        ..DeltaPolicyDiscoveryResponse::default()
    };
    stream.applied(confirm).await;
    stream.push(more.since(&set, "m2")).await;
    let attempts = evaluator.state().join("attempts");
    let trying = async || fs::read_dir(&attempts).is_ok_and(|mut d| d.next().is_some());
    eventually("it is being compiled", trying).await;
    evaluator.restart().await;
    let mut stream = peer.stream().await;
    let mut offer = more.full("k1");
    offer
        .policies
        .retain(|p| !stream.hello.initial_revisions.contains_key(&p.revision));
    let answer = stream.refused(offer).await;
    assert_eq!(answer.rejected.len(), 1);
    assert_eq!(answer.rejected[0].revision, bad.revision);
    assert!(!answer.rejected[0].retryable);
    check_denied(&evaluator, &good).await;
}
