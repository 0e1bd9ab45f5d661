//! A collection at its source: what the control plane keeps of it, and what each client of it
//! still has to get.
//!
//! Of a client only keys are kept, never bytes: an object is taken when it is sent, and the
//! newest wins. A client that starts, or whose buckets differ, is swept bucket by bucket, so that
//! it costs no more than the keys of one bucket. Changes and the mark that covers them are taken
//! together, so that a mark's root is always that of what the client has got.
//!
//! Before the first complete list a client gets marks and no objects: it may hold more than was
//! listed so far, and an unfinished list must not take that away (C3) or send it again (C7).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use assent_core::{Digest, Millis};

use crate::{BUCKETS, Collection, CollectionSpec, Key, Mark, Object, SyncState, Totals};

mod budget;
#[cfg(test)]
mod tests;

pub use budget::{ALONE_BYTES, Budget, MESSAGE_BYTES};

/// How often a client gets a mark, even if nothing changed: it learns that it is current (C5).
pub const MARK_INTERVAL: Millis = Millis(10_000);

/// Keys that a client may lag behind besides those of the collection. Whoever creates and deletes
/// objects of ever new names must not make a client that does not read cost memory.
const MAX_EXTRA_KEYS: usize = 16_384;

/// Names a client of a feed.
pub type ClientId = u64;

/// A time on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Monotonic; decisions depend on it.
    pub at: Millis,
    /// The date, for readers.
    pub date: SystemTime,
}

/// A collection with its clients.
#[derive(Debug)]
pub struct Feed {
    collection: Collection,
    state: SyncState,
    detail: String,
    resource_version: String,
    /// When this was last known to be what the API server has; none while that is known to go on.
    observed: Option<Moment>,
    /// There was a complete list.
    complete: bool,
    clients: BTreeMap<ClientId, Client>,
}

/// What a client still has to get.
#[derive(Debug)]
struct Client {
    /// The root that it holds, until there is a complete list to compare it with.
    claim: Option<Option<Digest>>,
    /// Objects that were changed or deleted since they were sent.
    pending: BTreeSet<Key>,
    sweep: Sweep,
    /// Buckets that it must be told to replace.
    resets: Option<Resets>,
    /// When it got its last mark; none if it needs one.
    marked: Option<Millis>,
    /// It holds another root and has to send its buckets first.
    waits_for_buckets: bool,
    wants_buckets: bool,
    /// It lags so far behind that its keys are not kept any more.
    lost: bool,
}

/// Buckets that are sent whole, in order.
#[derive(Debug, Default)]
struct Sweep {
    buckets: Vec<u16>,
    next: usize,
}

/// Buckets of which a client forgets what it is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resets {
    /// Every bucket.
    All,
    /// These.
    Buckets(Vec<u16>),
}

/// A part of a message about one collection.
#[derive(Debug, Default)]
pub struct Part {
    /// Buckets that are sent whole.
    pub resets: Option<Resets>,
    /// Objects, or nothing for one that is gone.
    pub changes: Vec<(Key, Option<Arc<Object>>)>,
    /// The state after these changes, if they are all.
    pub mark: Option<Mark>,
    /// The client must send its buckets.
    pub wants_buckets: bool,
}

/// A change at the source: the projected object, or nothing if it is gone.
pub type Change = (Key, Option<Vec<u8>>);

/// A client cannot be brought up to date and has to start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not keep up.
    #[error("too far behind: connect again and send the roots that are held")]
    TooFarBehind,
    /// It sent buckets that are none.
    #[error("`held.buckets` must have 1,024 entries of 8 bytes, or none")]
    Buckets,
}

// === impl Feed ===

impl Feed {
    /// A feed that has seen nothing.
    pub fn new(spec: Arc<CollectionSpec>) -> Self {
        Self {
            collection: Collection::new(spec),
            state: SyncState::Syncing,
            detail: String::new(),
            resource_version: String::new(),
            observed: None,
            complete: false,
            clients: BTreeMap::new(),
        }
    }

    /// What is in it.
    pub fn spec(&self) -> &Arc<CollectionSpec> {
        self.collection.spec()
    }

    /// How much it holds.
    pub fn totals(&self) -> Totals {
        self.collection.totals()
    }

    /// How complete it is.
    pub fn state(&self) -> SyncState {
        self.state
    }

    /// Whether there was a complete list.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.collection.iter()
    }

    /// The digest of all objects.
    pub fn root(&mut self) -> Digest {
        self.collection.root()
    }

    /// Whether the object is held in exactly this form.
    pub fn holds(&self, key: &Key, digest: Digest) -> bool {
        let held = self.collection.get(key);
        held.is_some_and(|held| held.digest() == digest)
    }

    /// Takes changes, which clients get together. True if anything changed.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>, version: &str) -> bool {
        let mut changed = false;
        for (key, json) in changes {
            let news = match json {
                // What the source projected is an object of that name; anything else is left out
                // and cannot be told apart from one that does not exist.
                Some(json) => self.collection.put(key.clone(), &json).unwrap_or(false),
                None => self.collection.remove(&key),
            };
            if news {
                changed = true;
                self.touch(&key);
            }
        }
        if !version.is_empty() {
            version.clone_into(&mut self.resource_version);
        }
        changed
    }

    /// Takes the end of a complete list: objects whose keys are not in it are gone (C3).
    pub fn complete(
        &mut self,
        keys: &BTreeSet<Key>,
        changes: impl IntoIterator<Item = Change>,
        version: &str,
    ) -> bool {
        let mut changed = self.apply(changes, version);
        for key in self.collection.retain(keys) {
            changed = true;
            self.touch(&key);
        }
        self.complete = true;
        self.observed = None;
        let root = self.collection.root();
        for client in self.clients.values_mut() {
            if let Some(held) = client.claim.take() {
                client.begin(held, root);
            }
        }
        self.enter(SyncState::Synced, "") || changed
    }

    /// Sets how complete it is; true if that is news. From `now` on a feed that is not synced
    /// ages.
    pub fn set_state(&mut self, state: SyncState, detail: &str, now: Moment) -> bool {
        // Without a complete list there is nothing that could be stale.
        let state = match state {
            SyncState::Stale | SyncState::Synced if !self.complete => SyncState::Syncing,
            state => state,
        };
        if state == SyncState::Synced {
            self.observed = None;
        } else if self.state == SyncState::Synced {
            self.observed = Some(now);
        }
        self.enter(state, detail)
    }

    fn enter(&mut self, state: SyncState, detail: &str) -> bool {
        let news = self.state != state || self.detail != detail;
        self.state = state;
        detail.clone_into(&mut self.detail);
        if news {
            self.clients.values_mut().for_each(|c| c.marked = None);
        }
        news
    }

    /// Adds a client that holds this root; nothing if it is empty.
    pub fn subscribe(&mut self, id: ClientId, root: Option<Digest>) {
        let mut client = Client {
            claim: Some(root),
            pending: BTreeSet::new(),
            sweep: Sweep::default(),
            resets: None,
            marked: None,
            waits_for_buckets: false,
            wants_buckets: false,
            lost: false,
        };
        if self.complete {
            client.claim = None;
            client.begin(root, self.collection.root());
        }
        self.clients.insert(id, client);
    }

    /// Removes a client.
    pub fn unsubscribe(&mut self, id: ClientId) {
        self.clients.remove(&id);
    }

    /// Whether somebody gets it.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// A client has sent what it holds: buckets, or nothing to get everything again.
    pub fn held<B: AsRef<[u8]>>(&mut self, id: ClientId, buckets: &[B]) -> Result<(), Error> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        if client.claim.is_some() {
            return Ok(());
        }
        (client.waits_for_buckets, client.wants_buckets) = (false, false);
        client.marked = None;
        if buckets.is_empty() {
            client.sweep_all();
            return Ok(());
        }
        let differing = self.collection.differing_buckets(buckets);
        let differing = differing.ok_or(Error::Buckets)?;
        client.sweep_buckets(differing);
        Ok(())
    }

    /// Fills a message with what a client has to get, as far as there is room. Nothing if there
    /// is nothing to say.
    pub fn fill(
        &mut self,
        id: ClientId,
        now: Moment,
        budget: &mut Budget,
    ) -> Result<Option<Part>, Error> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(None);
        };
        if client.lost {
            return Err(Error::TooFarBehind);
        }
        let mut part = Part {
            wants_buckets: std::mem::take(&mut client.wants_buckets),
            ..Part::default()
        };
        if client.waits_for_buckets {
            return Ok(part.wants_buckets.then_some(part));
        }
        part.resets = client.resets.take();
        let done = client.take(&self.collection, budget, &mut part);
        let marked = client.marked;
        let due = marked.is_none_or(|at| now.at.0 >= at.0 + MARK_INTERVAL.0);
        if done && (due || !part.changes.is_empty() || part.resets.is_some()) {
            client.marked = Some(now.at);
            part.mark = Some(self.mark(now));
        } else if !part.changes.is_empty() || part.resets.is_some() {
            // The mark comes with the last of the changes.
            client.marked = None;
        }
        let is_empty = part.changes.is_empty()
            && part.mark.is_none()
            && part.resets.is_none()
            && !part.wants_buckets;
        Ok((!is_empty).then_some(part))
    }

    /// When a client needs a mark, if nothing else happens; now if there is something to send.
    pub fn due(&self, id: ClientId) -> Option<Millis> {
        let client = self.clients.get(&id)?;
        if client.waits_for_buckets {
            return client.wants_buckets.then_some(Millis(0));
        }
        if client.lost {
            return Some(Millis(0));
        }
        let idle = client.pending.is_empty() && client.sweep.is_done() && client.resets.is_none();
        match client.marked {
            Some(at) if idle => Some(Millis(at.0 + MARK_INTERVAL.0)),
            _ => Some(Millis(0)),
        }
    }

    /// The state at this moment.
    pub fn mark(&mut self, now: Moment) -> Mark {
        let observed = self.observed.unwrap_or(now);
        // Without a complete list there is no state that could be the last one.
        let state = match self.state {
            SyncState::Forbidden if !self.complete => SyncState::Syncing,
            state => state,
        };
        Mark {
            collection: self.spec().id(),
            root: self.collection.root(),
            resource_version: self.resource_version.clone(),
            observed_at: observed.date,
            state,
            detail: self.detail.clone(),
            totals: self.collection.totals(),
            age: now.at.since(observed.at),
        }
    }

    /// Every client has to get this object, except those that will get its bucket anyway.
    fn touch(&mut self, key: &Key) {
        if self.clients.is_empty() {
            return;
        }
        let bucket = key.bucket();
        let objects = usize::try_from(self.collection.totals().objects).unwrap_or(usize::MAX);
        let most = objects.saturating_add(MAX_EXTRA_KEYS);
        for client in self.clients.values_mut().filter(|client| !client.lost) {
            let sent_later = client.claim.is_some() || client.waits_for_buckets;
            if !sent_later && !client.sweep.is_ahead(bucket) {
                client.pending.insert(key.clone());
            }
            if client.pending.len() > most {
                client.lost = true;
                client.pending = BTreeSet::new();
            }
        }
    }
}

// === impl Client ===

impl Client {
    /// Finds out what it has to get: it holds one root, and another one is the current one.
    fn begin(&mut self, held: Option<Digest>, root: Digest) {
        match held {
            // Equal content: no object is sent (C7).
            Some(held) if held == root => {}
            Some(_) => (self.waits_for_buckets, self.wants_buckets) = (true, true),
            None => self.sweep_all(),
        }
    }

    fn sweep_all(&mut self) {
        self.pending.clear();
        self.resets = Some(Resets::All);
        self.sweep = Sweep {
            buckets: (0..BUCKETS as u16).collect(),
            next: 0,
        };
    }

    fn sweep_buckets(&mut self, buckets: Vec<u16>) {
        self.pending.clear();
        self.resets = (!buckets.is_empty()).then(|| Resets::Buckets(buckets.clone()));
        self.sweep = Sweep { buckets, next: 0 };
    }

    /// Takes as many objects as there is room for; true if these were all.
    fn take(&mut self, collection: &Collection, budget: &mut Budget, part: &mut Part) -> bool {
        loop {
            while let Some(key) = self.pending.first() {
                let object = collection.get(key).cloned();
                if !budget.take(key, object.as_deref()) {
                    return false;
                }
                let key = self.pending.pop_first().expect("it must be the first");
                part.changes.push((key, object));
            }
            let Some(bucket) = self.sweep.advance() else {
                return true;
            };
            let keys = collection.bucket(bucket).iter();
            self.pending.extend(keys.map(|object| object.key().clone()));
        }
    }
}

// === impl Sweep ===

impl Sweep {
    fn is_done(&self) -> bool {
        self.next >= self.buckets.len()
    }

    fn advance(&mut self) -> Option<u16> {
        let bucket = self.buckets.get(self.next).copied();
        self.next += usize::from(bucket.is_some());
        if bucket.is_none() {
            *self = Self::default();
        }
        bucket
    }

    /// Whether the bucket is still to be sent.
    fn is_ahead(&self, bucket: u16) -> bool {
        self.buckets[self.next..].binary_search(&bucket).is_ok()
    }
}
