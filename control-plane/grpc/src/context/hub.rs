//! The collections of all PolicyServers: filled by whoever follows the API server, read by
//! streams.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use assent_context::{
    CollectionId, CollectionSpec, Key, Mark, SyncState, Totals,
    feed::{Change, ClientId, Feed, Moment},
    sink::CollectionSink,
};
use assent_core::{Digest, Millis, fleet::Name};
use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{clients::ContextClients, metrics::ContextMetrics};

/// Collections and who gets them. Clones share one state. The collections outlive a leadership:
/// a process that leads again has them still.
#[derive(Clone, Debug)]
pub struct ContextHub(Arc<Inner>);

/// The collections that the evaluators of a PolicyServer get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The collections.
    pub collections: BTreeMap<CollectionId, Arc<CollectionSpec>>,
    /// Whether these are all: what a client holds besides is removed.
    pub complete: bool,
    /// What its evaluators may hold.
    pub limits: Limits,
}

/// What the evaluators of a PolicyServer may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of objects.
    pub memory_bytes: u64,
    /// The age from which reads are errors; 0 for none.
    pub max_staleness_ms: u64,
}

#[derive(Debug)]
struct Inner {
    started: Instant,
    feeds: RwLock<HashMap<CollectionId, Arc<FeedCell>>>,
    assigned: RwLock<HashMap<Name, watch::Sender<Arc<Assigned>>>>,
    next_client: AtomicU64,
    clients: ContextClients,
    metrics: ContextMetrics,
}

/// A feed, and the streams to wake when it changes.
#[derive(Debug)]
pub(super) struct FeedCell(Mutex<Cell>);

#[derive(Debug)]
pub(super) struct Cell {
    pub(super) feed: Feed,
    wakers: HashMap<ClientId, Arc<Notify>>,
}

// === impl ContextHub ===

impl Default for ContextHub {
    fn default() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            feeds: RwLock::default(),
            assigned: RwLock::default(),
            next_client: AtomicU64::new(0),
            clients: ContextClients::default(),
            metrics: ContextMetrics::default(),
        }))
    }
}

impl ContextHub {
    /// The states of all collections.
    pub fn marks(&self) -> Vec<(Arc<CollectionSpec>, Mark)> {
        let feeds = self.0.feeds.read().unwrap_or_else(PoisonError::into_inner);
        let cells: Vec<Arc<FeedCell>> = feeds.values().cloned().collect();
        drop(feeds);
        let now = self.now();
        let mark = |cell: Arc<FeedCell>| {
            let mut cell = cell.lock();
            (cell.feed.spec().clone(), cell.feed.mark(now))
        };
        cells.into_iter().map(mark).collect()
    }

    /// The states of the collections of a PolicyServer.
    pub fn marks_of(&self, server: &str) -> Vec<(Arc<CollectionSpec>, Mark)> {
        let all = self.0.assigned.read();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        let assigned = all.get(server).map(|assigned| assigned.borrow().clone());
        drop(all);
        let now = self.now();
        let specs = assigned.iter().flat_map(|a| a.collections.values());
        let marks = specs.filter_map(|spec| {
            let cell = self.feed(&spec.id())?;
            let mark = cell.lock().feed.mark(now);
            Some((spec.clone(), mark))
        });
        marks.collect()
    }

    /// Sends these collections to the evaluators of a PolicyServer.
    pub fn assign(&self, server: &str, assigned: Assigned) {
        for spec in assigned.collections.values() {
            self.open(spec);
        }
        let assigned = Arc::new(assigned);
        let sender = self.assignments(server);
        sender.send_if_modified(|before| {
            let news = *before != assigned;
            *before = assigned;
            news
        });
    }

    /// Forgets who gets what: a later leadership starts from nothing. The collections stay.
    pub fn forget_assignments(&self) {
        let mut all = self.write_assigned();
        all.clear();
    }

    /// The marks that a replica acknowledged last.
    pub fn acknowledged(&self, server: &str, replica: &str) -> Vec<Mark> {
        self.0.clients.marks(server, replica)
    }

    /// Registers what is counted of context streams.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.0.metrics.register(registry);
    }

    /// What a collection is, if it is assigned to the PolicyServer.
    pub(super) fn assigned_spec(
        &self,
        server: &str,
        id: &CollectionId,
    ) -> Option<Arc<CollectionSpec>> {
        let all = self
            .0
            .assigned
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let assigned = all.get(server)?.borrow().clone();
        assigned.collections.get(id).cloned()
    }

    /// The assignments of a PolicyServer. Until one was made it is incomplete and empty.
    pub(super) fn follow(&self, server: &str) -> watch::Receiver<Arc<Assigned>> {
        self.assignments(server).subscribe()
    }

    pub(super) fn feed(&self, id: &CollectionId) -> Option<Arc<FeedCell>> {
        let feeds = self.0.feeds.read().unwrap_or_else(PoisonError::into_inner);
        feeds.get(id).cloned()
    }

    pub(super) fn next_client(&self) -> ClientId {
        self.0.next_client.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn clients(&self) -> &ContextClients {
        &self.0.clients
    }

    pub(crate) fn metrics(&self) -> &ContextMetrics {
        &self.0.metrics
    }

    pub(super) fn now(&self) -> Moment {
        let at = self.0.started.elapsed().as_millis();
        Moment {
            at: Millis(u64::try_from(at).unwrap_or(u64::MAX)),
            date: SystemTime::now(),
        }
    }

    /// The instant of a monotonic time.
    pub(super) fn instant(&self, at: Millis) -> Instant {
        self.0.started + std::time::Duration::from_millis(at.0)
    }

    fn change(&self, id: &CollectionId, change: impl FnOnce(&mut Feed) -> bool) {
        let Some(cell) = self.feed(id) else { return };
        let mut cell = cell.lock();
        if change(&mut cell.feed) {
            cell.wakers.values().for_each(|waker| waker.notify_one());
        }
    }

    fn assignments(&self, server: &str) -> watch::Sender<Arc<Assigned>> {
        let mut all = self.write_assigned();
        let sender = all.entry(Name::from(server));
        sender
            .or_insert_with(|| watch::Sender::new(Arc::default()))
            .clone()
    }

    fn write_assigned(
        &self,
    ) -> std::sync::RwLockWriteGuard<'_, HashMap<Name, watch::Sender<Arc<Assigned>>>> {
        let all = self.0.assigned.write();
        all.unwrap_or_else(PoisonError::into_inner)
    }
}

impl CollectionSink for ContextHub {
    fn open(&self, spec: &Arc<CollectionSpec>) {
        let mut feeds = self.0.feeds.write().unwrap_or_else(PoisonError::into_inner);
        feeds
            .entry(spec.id())
            .or_insert_with(|| Arc::new(FeedCell::new(spec.clone())));
    }

    fn close(&self, id: &CollectionId) {
        let mut feeds = self.0.feeds.write().unwrap_or_else(PoisonError::into_inner);
        feeds.remove(id);
    }

    fn apply(&self, id: &CollectionId, changes: Vec<Change>, version: &str) {
        self.change(id, |feed| feed.apply(changes, version));
    }

    fn complete(
        &self,
        id: &CollectionId,
        keys: &BTreeSet<Key>,
        changes: Vec<Change>,
        version: &str,
    ) {
        self.change(id, |feed| feed.complete(keys, changes, version));
    }

    fn set_state(&self, id: &CollectionId, state: SyncState, detail: &str) {
        let now = self.now();
        self.change(id, |feed| feed.set_state(state, detail, now));
    }

    fn holds(&self, id: &CollectionId, key: &Key, digest: Digest) -> bool {
        let cell = self.feed(id);
        cell.is_some_and(|cell| cell.lock().feed.holds(key, digest))
    }

    fn is_complete(&self, id: &CollectionId) -> bool {
        let cell = self.feed(id);
        cell.is_some_and(|cell| cell.lock().feed.is_complete())
    }

    fn totals(&self, id: &CollectionId) -> Totals {
        let cell = self.feed(id);
        cell.map_or_else(Totals::default, |cell| cell.lock().feed.totals())
    }

    fn sample(&self, id: &CollectionId, most: usize) -> Vec<Bytes> {
        let Some(cell) = self.feed(id) else {
            return Vec::new();
        };
        let cell = cell.lock();
        let objects = cell.feed.iter().take(most);
        objects.map(|object| object.json().clone()).collect()
    }
}

// === impl FeedCell ===

impl FeedCell {
    fn new(spec: Arc<CollectionSpec>) -> Self {
        Self(Mutex::new(Cell {
            feed: Feed::new(spec),
            wakers: HashMap::new(),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cell> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Cell ===

impl Cell {
    pub(super) fn subscribe(&mut self, id: ClientId, root: Option<Digest>, waker: &Arc<Notify>) {
        self.feed.subscribe(id, root);
        self.wakers.insert(id, waker.clone());
    }

    pub(super) fn unsubscribe(&mut self, id: ClientId) {
        self.feed.unsubscribe(id);
        self.wakers.remove(&id);
    }
}
