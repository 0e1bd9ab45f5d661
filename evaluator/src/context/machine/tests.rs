#![allow(clippy::unwrap_used)]

use assent_core::policy::ContextResource;
use bytes::Bytes;
use serde_json::json;

use super::*;

mod simulation;

/// The control plane's side, as simply as possible: a collection and what was sent of it.
struct Peer {
    collection: Collection,
    nonce: u32,
}

/// The evaluator's side.
struct Script {
    machine: Machine,
    out: Vec<Output>,
}

// === impl Peer ===

impl Peer {
    fn new(kind: &str) -> Self {
        let declared = ContextResource {
            api_version: "v1".into(),
            kind: kind.into(),
            ..ContextResource::default()
        };
        let spec = CollectionSpec::new(&declared, "things", true).unwrap();
        Self {
            collection: Collection::new(Arc::new(spec)),
            nonce: 0,
        }
    }

    fn id(&self) -> CollectionId {
        self.collection.spec().id()
    }

    fn put(&mut self, name: &str, value: &str) -> v1::ObjectChange {
        let object = json!({"metadata": {"name": name, "namespace": "a"}, "data": value});
        let key = self.collection.observe(object).unwrap().unwrap();
        self.change(&key)
    }

    fn delete(&mut self, name: &str) -> v1::ObjectChange {
        let key = Key::new("a", name).unwrap();
        assert!(self.collection.remove(&key));
        self.change(&key)
    }

    fn change(&self, key: &Key) -> v1::ObjectChange {
        let object = self.collection.get(key);
        v1::ObjectChange {
            collection: self.id().to_string(),
            namespace: key.namespace().into(),
            name: key.name().into(),
            deleted: object.is_none(),
            object: object.map(|o| o.json().clone()).unwrap_or_default(),
        }
    }

    fn mark(&mut self, state: SyncState) -> v1::CollectionMark {
        wire::mark_to_proto(&Mark {
            collection: self.id(),
            root: self.collection.root(),
            resource_version: String::new(),
            observed_at: SystemTime::UNIX_EPOCH,
            state,
            detail: "detail".into(),
            totals: self.collection.totals(),
            age: Duration::from_secs(1),
        })
    }

    fn response(&mut self, changes: Vec<v1::ObjectChange>) -> v1::ContextResponse {
        self.nonce += 1;
        v1::ContextResponse {
            nonce: self.nonce.to_string(),
            collections: vec![wire::collection_to_proto(self.collection.spec())],
            changes,
            ..v1::ContextResponse::default()
        }
    }

    fn synced(&mut self, changes: Vec<v1::ObjectChange>) -> v1::ContextResponse {
        let mark = self.mark(SyncState::Synced);
        v1::ContextResponse {
            marks: vec![mark],
            ..self.response(changes)
        }
    }
}

// === impl Script ===

impl Script {
    fn new() -> Self {
        Self {
            machine: Machine::new(0),
            out: Vec::new(),
        }
    }

    fn send(&mut self, message: v1::ContextResponse) -> v1::ContextRequest {
        self.out.clear();
        self.machine.receive(message, &mut self.out);
        let answers = self.out.iter().filter_map(|output| match output {
            Output::Answer(answer) => Some(answer.clone()),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        let [answer] = answers.as_slice() else {
            panic!("{answers:?}")
        };
        answer.clone()
    }

    /// Names of the last published state; none if none was published.
    fn published(&self) -> Option<Vec<String>> {
        let snapshot = self.out.iter().rev().find_map(|output| match output {
            Output::Publish(published) => published.snapshot.clone(),
            _ => None,
        })?;
        Some(snapshot.iter().map(|o| o.key().name().to_owned()).collect())
    }

    fn state(&self) -> Option<(SyncState, bool)> {
        self.out.iter().rev().find_map(|output| match output {
            Output::Publish(published) => Some((published.state, published.snapshot.is_some())),
            _ => None,
        })
    }
}

fn accepted(answer: &v1::ContextRequest) {
    assert_eq!(answer.error_detail, None);
    assert_eq!(answer.held, []);
}

#[test]
fn changes_become_visible_at_their_mark() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1"), peer.put("y", "1")];
    let response = peer.response(changes);
    let answer = script.send(response);
    accepted(&answer);
    assert_eq!(answer.response_nonce, "1");
    assert_eq!(script.published(), None);
    let changes = vec![peer.put("z", "1"), peer.delete("x")];
    let response = peer.synced(changes);
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["y", "z"]);
}

#[test]
fn a_collection_is_incomplete_until_it_was_synced() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let change = peer.put("x", "1");
    let mark = peer.mark(SyncState::Syncing);
    let response = v1::ContextResponse {
        marks: vec![mark],
        ..peer.response(vec![change])
    };
    accepted(&script.send(response));
    assert_eq!(script.state(), Some((SyncState::Syncing, false)));
    let response = peer.synced(vec![]);
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["x"]);
    // A control plane that begins to list again does not take away what is served.
    let mark = peer.mark(SyncState::Syncing);
    let response = v1::ContextResponse {
        marks: vec![mark],
        ..peer.response(vec![])
    };
    accepted(&script.send(response));
    assert_eq!(script.state(), Some((SyncState::Stale, false)));
}

#[test]
fn resets_remove_what_is_not_sent_again() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1"), peer.put("y", "1")];
    let response = peer.synced(changes);
    script.send(response);
    peer.delete("x");
    let id = peer.id().to_string();
    let key = Key::new("a", "y").unwrap();
    let reset = v1::BucketReset {
        collection: id,
        buckets: vec![],
        all: true,
    };
    let changes = vec![peer.change(&key)];
    let response = v1::ContextResponse {
        resets: vec![reset],
        ..peer.synced(changes)
    };
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["y"]);
}

#[test]
fn reconnect_names_the_root_and_buckets_on_demand() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1")];
    let response = peer.synced(changes);
    script.send(response);
    let [held] = script.machine.held().try_into().unwrap();
    assert_eq!(held.root, peer.collection.root().as_bytes().as_slice());
    assert_eq!(held.buckets.len(), 0);
    let response = v1::ContextResponse {
        want_buckets: vec![peer.id().to_string()],
        ..peer.response(vec![])
    };
    let answer = script.send(response);
    let [held] = answer.held.try_into().unwrap();
    assert_eq!(
        peer.collection.differing_buckets(&held.buckets),
        Some(vec![])
    );
}

#[test]
fn mismatching_roots_are_repaired_and_never_published() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1")];
    let response = peer.synced(changes);
    script.send(response);
    // A change is lost.
    peer.put("y", "1");
    let response = peer.synced(vec![]);
    let answer = script.send(response);
    assert!(answer.error_detail.is_some());
    assert_eq!(script.published(), None);
    assert_eq!(script.state(), Some((SyncState::Stale, false)));
    assert!(matches!(script.out[0], Output::Mismatch(_)));
    let [held] = answer.held.try_into().unwrap();
    let differ = peer.collection.differing_buckets(&held.buckets).unwrap();
    assert_eq!(differ, [Key::new("a", "y").unwrap().bucket()]);
    // Buckets did not help: the whole collection is asked for.
    let response = peer.synced(vec![]);
    let answer = script.send(response);
    let [held] = answer.held.try_into().unwrap();
    assert_eq!((held.root.len(), held.buckets.len()), (0, 0));
    let change = peer.change(&Key::new("a", "y").unwrap());
    let response = peer.synced(vec![change]);
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["x", "y"]);
}

#[test]
fn an_older_leader_is_refused() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    script.machine.saw(3);
    let change = peer.put("x", "1");
    let from = |transitions, response: v1::ContextResponse| v1::ContextResponse {
        control_plane: Some(v1::ControlPlane {
            lease_transitions: transitions,
            ..v1::ControlPlane::default()
        }),
        ..response
    };
    let response = peer.synced(vec![change.clone()]);
    let answer = script.send(from(2, response));
    assert!(answer.error_detail.is_some());
    assert!(matches!(script.out.last(), Some(Output::Reconnect(_))));
    assert_eq!(script.published(), None);
    let response = peer.synced(vec![change]);
    accepted(&script.send(from(4, response)));
    assert_eq!(script.machine.lease_transitions(), 4);
}

#[test]
fn a_new_collection_over_the_limit_is_refused_and_others_stay() {
    let (mut small, mut large) = (Peer::new("Small"), Peer::new("Large"));
    let mut script = Script::new();
    let limits = |memory_bytes| {
        Some(v1::ContextLimits {
            memory_bytes,
            max_staleness_ms: 0,
        })
    };
    let changes = vec![small.put("x", "1")];
    let response = v1::ContextResponse {
        limits: limits(1_000),
        ..small.synced(changes)
    };
    accepted(&script.send(response));
    let changes = vec![large.put("y", &"1".repeat(1_000))];
    let response = large.synced(changes.clone());
    let answer = script.send(response);
    let why = answer.error_detail.unwrap().message;
    assert!(
        why.contains("Large (v1) exceeds the memory limit of 1000 bytes with 1 objects"),
        "{why}"
    );
    assert_eq!(script.published(), None);
    // What serves may grow.
    let changes = vec![small.put("z", &"1".repeat(1_000))];
    let response = small.synced(changes);
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["x", "z"]);
    // With a higher limit it is asked for again.
    let response = v1::ContextResponse {
        limits: limits(10_000),
        ..small.synced(vec![])
    };
    let [held] = script.send(response).held.try_into().unwrap();
    assert_eq!((held.id, held.root), (large.id().to_string(), Bytes::new()));
}

#[test]
fn absent_kinds_are_not_readable() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1")];
    let response = peer.synced(changes);
    script.send(response);
    let mark = peer.mark(SyncState::Absent);
    let response = v1::ContextResponse {
        marks: vec![mark],
        ..peer.response(vec![])
    };
    accepted(&script.send(response));
    assert_eq!(script.state(), Some((SyncState::Absent, false)));
}

#[test]
fn forged_messages_change_nothing() {
    let (mut peer, mut script) = (Peer::new("Thing"), Script::new());
    let changes = vec![peer.put("x", "1")];
    let response = peer.synced(changes);
    script.send(response);
    let other = Peer::new("Other").id().to_string();
    let mut renamed = peer.change(&Key::new("a", "x").unwrap());
    renamed.name = "forged".into();
    let mut foreign = renamed.clone();
    foreign.collection = other.clone();
    for change in [renamed, foreign] {
        let response = peer.synced(vec![change]);
        let answer = script.send(response);
        assert!(answer.error_detail.is_some());
        assert_eq!(script.published(), None);
    }
    let reset = v1::BucketReset {
        collection: peer.id().to_string(),
        buckets: vec![1_024],
        all: false,
    };
    let response = v1::ContextResponse {
        resets: vec![reset],
        ..peer.response(vec![])
    };
    assert!(script.send(response).error_detail.is_some());
    let response = peer.synced(vec![]);
    accepted(&script.send(response));
    assert_eq!(script.published().unwrap(), ["x"]);
}
