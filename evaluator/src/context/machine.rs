//! The replication protocol of collections as a pure state machine: messages in, answers and states out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use assent_context::{
    BUCKETS, Collection, CollectionId, CollectionSpec, Key, Mark, Snapshot, SyncState, Totals,
};
use assent_proto::v1;
use assent_wire::context as wire;

#[cfg(test)]
mod tests;

/// Bytes of objects that are kept if the PolicyServer sets no limit.
pub(crate) const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// Every collection that the control plane announced, and what is known of it.
pub(crate) struct Machine {
    copies: BTreeMap<CollectionId, Copy>,
    lease_transitions: u64,
    limits: Limits,
}

/// Limits of the PolicyServer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) max_staleness: Option<Duration>,
}

/// This evaluator's copy of one collection.
struct Copy {
    collection: Collection,
    /// Keys of buckets that are being sent whole: what no change names until the mark does not exist.
    doomed: BTreeSet<Key>,
    /// Whether a complete state was published: it is served until there is a newer one.
    served: bool,
    refused: Option<Refused>,
    mismatches: u32,
}

/// Why changes of a collection are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refused {
    /// It would exceed the memory limit.
    TooLarge(String),
}

/// What follows from a message, in order.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// Readers see this state from now on.
    Publish(Published),
    /// The collection is not announced any more.
    Remove(CollectionId),
    /// Limits have changed.
    Limits(Limits),
    /// A root did not match: the last state is served as stale until it does.
    Mismatch(CollectionId),
    /// Send this.
    Answer(v1::ContextRequest),
    /// The control plane is not the newest: end the stream.
    Reconnect(String),
}

/// One collection after a mark.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) spec: Arc<CollectionSpec>,
    /// None: what was published before, if anything, stays.
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) state: SyncState,
    pub(crate) detail: String,
    pub(crate) age: Duration,
    /// By the control plane's clock.
    pub(crate) observed_at: SystemTime,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: DEFAULT_MEMORY_BYTES,
            max_staleness: None,
        }
    }
}

impl From<v1::ContextLimits> for Limits {
    fn from(limits: v1::ContextLimits) -> Self {
        Self {
            memory_bytes: match limits.memory_bytes {
                0 => DEFAULT_MEMORY_BYTES,
                bytes => bytes,
            },
            max_staleness: match limits.max_staleness_ms {
                0 => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(lease_transitions: u64) -> Self {
        Self {
            copies: BTreeMap::new(),
            lease_transitions,
            limits: Limits::default(),
        }
    }

    /// Takes a complete collection that an earlier process kept.
    pub(crate) fn restore(&mut self, collection: Collection, limits: Limits) {
        self.limits = limits;
        let mut copy = Copy::new(collection);
        copy.served = true;
        self.copies.insert(copy.collection.spec().id(), copy);
    }

    /// The newest leadership that was seen, here or on the discovery stream.
    pub(crate) fn saw(&mut self, lease_transitions: u64) {
        self.lease_transitions = self.lease_transitions.max(lease_transitions);
    }

    pub(crate) fn lease_transitions(&self) -> u64 {
        self.lease_transitions
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// What this evaluator holds: the first message of a stream. What was not served is not complete and is sent again
    /// whole or by its buckets.
    pub(crate) fn held(&mut self) -> Vec<v1::CollectionHeld> {
        let held = self.copies.iter_mut().map(|(id, copy)| {
            copy.doomed.clear();
            copy.mismatches = 0;
            copy.refused = None;
            let empty = copy.collection.totals().objects == 0 && !copy.served;
            let root = (!empty).then(|| copy.collection.root());
            wire::held_to_proto(*id, root.as_ref(), None)
        });
        held.collect()
    }

    pub(crate) fn receive(&mut self, message: v1::ContextResponse, out: &mut Vec<Output>) {
        let transitions = message.control_plane.as_ref().map(|c| c.lease_transitions);
        if let Some(transitions) = transitions {
            if transitions < self.lease_transitions {
                let seen = self.lease_transitions;
                let why = format!(
                    "failed to accept objects: they come from leadership term {transitions}, and this evaluator has \
                     seen term {seen}"
                );
                out.push(answer(message.nonce, Vec::new(), Some(why.clone())));
                return out.push(Output::Reconnect(why));
            }
            self.lease_transitions = transitions;
        }
        let nonce = message.nonce.clone();
        let mut reply = Reply::default();
        if let Err(error) = self.apply(message, &mut reply, out) {
            // Nothing of the rest is taken: the next mark will not match, and the buckets are compared.
            reply.errors.push(error);
        }
        let errors = (!reply.errors.is_empty()).then(|| reply.errors.join("; "));
        out.push(answer(nonce, reply.held, errors));
    }

    fn apply(
        &mut self,
        message: v1::ContextResponse,
        reply: &mut Reply,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        if let Some(limits) = message.limits.map(Limits::from) {
            self.set_limits(limits, reply, out);
        }
        let text = |error: wire::Error| error.to_string();
        for collection in message.collections {
            let spec = wire::collection(collection).map_err(text)?;
            self.announce(spec, out);
        }
        for id in &message.removed_collections {
            let id = wire::collection_id(id).map_err(text)?;
            self.copies.remove(&id);
            out.push(Output::Remove(id));
        }
        for reset in &message.resets {
            let copy = self.copy(&reset.collection)?;
            copy.doom(reset)?;
        }
        for change in &message.changes {
            self.change(change, out)?;
        }
        for mark in message.marks {
            self.mark(wire::mark(mark).map_err(text)?, reply, out);
        }
        for id in &message.want_buckets {
            let copy = self.copy(id)?;
            reply.held.push(copy.held(true));
        }
        Ok(())
    }

    /// A collection that was too large for the old limit may fit the new one.
    fn set_limits(&mut self, limits: Limits, reply: &mut Reply, out: &mut Vec<Output>) {
        if self.limits == limits {
            return;
        }
        self.limits = limits;
        out.push(Output::Limits(limits));
        for (id, copy) in &mut self.copies {
            if copy.refused.take().is_some() {
                reply.held.push(wire::held_to_proto(*id, None, None));
            }
        }
    }

    fn announce(&mut self, spec: Arc<CollectionSpec>, out: &mut Vec<Output>) {
        self.copies.entry(spec.id()).or_insert_with(|| {
            out.push(Output::Publish(Published {
                spec: spec.clone(),
                snapshot: None,
                state: SyncState::Syncing,
                detail: String::new(),
                age: Duration::ZERO,
                observed_at: SystemTime::UNIX_EPOCH,
            }));
            Copy::new(Collection::new(spec))
        });
    }

    fn change(&mut self, change: &v1::ObjectChange, out: &mut Vec<Output>) -> Result<(), String> {
        let others = self.bytes();
        let limit = self.limits.memory_bytes;
        let copy = self.copy(&change.collection)?;
        if copy.refused.is_some() {
            return Ok(());
        }
        let key = Key::new(&change.namespace, &change.name);
        let key = key.ok_or_else(|| format!("{:?} is not the name of an object", change.name))?;
        copy.doomed.remove(&key);
        if change.deleted {
            copy.collection.remove(&key);
            return Ok(());
        }
        let put = copy.collection.put(key, &change.object);
        put.map_err(|error| error.to_string())?;
        // Nothing that serves is evicted, and what serves may grow: only a new collection is refused.
        let bytes = others + change.object.len() as u64;
        if !copy.served && bytes > limit {
            copy.refuse(limit, out);
        }
        Ok(())
    }

    fn mark(&mut self, mark: Mark, reply: &mut Reply, out: &mut Vec<Output>) {
        let Some(copy) = self.copies.get_mut(&mark.collection) else {
            reply.errors.push(format!(
                "the collection {} was not announced",
                mark.collection
            ));
            return;
        };
        if let Some(Refused::TooLarge(why)) = &copy.refused {
            reply.errors.push(why.clone());
            return;
        }
        if mark.state == SyncState::Syncing || mark.state == SyncState::Absent {
            return out.push(Output::Publish(copy.incomplete(mark)));
        }
        for key in std::mem::take(&mut copy.doomed) {
            copy.collection.remove(&key);
        }
        if copy.collection.root() != mark.root {
            copy.mismatched(&mark, reply, out);
            return;
        }
        copy.mismatches = 0;
        copy.served = true;
        out.push(Output::Publish(Published {
            spec: copy.collection.spec().clone(),
            snapshot: Some(copy.collection.snapshot()),
            state: mark.state,
            detail: mark.detail,
            age: mark.age,
            observed_at: mark.observed_at,
        }));
    }

    fn copy(&mut self, id: &str) -> Result<&mut Copy, String> {
        let parsed = wire::collection_id(id).map_err(|error| error.to_string())?;
        let copy = self.copies.get_mut(&parsed);
        copy.ok_or_else(|| format!("the collection {id} was not announced"))
    }

    fn bytes(&self) -> u64 {
        let copies = self.copies.values();
        copies.map(|copy| copy.collection.totals().bytes).sum()
    }
}

/// The parts of an answer.
#[derive(Default)]
struct Reply {
    held: Vec<v1::CollectionHeld>,
    errors: Vec<String>,
}

// === impl Copy ===

impl Copy {
    fn new(collection: Collection) -> Self {
        Self {
            collection,
            doomed: BTreeSet::new(),
            served: false,
            refused: None,
            mismatches: 0,
        }
    }

    fn held(&mut self, buckets: bool) -> v1::CollectionHeld {
        let root = self.collection.root();
        let prefixes = buckets.then(|| self.collection.bucket_prefixes());
        let id = self.collection.spec().id();
        wire::held_to_proto(id, Some(&root), prefixes.as_ref())
    }

    fn doom(&mut self, reset: &v1::BucketReset) -> Result<(), String> {
        if reset.all {
            let keys = self.collection.iter().map(|object| object.key().clone());
            self.doomed.extend(keys);
            return Ok(());
        }
        for bucket in &reset.buckets {
            let known = u16::try_from(*bucket)
                .ok()
                .filter(|b| usize::from(*b) < BUCKETS);
            let bucket = known.ok_or_else(|| format!("there is no bucket {bucket}"))?;
            let objects = self.collection.bucket(bucket).iter();
            self.doomed
                .extend(objects.map(|object| object.key().clone()));
        }
        Ok(())
    }

    /// A complete state that was published stays: what is missing now says nothing about what exists.
    fn incomplete(&self, mark: Mark) -> Published {
        let state = match mark.state {
            SyncState::Syncing if self.served => SyncState::Stale,
            state => state,
        };
        Published {
            spec: self.collection.spec().clone(),
            snapshot: None,
            state,
            detail: mark.detail,
            age: mark.age,
            observed_at: mark.observed_at,
        }
    }

    /// The first time by buckets. If that did not help, two buckets with equal prefixes differ: the whole collection.
    fn mismatched(&mut self, mark: &Mark, reply: &mut Reply, out: &mut Vec<Output>) {
        let id = self.collection.spec().id();
        self.mismatches += 1;
        out.push(Output::Mismatch(id));
        out.push(Output::Publish(Published {
            spec: self.collection.spec().clone(),
            snapshot: None,
            state: match self.served {
                true => SyncState::Stale,
                false => SyncState::Syncing,
            },
            detail: "the copy differs from the control plane's; it is being repaired".to_owned(),
            age: mark.age,
            observed_at: mark.observed_at,
        }));
        let root = self.collection.root();
        reply.errors.push(format!(
            "{}: the objects here have the root {} and not {}",
            self.collection.spec(),
            root.hex(),
            mark.root.hex()
        ));
        reply.held.push(match self.mismatches {
            1 => self.held(true),
            _ => wire::held_to_proto(id, None, None),
        });
    }

    fn refuse(&mut self, limit: u64, out: &mut Vec<Output>) {
        let Totals { objects, bytes } = self.collection.totals();
        let spec = self.collection.spec().clone();
        let hint = match spec.fields().is_empty() {
            true => "declare the fields that the policy reads, or raise",
            false => "declare fewer fields or namespaces, or raise",
        };
        let why = format!(
            "{spec} exceeds the memory limit of {limit} bytes with {objects} objects of {bytes} bytes; {hint} \
             spec.context.memoryLimit of the PolicyServer"
        );
        self.collection = Collection::new(spec.clone());
        self.doomed.clear();
        self.refused = Some(Refused::TooLarge(why.clone()));
        out.push(Output::Publish(Published {
            spec,
            snapshot: None,
            state: SyncState::Syncing,
            detail: why,
            age: Duration::ZERO,
            observed_at: SystemTime::UNIX_EPOCH,
        }));
    }
}

fn answer(nonce: String, held: Vec<v1::CollectionHeld>, error: Option<String>) -> Output {
    let status = error.map(|message| assent_proto::google::rpc::Status {
        code: tonic::Code::FailedPrecondition as i32,
        message: crate::failure::cut(message),
        details: Vec::new(),
    });
    Output::Answer(v1::ContextRequest {
        node: None,
        held,
        response_nonce: nonce,
        error_detail: status,
    })
}
