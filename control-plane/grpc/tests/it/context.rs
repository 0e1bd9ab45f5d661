//! Objects that policies read, over a real socket: rules C1 to C10.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use assent_context::{
    Collection, CollectionId, CollectionSpec, Key, SyncState,
    collection::Prefixes,
    feed::Change,
    sink::{AccessReview, AccessVerdict, CollectionSink, ReadError},
};
use assent_core::{Policy, PolicyKey, policy::ContextResource};
use assent_grpc::context::{Assigned, Limits, LiveReads};
use assent_proto::v1::{
    self, context_answer::Answer, context_query::Query,
    context_service_client::ContextServiceClient,
};
use assent_wire::context as wire;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::support::{Plane, mk_node, mk_policy, mk_set, within};

/// Answers live reads as it is told.
#[derive(Default)]
pub(crate) struct Live(Mutex<BTreeMap<String, Value>>);

#[tonic::async_trait]
impl LiveReads for Live {
    async fn get(
        &self,
        _: &CollectionSpec,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ReadError> {
        if name == "slow" {
            std::future::pending::<()>().await;
        }
        let objects = self.0.lock().unwrap();
        Ok(objects.get(&format!("{namespace}/{name}")).cloned())
    }

    async fn review(&self, review: AccessReview) -> Result<AccessVerdict, ReadError> {
        Ok(AccessVerdict {
            allowed: review.user == "alice",
            ..AccessVerdict::default()
        })
    }
}

/// One stream, and the copies that an evaluator keeps of its collections.
struct Client {
    tx: mpsc::Sender<v1::ContextRequest>,
    rx: Streaming<v1::ContextResponse>,
    copies: BTreeMap<String, Collection>,
    /// Keys that changes named since the last mark, and buckets that are sent whole.
    named: BTreeMap<String, BTreeSet<Key>>,
    resets: BTreeMap<String, v1::BucketReset>,
    objects: usize,
}

fn mk_spec(kind: &str, fields: &[&str]) -> Arc<CollectionSpec> {
    let declared = mk_declared(kind, fields);
    let plural = format!("{}s", kind.to_lowercase());
    Arc::new(CollectionSpec::new(&declared, &plural, true).unwrap())
}

fn mk_declared(kind: &str, fields: &[&str]) -> ContextResource {
    ContextResource {
        api_version: "v1".into(),
        kind: kind.into(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        ..ContextResource::default()
    }
}

fn mk_object(kind: &str, name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}, "data": {"a": data}})
}

fn key(name: &str) -> Key {
    Key::new("n", name).unwrap()
}

fn mk_change(spec: &Arc<CollectionSpec>, name: &str, data: &str) -> Change {
    let projector = Collection::new(spec.clone());
    let projected = projector.project(mk_object(spec.kind(), name, data));
    projected.unwrap().unwrap()
}

fn assign(plane: &Plane, specs: &[&Arc<CollectionSpec>]) {
    let collections = specs.iter().map(|spec| (spec.id(), (*spec).clone()));
    let assigned = Assigned {
        collections: collections.collect(),
        complete: true,
        limits: Limits {
            memory_bytes: 77,
            max_staleness_ms: 0,
        },
    };
    plane.hub.context().assign("default", assigned);
}

/// Fills a collection with a complete list.
fn list(plane: &Plane, spec: &Arc<CollectionSpec>, names: &[&str]) {
    let sink = plane.hub.context();
    sink.open(spec);
    let changes = names
        .iter()
        .map(|name| mk_change(spec, name, "x"))
        .collect();
    let keys = names.iter().map(|name| key(name)).collect();
    sink.complete(&spec.id(), &keys, changes, "1");
}

fn mk_first(id: &str, held: Vec<v1::CollectionHeld>) -> v1::ContextRequest {
    v1::ContextRequest {
        node: Some(mk_node(id)),
        held,
        ..Default::default()
    }
}

// === impl Client ===

impl Client {
    async fn open(plane: &Plane, first: v1::ContextRequest) -> Result<Self, Status> {
        let (tx, requests) = mpsc::channel(64);
        tx.send(first).await.unwrap();
        let mut client = ContextServiceClient::new(plane.channel().await);
        let rx = client.stream_context(ReceiverStream::new(requests)).await?;
        Ok(Self {
            tx,
            rx: rx.into_inner(),
            copies: BTreeMap::new(),
            named: BTreeMap::new(),
            resets: BTreeMap::new(),
            objects: 0,
        })
    }

    async fn next(&mut self) -> v1::ContextResponse {
        let message = within(self.rx.message()).await.unwrap();
        message.expect("the stream must go on")
    }

    async fn answer(&self, response: &v1::ContextResponse) {
        let request = v1::ContextRequest {
            response_nonce: response.nonce.clone(),
            ..Default::default()
        };
        self.tx.send(request).await.unwrap();
    }

    /// Takes a response as an evaluator does, and answers it. Every root must match.
    async fn take(&mut self) -> v1::ContextResponse {
        let response = self.next().await;
        for collection in &response.collections {
            let spec = wire::collection(collection.clone()).unwrap();
            let copy = self.copies.entry(collection.id.clone());
            copy.or_insert_with(|| Collection::new(spec));
        }
        for id in &response.removed_collections {
            self.copies.remove(id);
        }
        for reset in &response.resets {
            self.resets.insert(reset.collection.clone(), reset.clone());
        }
        for change in &response.changes {
            self.change(change);
        }
        for mark in &response.marks {
            self.mark(mark);
        }
        for id in &response.want_buckets {
            self.send_buckets(id).await;
        }
        self.answer(&response).await;
        response
    }

    fn change(&mut self, change: &v1::ObjectChange) {
        let key = Key::new(&change.namespace, &change.name).unwrap();
        let copy = self.copies.get_mut(&change.collection).unwrap();
        match change.deleted {
            true => drop(copy.remove(&key)),
            false => drop(copy.put(key.clone(), &change.object).unwrap()),
        }
        self.objects += usize::from(!change.deleted);
        self.named
            .entry(change.collection.clone())
            .or_default()
            .insert(key);
    }

    fn mark(&mut self, mark: &v1::CollectionMark) {
        if mark.state() == v1::SyncState::Syncing {
            return;
        }
        let copy = self.copies.get_mut(&mark.collection).unwrap();
        let named = self.named.remove(&mark.collection).unwrap_or_default();
        if let Some(reset) = self.resets.remove(&mark.collection) {
            let in_reset =
                |key: &Key| reset.all || reset.buckets.contains(&u32::from(key.bucket()));
            let held = copy.iter().map(|object| object.key().clone());
            let kept: BTreeSet<Key> = held
                .filter(|key| named.contains(key) || !in_reset(key))
                .collect();
            copy.retain(&kept);
        }
        assert_eq!(
            copy.root().as_bytes(),
            &mark.root[..],
            "the root must match"
        );
    }

    async fn send_buckets(&mut self, id: &str) {
        let copy = self.copies.get_mut(id).unwrap();
        let prefixes: Prefixes = copy.bucket_prefixes();
        let root = copy.root();
        let held = wire::held_to_proto(copy.spec().id(), Some(&root), Some(&prefixes));
        let request = v1::ContextRequest {
            held: vec![held],
            ..Default::default()
        };
        self.tx.send(request).await.unwrap();
    }

    /// Takes responses until one marks the collection in this state.
    async fn marked(&mut self, id: CollectionId, state: v1::SyncState) -> v1::CollectionMark {
        loop {
            let response = self.take().await;
            let mark = response
                .marks
                .into_iter()
                .find(|m| m.collection == id.to_string() && m.state == i32::from(state));
            if let Some(mark) = mark {
                return mark;
            }
        }
    }

    async fn end(&mut self) -> Status {
        loop {
            match within(self.rx.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::new(Code::Ok, ""),
                Err(status) => return status,
            }
        }
    }
}

#[tokio::test]
async fn c1_client_gets_what_is_assigned_and_can_ask_for_nothing() {
    let plane = Plane::synced(&["a"]).await;
    let (own, foreign) = (mk_spec("Pod", &[]), mk_spec("Secret", &[]));
    list(&plane, &own, &["p"]);
    list(&plane, &foreign, &["s"]);
    assign(&plane, &[&own]);
    // It claims to hold a collection of others, and asks for all of it.
    let held = wire::held_to_proto(foreign.id(), None, None);
    let mut client = Client::open(&plane, mk_first("r-0", vec![held.clone()]))
        .await
        .unwrap();
    let first = client.take().await;
    let ids: Vec<_> = first.collections.iter().map(|c| c.id.clone()).collect();
    assert_eq!(ids, [own.id().to_string()]);
    assert_eq!(first.removed_collections, [foreign.id().to_string()]);
    assert_eq!(first.limits.unwrap().memory_bytes, 77);
    let ask = v1::ContextRequest {
        held: vec![held],
        ..Default::default()
    };
    client.tx.send(ask).await.unwrap();
    plane
        .hub
        .context()
        .apply(&own.id(), vec![mk_change(&own, "q", "x")], "2");
    let next = client.take().await;
    assert!(
        next.changes
            .iter()
            .all(|change| change.collection == own.id().to_string())
    );
}

#[tokio::test]
async fn c2_changes_come_with_the_mark_that_covers_them() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    list(&plane, &spec, &["p"]);
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Synced).await;
    let batch = vec![
        mk_change(&spec, "p", "y"),
        mk_change(&spec, "q", "y"),
        (key("gone"), None),
    ];
    plane.hub.context().apply(&spec.id(), batch, "9");
    let response = client.take().await;
    assert_eq!(response.changes.len(), 2, "what did not change is not sent");
    assert_eq!(response.marks[0].resource_version, "9");
    assert_eq!(response.marks[0].objects, 2);
}

#[tokio::test]
async fn c3_synced_comes_after_a_complete_list() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    let sink = plane.hub.context();
    sink.open(&spec);
    sink.apply(&spec.id(), vec![mk_change(&spec, "p", "x")], "");
    sink.set_state(&spec.id(), SyncState::Synced, "");
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Syncing).await;
    list(&plane, &spec, &["p", "q"]);
    let mark = client.marked(spec.id(), v1::SyncState::Synced).await;
    assert_eq!(mark.objects, 2);
}

#[tokio::test]
async fn c4_messages_are_bounded_and_four_may_be_unanswered() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    let sink = plane.hub.context();
    sink.open(&spec);
    let data = "d".repeat(700 << 10);
    let large = "l".repeat((1 << 20) + 1);
    let mut changes: Vec<Change> = (0..40)
        .map(|i| mk_change(&spec, &format!("o{i}"), &data))
        .collect();
    changes.push(mk_change(&spec, "large", &large));
    let keys = changes.iter().map(|(key, _)| key.clone()).collect();
    sink.complete(&spec.id(), &keys, changes, "1");
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    let mut unanswered = Vec::new();
    for _ in 0..4 {
        let response = client.next().await;
        let sizes: Vec<usize> = response.changes.iter().map(|c| c.object.len()).collect();
        assert!(
            sizes.len() == 1 || sizes.iter().all(|size| *size <= 1 << 20),
            "{sizes:?}"
        );
        assert!(prost::Message::encoded_len(&response) <= 3 << 20);
        unanswered.push(response);
    }
    let fifth = tokio::time::timeout(Duration::from_millis(300), client.rx.message()).await;
    assert!(fifth.is_err(), "a fifth response must wait for an answer");
    client.answer(&unanswered[0]).await;
    client.next().await;
}

#[tokio::test]
async fn c6_collection_is_removed_with_its_assignment() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    list(&plane, &spec, &["p"]);
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Synced).await;
    assign(&plane, &[]);
    let response = client.take().await;
    assert_eq!(response.removed_collections, [spec.id().to_string()]);
    assert!(client.copies.is_empty());
}

#[tokio::test]
async fn c7_equal_root_sends_no_object_and_another_one_what_differs() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    let names: Vec<String> = (0..3_000).map(|i| format!("o{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    list(&plane, &spec, &names);
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Synced).await;
    assert_eq!(client.objects, 3_000);
    let mut copies = std::mem::take(&mut client.copies);
    let root = copies.get_mut(&spec.id().to_string()).unwrap().root();
    let held = wire::held_to_proto(spec.id(), Some(&root), None);
    let mut again = Client::open(&plane, mk_first("r-0", vec![held.clone()]))
        .await
        .unwrap();
    again.copies = copies;
    again.marked(spec.id(), v1::SyncState::Synced).await;
    assert_eq!(again.objects, 0, "an equal root sends no object");
    // Another replica of the same name ends the stream before.
    assert_eq!(client.end().await.code(), Code::Aborted);
    let copies = std::mem::take(&mut again.copies);
    drop(again);
    let batch = vec![
        mk_change(&spec, "o1", "y"),
        (key("o2"), None),
        mk_change(&spec, "new", "z"),
    ];
    plane.hub.context().apply(&spec.id(), batch, "2");
    let mut third = Client::open(&plane, mk_first("r-0", vec![held]))
        .await
        .unwrap();
    third.copies = copies;
    let mark = third.marked(spec.id(), v1::SyncState::Synced).await;
    assert_eq!(mark.objects, 3_000);
    assert!(third.objects < 30, "{} objects were sent", third.objects);
}

#[tokio::test]
async fn c8_client_with_another_state_is_brought_back_by_buckets() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    list(&plane, &spec, &["a", "b", "c"]);
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Synced).await;
    // Its memory is damaged.
    let copy = client.copies.get_mut(&spec.id().to_string()).unwrap();
    let forged = mk_change(&spec, "forged", "x");
    copy.put(forged.0, &forged.1.unwrap()).unwrap();
    copy.remove(&key("b"));
    client.objects = 0;
    client.send_buckets(&spec.id().to_string()).await;
    client.marked(spec.id(), v1::SyncState::Synced).await;
    assert!(client.objects <= 2, "only what differs is sent");
}

#[tokio::test]
async fn c9_absent_and_forbidden_kinds_are_told_and_keep_their_objects() {
    let plane = Plane::synced(&["a"]).await;
    let spec = mk_spec("Pod", &[]);
    list(&plane, &spec, &["a"]);
    assign(&plane, &[&spec]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    client.marked(spec.id(), v1::SyncState::Synced).await;
    for (state, told) in [
        (SyncState::Forbidden, v1::SyncState::Forbidden),
        (SyncState::Absent, v1::SyncState::Absent),
        (SyncState::Stale, v1::SyncState::Stale),
        (SyncState::Synced, v1::SyncState::Synced),
    ] {
        plane.hub.context().set_state(&spec.id(), state, "why");
        let mark = client.marked(spec.id(), told).await;
        assert_eq!((mark.detail.as_str(), mark.objects), ("why", 1));
    }
}

#[tokio::test]
async fn c10_responses_carry_the_leadership() {
    let plane = Plane::synced(&["a"]).await;
    assign(&plane, &[]);
    let mut client = Client::open(&plane, mk_first("r-0", vec![])).await.unwrap();
    let first = client.take().await;
    assert_eq!(first.control_plane.unwrap().lease_transitions, 3);
    plane
        .hub
        .set_serving(assent_grpc::Serving::Standby { leader: None });
    assert_eq!(client.end().await.code(), Code::Unavailable);
    let refused = Client::open(&plane, mk_first("r-0", vec![]))
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn bad_first_messages_are_refused() {
    let plane = Plane::synced(&["a"]).await;
    assign(&plane, &[]);
    let mut nobody = Client::open(&plane, v1::ContextRequest::default())
        .await
        .unwrap();
    assert_eq!(nobody.end().await.code(), Code::InvalidArgument);
    let mut first = mk_first("r-0", vec![]);
    first.node.as_mut().unwrap().policy_server = "other".into();
    let mut client = Client::open(&plane, first).await.unwrap();
    assert_eq!(client.end().await.code(), Code::NotFound);
    let held = v1::CollectionHeld {
        id: "x".into(),
        ..Default::default()
    };
    let mut client = Client::open(&plane, mk_first("r-0", vec![held]))
        .await
        .unwrap();
    assert_eq!(client.end().await.code(), Code::InvalidArgument);
}

fn mk_reader(kind: &str, capabilities: &[&str]) -> Arc<Policy> {
    let policy = mk_policy("reader", 2);
    let mut content = policy.content.clone();
    content.context_resources = vec![mk_declared(kind, &["data"])];
    content.host_capabilities = capabilities.iter().map(|c| (*c).to_owned()).collect();
    Arc::new(Policy::new(
        PolicyKey::cluster("reader"),
        1,
        "0a1b2c3d",
        content,
        9,
    ))
}

async fn ask(plane: &Plane, policy: &Policy, query: Query) -> Result<Answer, Status> {
    let mut client: ContextServiceClient<Channel> =
        ContextServiceClient::new(plane.channel().await);
    let mut request = tonic::Request::new(v1::ContextQuery {
        node: Some(mk_node("r-0")),
        revision: policy.revision.to_string(),
        query: Some(query),
    });
    request.set_timeout(Duration::from_millis(500));
    let answer = client.query_context(request).await?;
    Ok(answer.into_inner().answer.unwrap())
}

fn get(spec: &CollectionSpec, name: &str) -> Query {
    Query::Get(v1::ObjectQuery {
        collection: spec.id().to_string(),
        namespace: "n".into(),
        name: name.into(),
    })
}

fn can_i(user: &str) -> Query {
    Query::CanI(v1::AccessQuery {
        user: user.into(),
        ..Default::default()
    })
}

#[tokio::test]
async fn live_reads_are_projected_and_need_a_declaration() {
    let plane = Plane::start(Default::default()).await;
    let mut object = mk_object("Pod", "p", "x");
    object["spec"] = json!({"secret": true});
    plane.live.0.lock().unwrap().insert("n/p".into(), object);
    let reader = mk_reader("Pod", &["kubernetes/*"]);
    let mute = mk_policy("mute", 2);
    plane.publish(mk_set(&[reader.clone(), mute.clone()]));
    plane.hub.set_synced();
    let (own, foreign) = (mk_spec("Pod", &["data"]), mk_spec("Secret", &[]));
    assign(&plane, &[&own, &foreign]);
    let Answer::Object(found) = ask(&plane, &reader, get(&own, "p")).await.unwrap() else {
        panic!("an object must be answered");
    };
    assert!(found.found);
    let found: Value = serde_json::from_slice(&found.object).unwrap();
    assert_eq!(
        (&found["data"]["a"], &found["spec"]),
        (&json!("x"), &Value::Null)
    );
    let Answer::Object(missing) = ask(&plane, &reader, get(&own, "q")).await.unwrap() else {
        panic!("an object must be answered");
    };
    assert!(!missing.found);
    let code = |answer: Result<Answer, Status>| answer.unwrap_err().code();
    assert_eq!(
        code(ask(&plane, &reader, get(&foreign, "p")).await),
        Code::NotFound
    );
    assert_eq!(
        code(ask(&plane, &mute, get(&own, "p")).await),
        Code::PermissionDenied
    );
    assert_eq!(
        code(ask(&plane, &mute, can_i("alice")).await),
        Code::PermissionDenied
    );
    let unknown = mk_policy("unknown", 2);
    assert_eq!(
        code(ask(&plane, &unknown, can_i("alice")).await),
        Code::NotFound
    );
    let slow = ask(&plane, &reader, get(&own, "slow")).await;
    assert!(matches!(
        code(slow),
        Code::DeadlineExceeded | Code::Cancelled
    ));
    for (user, allowed) in [("alice", true), ("bob", false)] {
        let Answer::Access(verdict) = ask(&plane, &reader, can_i(user)).await.unwrap() else {
            panic!("a verdict must be answered");
        };
        assert_eq!(verdict.allowed, allowed);
    }
}

#[tokio::test]
async fn replica_that_reads_too_often_is_refused() {
    let plane = Plane::start(Default::default()).await;
    let reader = mk_reader("Pod", &["kubernetes/*"]);
    plane.publish(mk_set(std::slice::from_ref(&reader)));
    plane.hub.set_synced();
    let mut refused = 0;
    for _ in 0..120 {
        if let Err(status) = ask(&plane, &reader, can_i("alice")).await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            refused += 1;
        }
    }
    assert!(refused > 0, "more than fifty at once must not pass");
}
