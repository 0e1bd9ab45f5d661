//! Follows the kinds and collections that policies declare, and nothing else.
//!
//! A [`Follower`] outlives leaderships: a standby follows the collections of stored revisions, and
//! goes on with them when it leads. What is read goes to a [`CollectionSink`], already projected;
//! what became of it is reported as [`ContextEvent`]s.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use assent_context::{CollectionId, CollectionSpec, sink::CollectionSink};
use assent_controller::contexts::{ContextEvent, FollowedCollection, KindRef};
use kube::Client;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};
use tracing::{Instrument as _, info_span};

mod collection;
mod kinds;
mod live;
mod merge;
mod scope;

pub(crate) use kinds::find as find_kind;
pub use live::LiveReader;

/// Says what is to be followed. Clones share one state.
#[derive(Clone, Debug)]
pub struct Follower {
    kinds: watch::Sender<Vec<KindRef>>,
    collections: watch::Sender<Vec<FollowedCollection>>,
}

/// What the tasks of a follower share.
struct Shared {
    client: Client,
    sink: Arc<dyn CollectionSink>,
    events: mpsc::Sender<ContextEvent>,
    /// A watch failed in a way that another look at its kind may explain.
    look_again: Notify,
}

/// A collection that is followed.
struct Running {
    task: tokio::task::AbortHandle,
    limit: Arc<AtomicU64>,
    /// Asks for a report.
    report: Arc<Notify>,
}

// === impl Follower ===

impl Follower {
    /// A follower that runs as long as the returned tasks. It reports to `events`.
    pub fn spawn(
        client: Client,
        sink: Arc<dyn CollectionSink>,
        events: mpsc::Sender<ContextEvent>,
    ) -> (Self, JoinSet<()>) {
        let shared = Arc::new(Shared {
            client,
            sink,
            events,
            look_again: Notify::new(),
        });
        let (kinds, kinds_rx) = watch::channel(Vec::new());
        let (collections, collections_rx) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(kinds::follow(shared.clone(), kinds_rx));
        tasks.spawn(follow_collections(shared, collections_rx));
        (Self { kinds, collections }, tasks)
    }

    /// Looks up these kinds and no others. Each is reported, and again when it changes.
    pub fn follow_kinds(&self, kinds: Vec<KindRef>) {
        self.kinds.send_replace(kinds);
    }

    /// Follows these collections and no others. Each is reported, and again when it changes.
    pub fn follow_collections(&self, collections: Vec<FollowedCollection>) {
        self.collections.send_replace(collections);
    }
}

async fn follow_collections(
    shared: Arc<Shared>,
    mut wanted: watch::Receiver<Vec<FollowedCollection>>,
) {
    let mut tasks = JoinSet::new();
    let mut running: HashMap<CollectionId, Running> = HashMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        let now: BTreeMap<CollectionId, FollowedCollection> =
            now.into_iter().map(|c| (c.spec.id(), c)).collect();
        running.retain(|id, one| {
            let stays = now.contains_key(id);
            if !stays {
                one.task.abort();
                shared.sink.close(id);
            }
            stays
        });
        for (id, followed) in now {
            let limit = followed.limit.unwrap_or(u64::MAX);
            let known = running.get(&id);
            // A list that was given up is tried again with another limit only.
            let goes_on = known.filter(|one| {
                let same = one.limit.swap(limit, Ordering::Relaxed) == limit;
                same || !one.task.is_finished()
            });
            match goes_on {
                Some(one) => one.report.notify_one(),
                None => drop(running.insert(id, start(&shared, &mut tasks, followed.spec, limit))),
            }
        }
        while tasks.try_join_next().is_some() {}
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

fn start(
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<()>,
    spec: Arc<CollectionSpec>,
    limit: u64,
) -> Running {
    shared.sink.open(&spec);
    let limit = Arc::new(AtomicU64::new(limit));
    let report = Arc::new(Notify::new());
    let span = info_span!("context", kind = %spec, id = %spec.id());
    let task = collection::follow(shared.clone(), spec, limit.clone(), report.clone());
    Running {
        task: tasks.spawn(task.instrument(span)),
        limit,
        report,
    }
}
