//! Objects that policies read, followed at a real API server.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use assent_context::{
    Collection, CollectionId, CollectionSpec, Key, SyncState, Totals,
    feed::{Change, Feed, Moment},
    sink::CollectionSink,
};
use assent_controller::contexts::{ContextEvent, FollowedCollection, KindRef, KindState};
use assent_core::{Digest, Millis, policy::ContextResource};
use assent_e2e::{
    eventually,
    kube::{ApiServer, Kubectl, api, with_temp_ns},
};
use assent_k8s::context::Follower;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

/// Keeps what is followed.
#[derive(Default)]
struct Sink(Mutex<HashMap<CollectionId, Feed>>);

/// A follower with what it reported.
struct Following {
    follower: Follower,
    sink: Arc<Sink>,
    kinds: Arc<Mutex<BTreeMap<String, KindState>>>,
    _tasks: JoinSet<()>,
}

impl CollectionSink for Sink {
    fn open(&self, spec: &Arc<CollectionSpec>) {
        let mut feeds = self.0.lock().unwrap();
        feeds
            .entry(spec.id())
            .or_insert_with(|| Feed::new(spec.clone()));
    }

    fn close(&self, id: &CollectionId) {
        self.0.lock().unwrap().remove(id);
    }

    fn apply(&self, id: &CollectionId, changes: Vec<Change>, version: &str) {
        let _ = self.with(id, |feed| feed.apply(changes, version));
    }

    fn complete(
        &self,
        id: &CollectionId,
        keys: &BTreeSet<Key>,
        changes: Vec<Change>,
        version: &str,
    ) {
        let _ = self.with(id, |feed| feed.complete(keys, changes, version));
    }

    fn set_state(&self, id: &CollectionId, state: SyncState, detail: &str) {
        let now = Moment {
            at: Millis(0),
            date: SystemTime::UNIX_EPOCH,
        };
        let _ = self.with(id, |feed| feed.set_state(state, detail, now));
    }

    fn holds(&self, id: &CollectionId, key: &Key, digest: Digest) -> bool {
        self.with(id, |feed| feed.holds(key, digest))
            .unwrap_or(false)
    }

    fn is_complete(&self, id: &CollectionId) -> bool {
        self.with(id, |feed| feed.is_complete()).unwrap_or(false)
    }

    fn totals(&self, id: &CollectionId) -> Totals {
        self.with(id, |feed| feed.totals()).unwrap_or_default()
    }

    fn sample(&self, _: &CollectionId, _: usize) -> Vec<bytes::Bytes> {
        Vec::new()
    }
}

impl Sink {
    fn with<T>(&self, id: &CollectionId, read: impl FnOnce(&mut Feed) -> T) -> Option<T> {
        self.0.lock().unwrap().get_mut(id).map(read)
    }

    fn state(&self, id: &CollectionId) -> Option<SyncState> {
        self.with(id, |feed| feed.state())
    }

    fn root(&self, id: &CollectionId) -> Option<Digest> {
        self.with(id, |feed| feed.root())
    }

    fn names(&self, id: &CollectionId) -> BTreeSet<String> {
        let names = |feed: &mut Feed| feed.iter().map(|o| o.key().name().to_owned()).collect();
        self.with(id, names).unwrap_or_default()
    }
}

impl Following {
    async fn start(kubectl: &Kubectl) -> Self {
        let client = api::client(kubectl.kubeconfig()).await;
        let sink = Arc::new(Sink::default());
        let (events, mut reports) = mpsc::channel(64);
        let (follower, mut tasks) = Follower::spawn(client, sink.clone(), events);
        let kinds: Arc<Mutex<BTreeMap<String, KindState>>> = Arc::default();
        let seen = kinds.clone();
        tasks.spawn(async move {
            while let Some(event) = reports.recv().await {
                if let ContextEvent::Kind(kind, state) = event {
                    seen.lock().unwrap().insert(kind.kind, state);
                }
            }
        });
        Self {
            follower,
            sink,
            kinds,
            _tasks: tasks,
        }
    }

    fn follow(&self, specs: &[&Arc<CollectionSpec>]) {
        let followed = specs.iter().map(|spec| FollowedCollection {
            spec: (*spec).clone(),
            limit: None,
        });
        self.follower.follow_collections(followed.collect());
    }

    fn kind(&self, kind: &str) -> Option<KindState> {
        self.kinds.lock().unwrap().get(kind).cloned()
    }
}

fn mk_spec(
    kind: &str,
    plural: &str,
    namespace: &str,
    edit: impl Fn(&mut ContextResource),
) -> Arc<CollectionSpec> {
    let mut declared = ContextResource {
        api_version: "v1".into(),
        kind: kind.into(),
        namespaces: vec![namespace.to_owned()],
        ..ContextResource::default()
    };
    edit(&mut declared);
    Arc::new(CollectionSpec::new(&declared, plural, true).unwrap())
}

fn mk_map(name: &str, labels: &Value, data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {"a": data},
    })
}

/// The root of what the API server has now.
async fn root_of(kubectl: &Kubectl, spec: &Arc<CollectionSpec>) -> Digest {
    let list = kubectl.get(&["configmaps"]).await;
    let mut collection = Collection::new(spec.clone());
    for item in list["items"].as_array().unwrap() {
        collection.observe(item.clone()).unwrap();
    }
    collection.root()
}

#[tokio::test]
async fn followed_objects_end_equal_to_the_api_server() {
    with_temp_ns(async |ns| {
        let following = Following::start(&ns).await;
        let whole = mk_spec("ConfigMap", "configmaps", ns.namespace(), |_| {});
        let slim = mk_spec("ConfigMap", "configmaps", ns.namespace(), |d| {
            d.fields = vec!["kind".into()]
        });
        ns.apply(&mk_map("before", &json!({}), "x").to_string())
            .await;
        following.follow(&[&whole, &slim]);
        let id = whole.id();
        eventually("the list is complete", async || {
            following.sink.state(&id) == Some(SyncState::Synced)
        })
        .await;
        let client = api::client(ns.kubeconfig()).await;
        let path = format!("/api/v1/namespaces/{}/configmaps", ns.namespace());
        for round in 0..3 {
            for i in 0..60 {
                let name = format!("m{i}");
                let map = mk_map(&name, &json!({}), &format!("{round}-{i}"));
                match (round + i) % 3 {
                    0 => drop(api::ask(&client, "POST", &path, &map).await),
                    1 => drop(api::ask(&client, "PATCH", &format!("{path}/{name}"), &map).await),
                    _ => drop(
                        api::ask(&client, "DELETE", &format!("{path}/{name}"), &json!({})).await,
                    ),
                }
            }
            // A quiet point.
            let wanted = root_of(&ns, &whole).await;
            eventually("the copy equals the API server", async || {
                following.sink.root(&id) == Some(wanted)
            })
            .await;
        }
        // An equal projection is no change.
        let before = following.sink.root(&slim.id());
        ns.apply(&mk_map("before", &json!({}), "changed").to_string())
            .await;
        let wanted = root_of(&ns, &whole).await;
        eventually("the change is seen", async || {
            following.sink.root(&id) == Some(wanted)
        })
        .await;
        assert_eq!(following.sink.root(&slim.id()), before);
    })
    .await;
}

/// The API server is the oracle: it selects the same objects as a collection.
#[tokio::test]
async fn label_selectors_select_what_the_api_server_selects() {
    with_temp_ns(async |ns| {
        let labels = [
            json!({}),
            json!({"app": "web"}),
            json!({"app": "db"}),
            json!({"app": "web", "tier": ""}),
            json!({"app": "", "example.com/owner": "a"}),
            json!({"tier": "front", "n": "5"}),
        ];
        for (i, labels) in labels.iter().enumerate() {
            ns.apply(&mk_map(&format!("l{i}"), labels, "x").to_string())
                .await;
        }
        for selector in [
            "app",
            "!app",
            "app=web",
            "app==web",
            "app!=web",
            "app in (web,db)",
            "app notin (web)",
            "app=",
            "tier in (,front)",
            "app,tier",
            "app=web,!tier",
            "example.com/owner=a",
            "n in (5)",
            "app notin (web,db),!tier",
        ] {
            let served = ns.get(&["configmaps", "--selector", selector]).await;
            let served = served["items"].as_array().unwrap().iter();
            let served: BTreeSet<String> = served
                .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
                .collect();
            let spec = mk_spec("ConfigMap", "configmaps", ns.namespace(), |d| {
                d.label_selector = selector.into()
            });
            let mut own = Collection::new(spec);
            for object in ns.get(&["configmaps"]).await["items"].as_array().unwrap() {
                own.observe(object.clone()).unwrap();
            }
            let own: BTreeSet<String> = own.iter().map(|o| o.key().name().to_owned()).collect();
            assert_eq!(own, served, "{selector}");
        }
    })
    .await;
}

fn mk_definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.context.example.com"},
        "spec": {
            "group": "context.example.com", "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

#[tokio::test]
async fn removed_kind_is_absent_and_comes_back() {
    with_temp_ns(async |ns| {
        let following = Following::start(&ns).await;
        let kind = KindRef {
            api_version: "context.example.com/v1".into(),
            kind: "Gadget".into(),
        };
        following.follower.follow_kinds(vec![kind]);
        eventually("the kind is absent", async || following.kind("Gadget") == Some(KindState::Absent)).await;
        let served = |state: Option<KindState>| {
            matches!(state, Some(KindState::Served { plural, namespaced: true, forbidden: None }) if plural == "gadgets")
        };
        let spec = mk_spec("Gadget", "gadgets", ns.namespace(), |d| d.api_version = "context.example.com/v1".into());
        let gadget = json!({"apiVersion": "context.example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"n": 9007199254740993_i64}});
        for round in 0..2 {
            ns.apply(&mk_definition().to_string()).await;
            eventually("the kind is served", async || served(following.kind("Gadget"))).await;
            following.follow(&[&spec]);
            eventually("gadgets can be created", async || ns.try_apply(&gadget.to_string()).await.is_ok()).await;
            eventually("the gadget is seen", async || {
                following.sink.state(&spec.id()) == Some(SyncState::Synced) && following.sink.names(&spec.id()).contains("g")
            })
            .await;
            if round == 0 {
                ns.run(&["delete", "crd", "gadgets.context.example.com"]).await;
                eventually("the kind is absent again", async || following.kind("Gadget") == Some(KindState::Absent)).await;
                eventually("the collection is absent", async || following.sink.state(&spec.id()) == Some(SyncState::Absent)).await;
            }
        }
        ns.run(&["delete", "crd", "gadgets.context.example.com"]).await;
    })
    .await;
}

fn mk_role(name: &str, namespace: &str, verbs: &[&str]) -> String {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string()
}

#[tokio::test]
async fn withdrawn_permission_keeps_the_last_state() {
    with_temp_ns(async |ns| {
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}});
        ns.apply(&account.to_string()).await;
        let role = format!("{}-reader", ns.namespace());
        ns.apply(&mk_role(&role, ns.namespace(), &["list", "watch"]))
            .await;
        ns.apply(&mk_map("kept", &json!({}), "x").to_string()).await;
        let dir = tempfile::tempdir().unwrap();
        let reader = ns.service_account("reader", dir.path()).await;
        let following = Following::start(&reader).await;
        let kind = KindRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
        };
        following.follower.follow_kinds(vec![kind]);
        let forbidden = |state: Option<KindState>| {
            matches!(
                state,
                Some(KindState::Served {
                    forbidden: Some(_),
                    ..
                })
            )
        };
        eventually("the kind may be read", async || {
            matches!(
                following.kind("ConfigMap"),
                Some(KindState::Served {
                    forbidden: None,
                    ..
                })
            )
        })
        .await;
        let spec = mk_spec("ConfigMap", "configmaps", ns.namespace(), |_| {});
        following.follow(&[&spec]);
        eventually("the list is complete", async || {
            following.sink.state(&spec.id()) == Some(SyncState::Synced)
        })
        .await;
        ns.apply(&mk_role(&role, ns.namespace(), &["list"])).await;
        eventually("the kind may not be read", async || {
            forbidden(following.kind("ConfigMap"))
        })
        .await;
        assert!(
            following.sink.names(&spec.id()).contains("kept"),
            "the last state must stay"
        );
        // A follower that starts without the permission never claims a complete list.
        let late = Following::start(&reader).await;
        ns.apply(&mk_role(&role, ns.namespace(), &["get"])).await;
        eventually("lists are refused", async || {
            reader.try_get(&["configmaps"]).await.is_err()
        })
        .await;
        late.follow(&[&spec]);
        eventually("it is forbidden", async || {
            late.sink.state(&spec.id()) == Some(SyncState::Forbidden)
        })
        .await;
        assert!(!late.sink.is_complete(&spec.id()));
        ns.apply(&mk_role(&role, ns.namespace(), &["list", "watch"]))
            .await;
        tokio::time::timeout(Duration::from_secs(90), async {
            while late.sink.state(&spec.id()) != Some(SyncState::Synced) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await
        .expect("it must heal");
        ns.run(&["delete", "clusterrole", &role]).await;
        ns.run(&["delete", "clusterrolebinding", &role]).await;
    })
    .await;
}

#[tokio::test]
async fn restarted_api_server_makes_objects_stale_and_current_again() {
    let server = ApiServer::start().await;
    let following = Following::start(&server.kubectl).await;
    let spec = mk_spec("ConfigMap", "configmaps", "default", |_| {});
    following.follow(&[&spec]);
    let id = spec.id();
    eventually("the list is complete", async || {
        following.sink.state(&id) == Some(SyncState::Synced)
    })
    .await;
    server.stop_apiserver();
    eventually("it is stale", async || {
        following.sink.state(&id) == Some(SyncState::Stale)
    })
    .await;
    server.start_apiserver().await;
    tokio::time::timeout(Duration::from_secs(90), async {
        while following.sink.state(&id) != Some(SyncState::Synced) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("it must be current again without any change of an object");
}
