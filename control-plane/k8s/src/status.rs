//! Writes statuses within a budget: debounced, and the latest wins per object.
//!
//! [`Queue`] decides what is written when; [`StatusWriter`] writes. Urgent statuses go first;
//! rows and counters that are merely out of date share a smaller budget, so that scaling a
//! server does not rewrite a thousand policies at once.
//!
//! Memory is bounded by the number of objects: a status that is submitted before the former one
//! was written replaces it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use assent_controller::Kind;
use assent_core::Millis;
use kube::{
    Client,
    api::{Api, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{names, watch::KindExt as _};

#[cfg(test)]
mod tests;

/// Writes per second, and the burst after a quiet time: an API server with default limits serves
/// that beside everything else.
const RATE: f64 = 20.0;
const BURST: f64 = 50.0;

/// Writes per second of statuses that are not urgent.
const BACKGROUND_RATE: f64 = 2.0;

/// The shortest time between two writes of one object.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// The shortest time between a failed write of an object and the next.
const REST: Duration = Duration::from_secs(2);

/// Names an object that has a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The whole status.
    pub status: Value,
    /// The state of the object that it was computed for: the write fails if the object has
    /// changed since.
    pub resource_version: String,
    /// The object's uid: the write fails if the object was replaced.
    pub uid: String,
    /// Whether users wait for it.
    pub urgent: bool,
}

/// The outcome of a write.
#[derive(Debug)]
pub struct Written {
    /// The object.
    pub target: Target,
    /// The object as it is now, or why the write failed.
    pub result: Result<Box<DynamicObject>, Failure>,
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object was changed or deleted: the status must be computed again.
    #[error("the object was changed or deleted in the meantime")]
    Outdated,
    /// Something else.
    #[error("failed to write the status: {0}")]
    Other(Box<kube::Error>),
}

/// Decides what is written when. Every operation is logarithmic in the number of pending
/// statuses.
#[derive(Debug)]
pub struct Queue {
    pending: BTreeMap<Target, Pending>,
    /// Pending statuses in the order in which they are written.
    urgent: BTreeSet<Turn>,
    background: BTreeSet<Turn>,
    /// When recently written objects may be written again.
    resting: HashMap<Target, Millis>,
    all_writes: Bucket,
    background_writes: Bucket,
    submissions: u64,
}

/// A status that waits to be written.
#[derive(Clone, Debug)]
struct Pending {
    wanted: Wanted,
    ready: Millis,
    submission: u64,
}

/// The order of writes: first come, first served, but not before the object has rested.
type Turn = (Millis, u64, Target);

/// Hands statuses to the [`StatusWriter`]; clones share one queue.
#[derive(Clone, Debug)]
pub struct StatusQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Notify,
    start: Instant,
}

/// Writes the statuses of a [`StatusQueue`].
pub struct StatusWriter {
    client: Client,
    queue: StatusQueue,
}

/// Tokens that come back with time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Millis,
}

// === impl Queue ===

impl Queue {
    /// An empty queue with the whole budget.
    pub fn new(now: Millis) -> Self {
        Self {
            pending: BTreeMap::new(),
            urgent: BTreeSet::new(),
            background: BTreeSet::new(),
            resting: HashMap::new(),
            all_writes: Bucket::new(RATE, BURST, now),
            background_writes: Bucket::new(BACKGROUND_RATE, 1.0, now),
            submissions: 0,
        }
    }

    /// Replaces the pending status of the object, if there is one: it keeps its place, and stays
    /// urgent if it was.
    pub fn submit(&mut self, target: Target, mut wanted: Wanted, now: Millis) {
        let before = self.remove(&target);
        wanted.urgent |= before.as_ref().is_some_and(|before| before.wanted.urgent);
        let (ready, submission) = match before {
            Some(before) => (before.ready, before.submission),
            None => {
                self.submissions += 1;
                let rested = self.resting.get(&target).copied().unwrap_or(now);
                (rested.max(now), self.submissions)
            }
        };
        self.turns(wanted.urgent)
            .insert((ready, submission, target.clone()));
        let pending = Pending {
            wanted,
            ready,
            submission,
        };
        self.pending.insert(target, pending);
    }

    /// The stored status of the object is up to date.
    pub fn withdraw(&mut self, target: &Target) {
        self.remove(target);
    }

    /// The next status to write, if one may be written now.
    pub fn take(&mut self, now: Millis) -> Option<(Target, Wanted)> {
        self.all_writes.refill(now);
        self.background_writes.refill(now);
        self.resting.retain(|_, until| *until > now);
        if !self.all_writes.has_one() {
            return None;
        }
        let ready = |turns: &BTreeSet<Turn>| turns.first().filter(|t| t.0 <= now).cloned();
        let background = || match self.background_writes.has_one() {
            true => ready(&self.background),
            false => None,
        };
        let (_, _, target) = ready(&self.urgent).or_else(background)?;
        let wanted = self.remove(&target)?.wanted;
        self.all_writes.tokens -= 1.0;
        if !wanted.urgent {
            self.background_writes.tokens -= 1.0;
        }
        self.resting.insert(target.clone(), now + DEBOUNCE);
        Some((target, wanted))
    }

    /// A write of the object failed.
    pub fn failed(&mut self, target: &Target, now: Millis) {
        let ready = now + REST;
        self.resting.insert(target.clone(), ready);
        // What was submitted during the write waits too.
        if let Some(pending) = self.remove(target) {
            let pending = Pending { ready, ..pending };
            let turn = (ready, pending.submission, target.clone());
            self.turns(pending.wanted.urgent).insert(turn);
            self.pending.insert(target.clone(), pending);
        }
    }

    /// When [`Queue::take`] may return something; none if nothing is pending.
    pub fn due(&self, now: Millis) -> Option<Millis> {
        let first = |turns: &BTreeSet<Turn>| turns.first().map(|turn| turn.0);
        let background = first(&self.background);
        let background = background.map(|at| at.max(self.background_writes.ready_at(now)));
        let earliest = first(&self.urgent).into_iter().chain(background).min()?;
        Some(earliest.max(self.all_writes.ready_at(now)))
    }

    fn remove(&mut self, target: &Target) -> Option<Pending> {
        let pending = self.pending.remove(target)?;
        let turn = (pending.ready, pending.submission, target.clone());
        self.turns(pending.wanted.urgent).remove(&turn);
        Some(pending)
    }

    fn turns(&mut self, urgent: bool) -> &mut BTreeSet<Turn> {
        match urgent {
            true => &mut self.urgent,
            false => &mut self.background,
        }
    }
}

// === impl Bucket ===

impl Bucket {
    fn new(rate: f64, burst: f64, at: Millis) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            at,
        }
    }

    fn refill(&mut self, now: Millis) {
        let passed = now.since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.at = now;
    }

    fn has_one(&self) -> bool {
        // Tokens come back in fractions that do not add up to one exactly.
        self.tokens >= 0.999
    }

    fn ready_at(&self, now: Millis) -> Millis {
        let missing = (1.0 - self.tokens - now.since(self.at).as_secs_f64() * self.rate).max(0.0);
        now + Duration::from_secs_f64(missing / self.rate)
    }
}

// === impl Target ===

impl Target {
    fn api(&self, client: &Client) -> Api<DynamicObject> {
        let resource = self.kind.resource();
        match self.namespace.as_str() {
            "" => Api::all_with(client.clone(), &resource),
            namespace => Api::namespaced_with(client.clone(), namespace, &resource),
        }
    }
}

// === impl StatusQueue ===

impl StatusQueue {
    /// Writes this status in place of any former one of the object.
    pub fn submit(&self, target: Target, wanted: Wanted) {
        let now = self.now();
        self.lock().submit(target, wanted, now);
        self.0.changed.notify_one();
    }

    /// Writes nothing: the stored status of the object is up to date.
    pub fn withdraw(&self, target: &Target) {
        self.lock().withdraw(target);
    }

    /// How many objects have a pending status.
    pub fn len(&self) -> usize {
        self.lock().pending.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn now(&self) -> Millis {
        Millis::default() + self.0.start.elapsed()
    }

    /// The queue is consistent after every operation, so that a panic elsewhere spoils nothing.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        let queue = self.0.queue.lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl StatusWriter ===

impl StatusWriter {
    /// A writer, and the queue that it works off.
    pub fn new(client: Client) -> (Self, StatusQueue) {
        let queue = StatusQueue(Arc::new(Shared {
            queue: Mutex::new(Queue::new(Millis::default())),
            changed: Notify::new(),
            start: Instant::now(),
        }));
        let writer = Self {
            client,
            queue: queue.clone(),
        };
        (writer, queue)
    }

    /// Writes statuses and reports the outcomes, until nobody receives them.
    pub async fn run(self, written: mpsc::Sender<Written>) {
        let Self { client, queue } = self;
        loop {
            let next = {
                let now = queue.now();
                let mut locked = queue.lock();
                locked.take(now).ok_or_else(|| locked.due(now))
            };
            let (target, status) = match next {
                Ok(next) => next,
                Err(due) => {
                    let due = due.map(|at| queue.0.start + at.since(Millis::default()));
                    tokio::select! {
                        () = wait(due) => {}
                        () = queue.0.changed.notified() => {}
                        () = written.closed() => return,
                    }
                    continue;
                }
            };
            let result = write(&client, &target, status).await;
            if let Err(failure) = &result {
                debug!(?target, "{failure}");
                queue.lock().failed(&target, queue.now());
            }
            if written.send(Written { target, result }).await.is_err() {
                return;
            }
        }
    }
}

async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Applies the status if the object is still the one that it was computed for.
async fn write(
    client: &Client,
    target: &Target,
    wanted: Wanted,
) -> Result<Box<DynamicObject>, Failure> {
    let resource = target.kind.resource();
    let object = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": target.name,
            "resourceVersion": wanted.resource_version,
            "uid": wanted.uid,
        },
        "status": wanted.status,
    });
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let patched = target
        .api(client)
        .patch_status(&target.name, &params, &Patch::Apply(object))
        .await;
    match patched {
        Ok(object) => Ok(Box::new(object)),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            Err(Failure::Outdated)
        }
        Err(error) => {
            warn!(?target, "failed to write a status: {error}");
            Err(Failure::Other(Box::new(error)))
        }
    }
}
