//! Objects that policies read, from a directory instead of an API server.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use assent_context::{
    Cluster, Collection, CollectionId, CollectionSpec, Key, SyncState, Totals,
    feed::Change,
    sink::{AccessReview, AccessVerdict, CollectionSink, ReadError},
};
use assent_controller::contexts::{
    CollectionReport, CollectionState, ContextEvent, FollowedCollection, KindRef, KindState,
    largest_fields,
};
use assent_grpc::context::LiveReads;
use assent_local::objects::{self, Objects};
use async_trait::async_trait;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tracing::{info, warn};

use crate::context::ContextSource;

/// Says what is to be followed.
struct DirectoryObjects {
    kinds: watch::Sender<Vec<KindRef>>,
    collections: watch::Sender<Vec<FollowedCollection>>,
}

/// Follows a directory: projects what is followed of it, and reports what became of it.
struct DirectoryFollower {
    sink: Arc<dyn CollectionSink>,
    events: mpsc::Sender<ContextEvent>,
    objects: mpsc::Receiver<Objects>,
    reads: Arc<DirectoryReads>,
    kinds: watch::Receiver<Vec<KindRef>>,
    collections: watch::Receiver<Vec<FollowedCollection>>,
    /// Collections that the sink has.
    open: BTreeSet<CollectionId>,
    /// The objects, as they were when all files could be read last.
    cluster: Option<Arc<Cluster>>,
    /// Why the files cannot be used as they are.
    problem: Option<String>,
    /// How often the objects have changed.
    version: u64,
}

/// Reads that are answered from the directory itself.
pub(super) struct DirectoryReads {
    /// The objects, or why the files cannot be used; empty until the directory was read.
    objects: ArcSwapOption<Objects>,
    allow_all_access: bool,
}

/// The directory of `--objects`. One that does not exist is a mistake; one that is removed later is reported.
pub(super) fn directory(path: PathBuf) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path).context("failed to resolve --objects")?;
    anyhow::ensure!(
        path.is_dir(),
        "--objects {} is not a directory; create it, with YAML or JSON files of Kubernetes objects",
        path.display()
    );
    Ok(path)
}

/// Follows a directory until the process ends.
pub(super) fn follow(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    path: PathBuf,
    sink: Arc<dyn CollectionSink>,
    events: mpsc::Sender<ContextEvent>,
    reads: Arc<DirectoryReads>,
) -> Arc<dyn ContextSource> {
    let (objects, objects_rx) = mpsc::channel(1);
    let (source, follower) = DirectoryFollower::new(sink, events, objects_rx, reads);
    tasks.spawn(async move {
        tokio::join!(objects::watch(path, objects), follower.run());
        Ok(())
    });
    Arc::new(source)
}

// === impl DirectoryObjects ===

impl ContextSource for DirectoryObjects {
    fn follow_kinds(&self, kinds: Vec<KindRef>) {
        self.kinds.send_replace(kinds);
    }

    fn follow_collections(&self, collections: Vec<FollowedCollection>) {
        self.collections.send_replace(collections);
    }
}

// === impl DirectoryFollower ===

impl DirectoryFollower {
    fn new(
        sink: Arc<dyn CollectionSink>,
        events: mpsc::Sender<ContextEvent>,
        objects: mpsc::Receiver<Objects>,
        reads: Arc<DirectoryReads>,
    ) -> (DirectoryObjects, Self) {
        let (kinds, kinds_rx) = watch::channel(Vec::new());
        let (collections, collections_rx) = watch::channel(Vec::new());
        let follower = Self {
            sink,
            events,
            objects,
            reads,
            kinds: kinds_rx,
            collections: collections_rx,
            open: BTreeSet::new(),
            cluster: None,
            problem: None,
            version: 0,
        };
        (DirectoryObjects { kinds, collections }, follower)
    }

    /// Runs until nobody listens any more.
    async fn run(mut self) {
        loop {
            let (kinds, collections) = tokio::select! {
                Some(objects) = self.objects.recv() => {
                    self.take(objects);
                    (true, true)
                }
                Ok(()) = self.kinds.changed() => (true, false),
                Ok(()) = self.collections.changed() => (false, true),
                else => return,
            };
            let mut events = Vec::new();
            if kinds {
                events.extend(self.look_up());
            }
            if collections {
                // Thousands of objects take longer than a task may.
                events.extend(tokio::task::block_in_place(|| self.fill()));
            }
            for event in events {
                if self.events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    fn take(&mut self, objects: Objects) {
        match &objects.content {
            Ok(cluster) => {
                info!("read the directory of objects");
                self.version += 1;
                self.problem = None;
                self.cluster = Some(cluster.clone());
            }
            Err(problem) => {
                warn!("the objects that policies read are not current: {problem}");
                self.problem = Some(problem.clone());
            }
        }
        self.reads.objects.store(Some(Arc::new(objects)));
    }

    /// Nothing is known of kinds before the directory was read: definitions are in it.
    fn look_up(&mut self) -> Vec<ContextEvent> {
        let kinds = self.kinds.borrow_and_update().clone();
        let Some(cluster) = &self.cluster else {
            return Vec::new();
        };
        let state = |kind: &KindRef| match cluster.kind(&kind.api_version, &kind.kind) {
            None => KindState::Absent,
            Some(served) => KindState::Served {
                plural: served.plural,
                namespaced: served.namespaced,
                forbidden: None,
            },
        };
        let events = kinds.into_iter().map(|kind| {
            let state = state(&kind);
            ContextEvent::Kind(kind, state)
        });
        events.collect()
    }

    fn fill(&mut self) -> Vec<ContextEvent> {
        let wanted = self.collections.borrow_and_update().clone();
        let ids: BTreeSet<CollectionId> = wanted.iter().map(|one| one.spec.id()).collect();
        self.open.retain(|id| {
            let stays = ids.contains(id);
            if !stays {
                self.sink.close(id);
            }
            stays
        });
        let events = wanted.iter().map(|followed| {
            let report = self.fill_one(followed);
            ContextEvent::Collection(followed.spec.id(), report)
        });
        events.collect()
    }

    fn fill_one(&mut self, followed: &FollowedCollection) -> CollectionReport {
        let (spec, id) = (&followed.spec, followed.spec.id());
        self.sink.open(spec);
        self.open.insert(id);
        let filled = self.cluster.as_ref().map(|cluster| {
            let served = cluster.kind(spec.api_version(), spec.kind());
            served.map(|_| cluster.fill(spec.clone()))
        });
        let (state, detail) = match (filled, &self.problem) {
            // What was there before stays, as old as it is.
            (_, Some(problem)) => (SyncState::Stale, problem.clone()),
            (None, None) => (SyncState::Syncing, String::new()),
            (Some(None), None) => (SyncState::Absent, NOT_DEFINED.to_owned()),
            (Some(Some(Err(error))), None) => (SyncState::Stale, error.to_string()),
            (Some(Some(Ok(collection))), None) => {
                let limit = followed.limit.filter(|_| !self.sink.is_complete(&id));
                if limit.is_some_and(|limit| collection.totals().bytes > limit) {
                    self.sink.close(&id);
                    return too_large(&collection);
                }
                self.complete(&collection);
                (SyncState::Synced, String::new())
            }
        };
        self.sink.set_state(&id, state, &detail);
        self.report(&id, state, detail)
    }

    fn complete(&self, collection: &Collection) {
        let keys: BTreeSet<Key> = collection.iter().map(|o| o.key().clone()).collect();
        let changes = collection.iter();
        let changes: Vec<Change> = changes
            .map(|o| (o.key().clone(), Some(o.json().to_vec())))
            .collect();
        let (id, version) = (collection.spec().id(), self.version.to_string());
        self.sink.complete(&id, &keys, changes, &version);
    }

    fn report(&self, id: &CollectionId, state: SyncState, detail: String) -> CollectionReport {
        let Totals { objects, bytes } = self.sink.totals(id);
        let state = match state {
            SyncState::Synced => CollectionState::Synced,
            SyncState::Stale if self.sink.is_complete(id) => CollectionState::Stale,
            SyncState::Absent => CollectionState::Absent,
            _ => CollectionState::Syncing,
        };
        CollectionReport {
            state,
            detail,
            objects,
            bytes,
            largest: Vec::new(),
        }
    }
}

const NOT_DEFINED: &str = "no CustomResourceDefinition in the directory of objects defines it";

/// Objects that are looked at to say which fields are large.
const SAMPLE: usize = 1_000;

fn too_large(collection: &Collection) -> CollectionReport {
    let totals = collection.totals();
    let sample = collection.iter().take(SAMPLE);
    let sample: Vec<_> = sample.map(|object| object.json().clone()).collect();
    CollectionReport {
        state: CollectionState::TooLarge,
        detail: String::new(),
        objects: totals.objects,
        bytes: totals.bytes,
        largest: largest_fields(&sample, totals),
    }
}

// === impl DirectoryReads ===

impl DirectoryReads {
    pub(super) fn new(allow_all_access: bool) -> Self {
        Self {
            objects: ArcSwapOption::empty(),
            allow_all_access,
        }
    }
}

#[async_trait]
impl LiveReads for DirectoryReads {
    async fn get(
        &self,
        collection: &CollectionSpec,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ReadError> {
        let objects = self.objects.load_full();
        let unread = || ReadError::Unavailable("the directory of objects was not read yet".into());
        match &objects.ok_or_else(unread)?.content {
            Ok(cluster) => Ok(cluster.get(collection, namespace, name)),
            Err(problem) => Err(ReadError::Unavailable(problem.clone())),
        }
    }

    async fn review(&self, _: AccessReview) -> Result<AccessVerdict, ReadError> {
        let reason = match self.allow_all_access {
            true => "--allow-all-access",
            false => {
                "there is no API server that could be asked; --allow-all-access allows everything"
            }
        };
        Ok(AccessVerdict {
            allowed: self.allow_all_access,
            reason: reason.to_owned(),
            ..AccessVerdict::default()
        })
    }
}
