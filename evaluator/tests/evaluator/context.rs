//! Policies that read objects: the context stream on one side, verdicts on the other.

use std::sync::Arc;

use assent_context::{Collection, CollectionSpec, Mark, SyncState};
use assent_core::{RouteState::*, Snapshot, policy::ContextResource};
use assent_evaluator::{Config, Handle};
use assent_proto::v1;
use assent_wire::context as wire;
use serde_json::{Value, json};

use crate::{
    eventually, guests,
    http::{Client, get},
    peer::{ContextStream, Peer, Stream},
    set::{Revision, delta, full, snapshot},
    start, start_with,
};

/// The control plane's copy of the collection that the policies read.
struct Source {
    collection: Collection,
    sent: u32,
}

fn declared() -> ContextResource {
    ContextResource {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        fields: vec!["data.key".into()],
        ..ContextResource::default()
    }
}

// === impl Source ===

impl Source {
    fn new() -> Self {
        let spec = CollectionSpec::new(&declared(), "configmaps", true).unwrap();
        Self {
            collection: Collection::new(Arc::new(spec)),
            sent: 0,
        }
    }

    fn put(&mut self, name: &str, value: &str) -> v1::ObjectChange {
        let object = json!({"metadata": {"namespace": "a", "name": name}, "data": {"key": value}});
        let key = self.collection.observe(object).unwrap().unwrap();
        let object = self.collection.get(&key).unwrap().json().clone();
        v1::ObjectChange {
            collection: self.collection.spec().id().to_string(),
            namespace: "a".into(),
            name: name.into(),
            object,
            deleted: false,
        }
    }

    fn response(
        &mut self,
        changes: Vec<v1::ObjectChange>,
        state: SyncState,
    ) -> v1::ContextResponse {
        self.sent += 1;
        let mark = Mark {
            collection: self.collection.spec().id(),
            root: self.collection.root(),
            resource_version: "7".into(),
            observed_at: std::time::SystemTime::now(),
            state,
            detail: String::new(),
            totals: self.collection.totals(),
            age: std::time::Duration::ZERO,
        };
        v1::ContextResponse {
            nonce: format!("c{}", self.sent),
            collections: vec![wire::collection_to_proto(self.collection.spec())],
            changes,
            marks: vec![wire::mark_to_proto(&mark)],
            ..v1::ContextResponse::default()
        }
    }
}

/// Fails with the list that it got.
fn lister(generation: i64) -> Revision {
    let payload = r#"{"api_version":"v1","kind":"ConfigMap","namespace":"a"}"#;
    let wasm = guests::ask("kubernetes", "list_resources_by_namespace", payload);
    Revision {
        context: vec![declared()],
        capabilities: vec!["kubernetes/*".into()],
        ..Revision::new("a", generation, &wasm)
    }
}

async fn message(evaluator: &Handle, revision: &Revision) -> String {
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (_, answer) = client
        .review(&format!("/validate/{}", revision.path()))
        .await;
    let message = answer["response"]["status"]["message"].as_str();
    message.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Names and values in the list that the policy got.
async fn listed(evaluator: &Handle, revision: &Revision) -> Vec<(String, String)> {
    let message = message(evaluator, revision).await;
    let at = message
        .find("{\"apiVersion\"")
        .unwrap_or_else(|| panic!("{message}"));
    let list: Value = serde_json::from_str(&message[at..]).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| (text(&item["metadata"]["name"]), text(&item["data"]["key"])))
        .collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    pairs.iter().map(owned).collect()
}

#[tokio::test]
async fn revision_loads_when_its_objects_are_there() {
    let mut peer = Peer::start().await;
    let one = lister(1);
    peer.serve(&one);
    let evaluator = start(&peer).await;
    let mut stream = peer.stream().await;
    let mut context = peer.context().await;
    assert!(context.hello.node.is_some() && context.hello.held.is_empty());
    stream.push(full(&snapshot(&[(&one, Active)]), "n1")).await;
    let refused = stream.answer().await;
    assert_eq!(refused.response_nonce, "n1");
    let [rejected] = refused.rejected.as_slice() else {
        panic!("{refused:?}")
    };
    assert_eq!(
        (rejected.stage(), rejected.retryable),
        (v1::Stage::Context, true)
    );
    let why = rejected.status.clone().unwrap().message;
    assert!(
        why.contains("ConfigMap (v1) is not replicated yet"),
        "{why}"
    );
    assert!(evaluator.ready().is_err());

    // Incomplete: nothing may be concluded from it.
    let mut source = Source::new();
    let change = source.put("x", "1");
    context
        .accepted(source.response(vec![change], SyncState::Syncing))
        .await;
    assert!(evaluator.ready().is_err());
    let change = source.put("y", "2");
    context
        .accepted(source.response(vec![change], SyncState::Synced))
        .await;
    // The same nonce is answered again (R12).
    let answer = stream.answer().await;
    assert_eq!(
        (answer.response_nonce.as_str(), answer.error_detail),
        ("n1", None)
    );
    assert_eq!(evaluator.ready(), Ok(()));
    assert_eq!(
        listed(&evaluator, &one).await,
        pairs(&[("x", "1"), ("y", "2")])
    );

    let change = source.put("x", "3");
    context
        .accepted(source.response(vec![change], SyncState::Synced))
        .await;
    assert_eq!(
        listed(&evaluator, &one).await,
        pairs(&[("x", "3"), ("y", "2")])
    );
}

#[tokio::test]
async fn wrong_root_is_not_served() {
    let mut peer = Peer::start().await;
    let Serving {
        one,
        stream: _stream,
        mut context,
        evaluator,
        mut source,
        ..
    } = synced(&mut peer, |_| {}).await;
    source.put("lost", "9");
    let answer = context
        .exchange(source.response(vec![], SyncState::Synced))
        .await;
    assert!(answer.error_detail.is_some());
    assert_eq!(listed(&evaluator, &one).await, pairs(&[("x", "1")]));
    let [held] = answer.held.as_slice() else {
        panic!("{answer:?}")
    };
    let differ = source.collection.differing_buckets(&held.buckets).unwrap();
    let [bucket] = differ.as_slice() else {
        panic!("{differ:?}")
    };
    let id = source.collection.spec().id().to_string();
    let changes = source.collection.bucket(*bucket).iter();
    let changes = changes.map(|object| v1::ObjectChange {
        collection: id.clone(),
        namespace: "a".into(),
        name: object.key().name().into(),
        object: object.json().clone(),
        deleted: false,
    });
    let changes = changes.collect();
    let repair = v1::ContextResponse {
        resets: vec![v1::BucketReset {
            collection: id,
            buckets: vec![(*bucket).into()],
            all: false,
        }],
        ..source.response(changes, SyncState::Synced)
    };
    context.accepted(repair).await;
    assert_eq!(
        listed(&evaluator, &one).await,
        pairs(&[("lost", "9"), ("x", "1")])
    );
    let metrics = metrics(&evaluator).await;
    assert!(
        metrics.contains("assent_context_mismatches_total 1"),
        "{metrics}"
    );
    assert!(metrics.contains("assent_context_objects{"), "{metrics}");
    assert!(metrics.contains("assent_context_age_seconds{"), "{metrics}");
}

#[tokio::test]
async fn reconnect_names_what_is_held() {
    let mut peer = Peer::start().await;
    let Serving {
        one,
        stream: _stream,
        context,
        evaluator,
        mut source,
        ..
    } = synced(&mut peer, |_| {}).await;
    drop(context);
    let mut context = peer.context().await;
    let [held] = context.hello.held.as_slice() else {
        panic!("{:?}", context.hello)
    };
    assert_eq!(held.root, source.collection.root().as_bytes().as_slice());
    assert_eq!(held.buckets.len(), 0);
    // An equal root: no object is sent.
    context
        .accepted(source.response(vec![], SyncState::Synced))
        .await;
    assert_eq!(listed(&evaluator, &one).await, pairs(&[("x", "1")]));
}

#[tokio::test]
async fn restart_without_control_plane_serves_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut peer = Peer::start().await;
    let state = |config: &mut Config| config.state = Some(dir.path().to_owned());
    let Serving {
        one,
        stream: _stream,
        context,
        evaluator,
        ..
    } = synced(&mut peer, state).await;
    eventually("the objects and the set are saved", async || {
        let saved = std::fs::read_dir(dir.path().join("context"))
            .unwrap()
            .count();
        saved == 2 && dir.path().join("set").is_file()
    })
    .await;
    drop(context);
    let uri = peer.uri();
    peer.stop().await;
    drop(evaluator);
    let mut config = Config::loopback(uri, "evaluator-0");
    config.state = Some(dir.path().to_owned());
    config.timings.ready_without_control_plane = std::time::Duration::ZERO;
    let mut again = None;
    eventually("the state directory is free", async || {
        let config = Config {
            state: config.state.clone(),
            timings: config.timings,
            ..Config::loopback(config.discovery.clone(), "evaluator-0")
        };
        again = assent_evaluator::Evaluator::start(config).await.ok();
        again.is_some()
    })
    .await;
    let evaluator = again.unwrap();
    eventually("it is ready", async || evaluator.ready().is_ok()).await;
    assert_eq!(listed(&evaluator, &one).await, pairs(&[("x", "1")]));
}

#[tokio::test]
async fn live_reads_go_to_the_control_plane() {
    let mut peer = Peer::start().await;
    let Serving {
        one,
        set,
        mut stream,
        context: _context,
        evaluator,
        ..
    } = synced(&mut peer, |_| {}).await;
    let payload = r#"{"api_version":"v1","kind":"ConfigMap","namespace":"a","name":"x","disable_cache":true}"#;
    let get_live = Revision {
        context: vec![declared()],
        capabilities: vec!["kubernetes/*".into()],
        ..Revision::new(
            "get",
            1,
            &guests::ask("kubernetes", "get_resource", payload),
        )
    };
    let review = r#"{"subject_access_review":{"user":"u","resource_attributes":{"resource":"pods","verb":"get"}},"disable_cache":false}"#;
    let can_i = Revision {
        capabilities: vec!["kubernetes/can_i".into()],
        ..Revision::new("can", 1, &guests::ask("kubernetes", "can_i", review))
    };
    peer.serve(&get_live);
    peer.serve(&can_i);
    let all = snapshot(&[(&one, Active), (&get_live, Active), (&can_i, Active)]);
    stream.applied(delta(&set, &all, "n2")).await;
    // Never answered from memory silently.
    let words = message(&evaluator, &get_live).await;
    assert!(words.contains("the API server does not answer"), "{words}");
    let answer = |answer| {
        Some(v1::ContextAnswer {
            answer: Some(answer),
        })
    };
    let object = v1::ObjectAnswer {
        found: true,
        object: br#"{"live":true}"#.as_slice().into(),
    };
    *peer.shared.reply.lock().unwrap() = answer(v1::context_answer::Answer::Object(object));
    let words = message(&evaluator, &get_live).await;
    assert!(words.contains(r#"{"live":true}"#), "{words}");
    let access = v1::AccessAnswer {
        allowed: true,
        reason: "because".into(),
        ..v1::AccessAnswer::default()
    };
    *peer.shared.reply.lock().unwrap() = answer(v1::context_answer::Answer::Access(access));
    peer.shared.queries.lock().unwrap().clear();
    for _ in 0..3 {
        let words = message(&evaluator, &can_i).await;
        assert!(
            words.contains(r#"{"allowed":true,"reason":"because"}"#),
            "{words}"
        );
    }
    let queries = peer.shared.queries.lock().unwrap();
    // The answer is kept for some seconds.
    assert_eq!(queries.len(), 1);
    assert_eq!(queries[0].revision, can_i.path());
}

async fn metrics(evaluator: &Handle) -> String {
    let mut client = Client::plain(evaluator.admin_addr().unwrap()).await;
    let (_, text) = client.send(get("/metrics")).await;
    text.as_str().unwrap().to_owned()
}

/// An evaluator that serves one policy, and what the control plane has of both.
struct Serving {
    one: Revision,
    set: Snapshot,
    stream: Stream,
    context: ContextStream,
    evaluator: Handle,
    source: Source,
}

/// An evaluator that serves the policy with one object.
async fn synced(peer: &mut Peer, change: impl FnOnce(&mut Config)) -> Serving {
    let one = lister(1);
    peer.serve(&one);
    let evaluator = start_with(peer, |config| {
        config.admin_listen = Some(assent_evaluator::Listen::Addr(
            "127.0.0.1:0".parse().unwrap(),
        ));
        change(config);
    })
    .await;
    let mut stream = peer.stream().await;
    let mut context = peer.context().await;
    let mut source = Source::new();
    let first = source.put("x", "1");
    context
        .accepted(source.response(vec![first], SyncState::Synced))
        .await;
    let set = snapshot(&[(&one, Active)]);
    stream.applied(full(&set, "n1")).await;
    Serving {
        one,
        set,
        stream,
        context,
        evaluator,
        source,
    }
}
