//! C1 to C10: objects that policies read, sent by a real control plane.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use assent_context::{Collection, CollectionSpec, Key};
use assent_core::policy::ContextResource;
use assent_e2e::{
    Delta, Options, PATIENCE, QUIET, Up, client::node, eventually, manifest::Policy, module,
};
use assent_proto::v1::{self, SyncState, context_service_client::ContextServiceClient};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// A control plane with a directory of objects.
struct Setup {
    up: Up,
    objects: tempfile::TempDir,
}

/// A context stream, and the copies that an evaluator keeps.
struct Client {
    requests: mpsc::Sender<v1::ContextRequest>,
    responses: Streaming<v1::ContextResponse>,
    copies: BTreeMap<String, Collection>,
    /// Keys that changes named since the last mark, and buckets that are sent whole.
    named: BTreeMap<String, BTreeSet<Key>>,
    resets: BTreeMap<String, v1::BucketReset>,
    /// Objects that were sent.
    objects: usize,
}

const CONFIG_MAPS: &str = "contextAwareResources: [{apiVersion: v1, kind: ConfigMap}]";

// === impl Setup ===

impl Setup {
    async fn start(objects: &[Value]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        fs::write(directory.path().join("objects.json"), list.to_string()).unwrap();
        let path = directory.path().to_string_lossy().into_owned();
        let options = Options::default()
            .file("ask.wasm", module::accept_all("reads"))
            .args(&["--drain-seconds", "1", "--objects", &path]);
        Self {
            up: Up::start(options).await,
            objects: directory,
        }
    }

    /// With a policy that reads ConfigMaps.
    async fn reading(objects: &[Value]) -> Self {
        let setup = Self::start(objects).await;
        setup.declare("reader", CONFIG_MAPS).await;
        setup
    }

    async fn declare(&self, name: &str, declared: &str) {
        let policy = Policy::cluster(name).module("ask.wasm").line(declared);
        self.up.apply(name, &policy);
        self.up.wait_accepted(name, 1, "Accepted").await;
    }

    /// Replaces all objects at once.
    fn write(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let scratch = self.objects.path().join(".scratch");
        fs::write(&scratch, list.to_string()).unwrap();
        fs::rename(&scratch, self.objects.path().join("objects.json")).unwrap();
    }

    async fn connect(&self, id: &str) -> Client {
        Client::open(&self.up, id, Vec::new()).await
    }
}

fn mk_map(name: &str, data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}, "data": {"a": data},
    })
}

fn mk_maps(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| mk_map(name, "x")).collect()
}

// === impl Client ===

impl Client {
    async fn open(up: &Up, id: &str, held: Vec<v1::CollectionHeld>) -> Self {
        let (requests, receiver) = mpsc::channel(64);
        let first = v1::ContextRequest {
            node: Some(node(id)),
            held,
            ..v1::ContextRequest::default()
        };
        requests.send(first).await.unwrap();
        let client = ContextServiceClient::new(up.channel().await);
        let mut client = client.max_decoding_message_size(8 << 20);
        let stream = client.stream_context(ReceiverStream::new(receiver)).await;
        Self {
            requests,
            responses: stream.unwrap().into_inner(),
            copies: BTreeMap::new(),
            named: BTreeMap::new(),
            resets: BTreeMap::new(),
            objects: 0,
        }
    }

    async fn next(&mut self) -> v1::ContextResponse {
        let message = tokio::time::timeout(PATIENCE, self.responses.message());
        let message = message.await.expect("a response must come");
        message.unwrap().expect("the stream must go on")
    }

    /// The next response that comes soon; none if none does.
    async fn soon(&mut self) -> Option<v1::ContextResponse> {
        let message = tokio::time::timeout(QUIET, self.responses.message()).await;
        message.ok().map(|message| message.unwrap().unwrap())
    }

    async fn send(&self, request: v1::ContextRequest) {
        self.requests.send(request).await.unwrap();
    }

    /// Takes a response as an evaluator does, and answers it. Every root must match.
    async fn take(&mut self) -> v1::ContextResponse {
        let response = self.next().await;
        self.read(&response);
        for id in &response.want_buckets {
            let held = self.held(id, true);
            let request = v1::ContextRequest {
                held: vec![held],
                ..v1::ContextRequest::default()
            };
            self.send(request).await;
        }
        let answer = v1::ContextRequest {
            response_nonce: response.nonce.clone(),
            ..v1::ContextRequest::default()
        };
        self.send(answer).await;
        response
    }

    fn read(&mut self, response: &v1::ContextResponse) {
        for collection in &response.collections {
            let copy = self.copies.entry(collection.id.clone());
            copy.or_insert_with(|| Collection::new(Arc::new(spec(collection))));
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
    }

    fn change(&mut self, change: &v1::ObjectChange) {
        let key = Key::new(&change.namespace, &change.name).unwrap();
        let copy = self.copies.get_mut(&change.collection).unwrap();
        match change.deleted {
            true => drop(copy.remove(&key)),
            false => drop(copy.put(key.clone(), &change.object).unwrap()),
        }
        self.objects += usize::from(!change.deleted);
        let named = self.named.entry(change.collection.clone());
        named.or_default().insert(key);
    }

    /// C2: what changed is complete at its mark.
    fn mark(&mut self, mark: &v1::CollectionMark) {
        // Nothing is complete before the first list.
        if mark.state() == SyncState::Syncing {
            return;
        }
        let copy = self.copies.get_mut(&mark.collection).unwrap();
        let named = self.named.remove(&mark.collection).unwrap_or_default();
        if let Some(reset) = self.resets.remove(&mark.collection) {
            let in_reset =
                |key: &Key| reset.all || reset.buckets.contains(&u32::from(key.bucket()));
            let held = copy.iter().map(|object| object.key().clone());
            let kept = held.filter(|key| named.contains(key) || !in_reset(key));
            let kept: BTreeSet<Key> = kept.collect();
            copy.retain(&kept);
        }
        assert_eq!(
            copy.root().as_bytes(),
            &mark.root[..],
            "the root must match"
        );
    }

    fn held(&mut self, id: &str, with_buckets: bool) -> v1::CollectionHeld {
        let copy = self.copies.get_mut(id).unwrap();
        let buckets = copy.bucket_prefixes();
        let buckets = buckets.iter().map(|bucket| bucket.to_vec().into());
        v1::CollectionHeld {
            id: id.to_owned(),
            root: copy.root().as_bytes().to_vec().into(),
            buckets: buckets.filter(|_| with_buckets).collect(),
        }
    }

    /// Takes responses until every collection that it has is in this state.
    async fn marked(&mut self, state: SyncState) -> v1::CollectionMark {
        loop {
            let response = self.take().await;
            let found = response.marks.into_iter().find(|m| m.state() == state);
            if let Some(mark) = found {
                return mark;
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let objects = self.copies.values().flat_map(|copy| copy.iter());
        objects.map(|o| o.key().name().to_owned()).collect()
    }

    /// Takes responses until it has exactly these objects.
    async fn has(&mut self, names: &[&str]) {
        while self.names() != names {
            self.take().await;
        }
    }
}

fn spec(collection: &v1::Collection) -> CollectionSpec {
    let declared = ContextResource {
        api_version: collection.api_version.clone(),
        kind: collection.kind.clone(),
        fields: collection.fields.clone(),
        namespaces: collection.namespaces.clone(),
        label_selector: collection.label_selector.clone(),
    };
    let spec = CollectionSpec::new(&declared, &collection.plural, collection.namespaced).unwrap();
    assert_eq!(
        spec.id().to_string(),
        collection.id,
        "the id must be the digest of the rest"
    );
    spec
}

#[tokio::test]
async fn c1_client_gets_what_policies_declare_and_nothing_that_it_claims() {
    let setup = Setup::reading(&mk_maps(&["a", "b"])).await;
    let claim = v1::CollectionHeld {
        id: "5".repeat(64),
        root: vec![7; 32].into(),
        buckets: Vec::new(),
    };
    let mut client = Client::open(&setup.up, "c1", vec![claim.clone()]).await;
    let mut removed = Vec::new();
    while client.names() != ["a", "b"] {
        removed.extend(client.take().await.removed_collections);
    }
    assert_eq!(client.copies.len(), 1);
    assert_eq!(removed, [claim.id]);
}

#[tokio::test]
async fn c2_c3_mark_covers_its_changes_and_follows_a_complete_list() {
    let setup = Setup::reading(&mk_maps(&["a", "b"])).await;
    let mut client = setup.connect("c2").await;
    let mark = client.marked(SyncState::Synced).await;
    assert_eq!((mark.objects, client.names().len()), (2, 2));
    setup.write(&mk_maps(&["b", "c", "d"]));
    client.has(&["b", "c", "d"]).await;
    // A file that cannot be read removes nothing.
    fs::write(setup.objects.path().join("broken.json"), "{").unwrap();
    let mark = client.marked(SyncState::Stale).await;
    assert!(mark.detail.contains("broken.json"), "{}", mark.detail);
    assert_eq!(client.names(), ["b", "c", "d"]);
}

#[tokio::test]
async fn c4_messages_are_bounded_and_four_may_be_unanswered() {
    let large = "x".repeat(1_400_000);
    let mut maps: Vec<Value> = (0..40)
        .map(|n| mk_map(&format!("m{n}"), &"y".repeat(500_000)))
        .collect();
    maps.push(mk_map("large", &large));
    let setup = Setup::reading(&maps).await;
    let mut client = setup.connect("c4").await;
    let mut unanswered = Vec::new();
    while let Some(response) = client.soon().await {
        unanswered.push(response);
    }
    assert_eq!(unanswered.len(), 4);
    let mut responses = unanswered.clone();
    for response in &unanswered {
        client.read(response);
        let answer = v1::ContextRequest {
            response_nonce: response.nonce.clone(),
            ..v1::ContextRequest::default()
        };
        client.send(answer).await;
    }
    while client.names().len() < 41 {
        responses.push(client.take().await);
    }
    for response in &responses {
        let sizes = response.changes.iter().map(|change| change.object.len());
        let (total, count) = (sizes.clone().sum::<usize>(), sizes.clone().count());
        assert!(total <= 3 << 20, "{total} bytes");
        assert!(
            count == 1 || sizes.max() <= Some(1 << 20),
            "{count} with a large object"
        );
    }
}

#[tokio::test]
async fn c5_mark_comes_every_ten_seconds_without_changes() {
    let setup = Setup::reading(&mk_maps(&["a"])).await;
    let mut client = setup.connect("c5").await;
    client.marked(SyncState::Synced).await;
    let objects = client.objects;
    for _ in 0..2 {
        let response = client.take().await;
        assert_eq!(
            (response.marks.len(), response.changes.len()),
            (1, 0),
            "{response:?}"
        );
    }
    assert_eq!(client.objects, objects);
}

#[tokio::test]
async fn c6_collection_starts_before_its_policy_and_ends_after_it() {
    let setup = Setup::start(&mk_maps(&["a"])).await;
    let mut client = setup.connect("c6").await;
    let mut discovery = Delta::connect(setup.up.channel().await, node("c6")).await;
    let empty = discovery.next().await;
    discovery.ack(&empty).await;
    let policy = Policy::cluster("reader")
        .module("ask.wasm")
        .line(CONFIG_MAPS);
    setup.up.apply("reader", &policy);
    let announced = discovery.next().await;
    assert_eq!(announced.policies.len(), 1);
    // What was announced is on its way already: the mark comes without any further event.
    client.marked(SyncState::Synced).await;
    setup.up.remove("reader.yaml");
    setup.up.wait_gone("reader").await;
    eventually("the collection is removed", async || {
        if let Some(response) = client.soon().await {
            client.read(&response);
            let answer = v1::ContextRequest {
                response_nonce: response.nonce,
                ..v1::ContextRequest::default()
            };
            client.send(answer).await;
        }
        client.copies.is_empty()
    })
    .await;
}

#[tokio::test]
async fn c7_equal_root_sends_no_object_and_another_one_what_differs() {
    let names: Vec<String> = (0..300).map(|n| format!("m{n:03}")).collect();
    let maps: Vec<Value> = names.iter().map(|name| mk_map(name, "x")).collect();
    let setup = Setup::reading(&maps).await;
    let mut client = setup.connect("c7").await;
    let mark = client.marked(SyncState::Synced).await;
    let held = client.held(&mark.collection, false);
    let copies = std::mem::take(&mut client.copies);

    let mut again = Client::open(&setup.up, "c7", vec![held.clone()]).await;
    again.copies = copies;
    again.marked(SyncState::Synced).await;
    assert_eq!(again.objects, 0);
    let copies = std::mem::take(&mut again.copies);
    drop(again);

    let mut changed = maps.clone();
    changed[0] = mk_map("m000", "other");
    setup.write(&changed);
    let mut other = setup.connect("c7-other").await;
    let newest = loop {
        let mark = other.marked(SyncState::Synced).await;
        if mark.root != held.root {
            break mark;
        }
    };
    let mut back = Client::open(&setup.up, "c7", vec![held]).await;
    back.copies = copies;
    assert_eq!(back.marked(SyncState::Synced).await.root, newest.root);
    // The objects of one bucket: 300 in 1,024 buckets.
    assert!((1..10).contains(&back.objects), "{} objects", back.objects);
}

#[tokio::test]
async fn c8_client_with_another_state_is_brought_back_by_buckets() {
    let setup = Setup::reading(&mk_maps(&["a", "b", "c"])).await;
    let mut client = setup.connect("c8").await;
    let mark = client.marked(SyncState::Synced).await;
    // It has lost an object and has one that does not exist.
    let copy = client.copies.get_mut(&mark.collection).unwrap();
    copy.remove(&Key::new("n", "a").unwrap());
    copy.observe(mk_map("forged", "x")).unwrap();
    client.objects = 0;
    let held = client.held(&mark.collection, true);
    let request = v1::ContextRequest {
        held: vec![held],
        ..v1::ContextRequest::default()
    };
    client.send(request).await;
    client.has(&["a", "b", "c"]).await;
    assert!(client.objects < 3, "{} objects", client.objects);
    // Buckets that are none end the stream.
    let bad = v1::CollectionHeld {
        id: mark.collection,
        root: vec![1; 32].into(),
        buckets: vec![vec![1; 8].into(); 3],
    };
    let request = v1::ContextRequest {
        held: vec![bad],
        ..v1::ContextRequest::default()
    };
    client.send(request).await;
    let ended = loop {
        match client.responses.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it must be refused"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::InvalidArgument, "{ended}");
}

#[tokio::test]
async fn c9_removed_kind_is_absent() {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.fleet.example.com"},
        "spec": {
            "group": "fleet.example.com", "scope": "Cluster",
            "names": {"kind": "Cluster", "plural": "clusters"},
            "versions": [{"name": "v1", "served": true, "storage": true}],
        },
    });
    let cluster = json!({"apiVersion": "fleet.example.com/v1", "kind": "Cluster", "metadata": {"name": "berlin"}});
    let setup = Setup::start(&[definition.clone(), cluster.clone()]).await;
    let declared = "contextAwareResources: [{apiVersion: fleet.example.com/v1, kind: Cluster}]";
    setup.declare("reader", declared).await;
    let mut client = setup.connect("c9").await;
    client.has(&["berlin"]).await;
    setup.write(&[]);
    client.marked(SyncState::Absent).await;
    setup.write(&[definition, cluster]);
    client.marked(SyncState::Synced).await;
    assert_eq!(client.names(), ["berlin"]);
}

#[tokio::test]
async fn c10_responses_name_the_control_plane() {
    let setup = Setup::reading(&mk_maps(&["a"])).await;
    let mut client = setup.connect("c10").await;
    let mut discovery = Delta::connect(setup.up.channel().await, node("c10")).await;
    let (context, policies) = (client.take().await, discovery.next().await);
    assert!(context.control_plane.is_some());
    assert_eq!(context.control_plane, policies.control_plane);
}
