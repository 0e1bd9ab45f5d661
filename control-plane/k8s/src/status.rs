//! Writes statuses within a budget: compared before, debounced, latest wins per object.
//!
//! [`Queue`] decides what is written when; [`run`] writes. What is urgent goes first; rows and
//! counters that only grew old wait for the background's share, so that scaling a server does
//! not rewrite a thousand policies at once.

use std::{collections::BTreeMap, time::Duration};

use assent_core::Millis;
use kube::{
    Client,
    api::{Api, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{index::Kind, names};

#[cfg(test)]
mod tests;

/// Writes per second, and how many may go at once after quiet.
const RATE: f64 = 20.0;
const BURST: f64 = 50.0;

/// Writes per second of what is not urgent.
const BACKGROUND_RATE: f64 = 2.0;

/// Two writes of one object are at least so far apart.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// How long a failed write rests; the state that it was about may be gone by then.
const REST: Duration = Duration::from_secs(2);

/// Names an object that has a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The whole status.
    pub status: Value,
    /// The state of the object that it was computed for: the write is void if the object has
    /// changed since.
    pub resource_version: String,
    /// Whose life of the name it is.
    pub uid: String,
    /// Whether somebody waits for it.
    pub urgent: bool,
}

/// What became of a write.
#[derive(Debug)]
pub struct Written {
    /// The object.
    pub target: Target,
    /// The object as it is now, or what went wrong.
    pub result: Result<Box<DynamicObject>, Failure>,
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object changed or went; whoever computes statuses looks again.
    #[error("the object has changed meanwhile")]
    Outdated,
    /// Something else.
    #[error("failed to write the status: {0}")]
    Other(Box<kube::Error>),
}

/// Decides what is written when.
#[derive(Debug)]
pub struct Queue {
    pending: BTreeMap<Target, Wanted>,
    /// Not before then.
    resting: BTreeMap<Target, Millis>,
    all: Bucket,
    background: Bucket,
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
    /// Nothing to write, and the whole budget.
    pub fn new(now: Millis) -> Self {
        Self {
            pending: BTreeMap::new(),
            resting: BTreeMap::new(),
            all: Bucket::new(RATE, BURST, now),
            background: Bucket::new(BACKGROUND_RATE, 1.0, now),
        }
    }

    /// Wants this status written; what was wanted for the object before is void. What was
    /// urgent stays urgent.
    pub fn submit(&mut self, target: Target, mut wanted: Wanted) {
        let before = self.pending.get(&target);
        wanted.urgent |= before.is_some_and(|before| before.urgent);
        self.pending.insert(target, wanted);
    }

    /// The status is right as it is stored.
    pub fn withdraw(&mut self, target: &Target) {
        self.pending.remove(target);
    }

    /// What to write now, if anything.
    pub fn take(&mut self, now: Millis) -> Option<(Target, Wanted)> {
        self.all.refill(now);
        self.background.refill(now);
        self.resting.retain(|_, until| *until > now);
        if !self.all.has_one() {
            return None;
        }
        let target = self.next(true).or_else(|| self.next(false))?;
        let wanted = self.pending.remove(&target)?;
        self.all.tokens -= 1.0;
        if !wanted.urgent {
            self.background.tokens -= 1.0;
        }
        self.resting.insert(target.clone(), now + DEBOUNCE);
        Some((target, wanted))
    }

    /// A write failed: the object rests.
    pub fn failed(&mut self, target: &Target, now: Millis) {
        self.resting.insert(target.clone(), now + REST);
    }

    /// When [`Queue::take`] may have something; none where nothing is pending.
    pub fn due(&self, now: Millis) -> Option<Millis> {
        let ready = |(target, wanted): (&Target, &Wanted)| {
            let rested = self.resting.get(target).copied().unwrap_or(now);
            match wanted.urgent {
                true => rested,
                false => rested.max(self.background.ready_at(now)),
            }
        };
        let earliest = self.pending.iter().map(ready).min()?;
        Some(earliest.max(self.all.ready_at(now)))
    }

    fn next(&self, urgent: bool) -> Option<Target> {
        if !urgent && !self.background.has_one() {
            return None;
        }
        let mut pending = self.pending.iter();
        let found =
            pending.find(|(t, wanted)| wanted.urgent == urgent && !self.resting.contains_key(*t));
        found.map(|(target, _)| target.clone())
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

/// Writes what comes in over `wanted` (a status, or none where the stored one is right) and
/// tells what became of it, until the channel closes.
pub async fn run(
    client: Client,
    mut wanted: mpsc::UnboundedReceiver<(Target, Option<Wanted>)>,
    written: mpsc::Sender<Written>,
) {
    let start = Instant::now();
    let clock = || Millis::default() + start.elapsed();
    let mut queue = Queue::new(clock());
    loop {
        let due = queue
            .due(clock())
            .map(|at| start + at.since(Millis::default()));
        tokio::select! {
            // What is newest is known before anything is written.
            biased;
            next = wanted.recv() => match next {
                Some((target, Some(status))) => queue.submit(target, status),
                Some((target, None)) => queue.withdraw(&target),
                None => return,
            },
            () = wait(due) => {
                let Some((target, status)) = queue.take(clock()) else { continue };
                let result = write(&client, &target, status).await;
                if let Err(failure) = &result {
                    debug!(?target, "{failure}");
                    queue.failed(&target, clock());
                }
                if written.send(Written { target, result }).await.is_err() {
                    return;
                }
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

/// Applies the status on condition that the object is the one that it was computed for.
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
