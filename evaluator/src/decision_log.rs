//! The decision log: one JSON line for each decision that somebody may have to explain later.
//!
//! Denials, errors and denials that monitor mode let pass are all logged, allowed requests by sampling. A line has what a
//! request was about and what was decided, never the object itself: objects may be Secrets. Writing never delays a
//! decision: lines wait in a bounded queue, and those beyond it, or beyond [`LINES_PER_SECOND`], are counted instead.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use assent_wasm::LogText;
use serde::{Serialize, Serializer};

use crate::{
    config::DecisionLogConfig,
    evaluation::Decision,
    metrics::{DropLabels, Metrics},
};

mod writer;

use writer::Writer;

/// Writes decisions. All front ends of an evaluator share one; clones are cheap.
#[derive(Clone)]
pub(crate) struct DecisionLog(Arc<Shared>);

/// What a request was about. Its serialised fields become fields of the line.
pub(crate) trait Subject: Serialize {
    /// The kind of the object, for metrics.
    fn kind(&self) -> String;
    /// The namespace, for metrics; empty if there is none.
    fn namespace(&self) -> &str;
}

struct Shared {
    writer: Option<Writer>,
    /// One of so many allowed requests is logged; 0 is none.
    allows: u64,
    allowed: AtomicU64,
    rate: Mutex<Bucket>,
    metrics: Metrics,
}

/// A bucket of lines that fills with time.
struct Bucket {
    lines: f64,
    filled: Instant,
}

/// What was decided.
pub(crate) struct Entry<'a> {
    pub(crate) outcome: Outcome,
    /// The policy that decided and its revision; empty if none did.
    pub(crate) policy: &'a str,
    pub(crate) revision: &'a str,
    /// Of the denial or the error.
    pub(crate) message: &'a str,
    pub(crate) code: Option<u16>,
    pub(crate) patch_bytes: usize,
    pub(crate) took: Duration,
}

/// The kinds of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allowed,
    Mutated,
    Denied,
    /// Denied in monitor mode, and let pass.
    Monitored,
    /// No verdict.
    Error,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a, S> {
    time: jiff::Timestamp,
    front_end: &'static str,
    verdict: &'static str,
    policy: &'a str,
    revision: &'a str,
    #[serde(serialize_with = "as_log_text")]
    message: &'a str,
    code: Option<u16>,
    patch_bytes: usize,
    duration_seconds: f64,
    #[serde(flatten)]
    subject: S,
}

/// A client that is denied all the time must not fill a disk, and nobody reads more lines. The rest is counted.
const LINES_PER_SECOND: f64 = 200.0;

/// A roll-out that is denied makes some hundred requests at once.
const BURST: f64 = 1000.0;

/// A queue is written in milliseconds; an output that hangs must not delay the shutdown.
const FLUSH: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

// === impl DecisionLog ===

impl DecisionLog {
    /// Opens the target and starts its writer.
    pub(crate) fn open(config: &DecisionLogConfig, metrics: Metrics) -> io::Result<Self> {
        let writer = Writer::start(&config.target, &metrics)?;
        Ok(Self::new(writer, config.allows, metrics))
    }

    fn new(writer: Option<Writer>, allows: u64, metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            writer,
            allows,
            allowed: AtomicU64::new(0),
            rate: Mutex::new(Bucket {
                lines: BURST,
                filled: Instant::now(),
            }),
            metrics,
        }))
    }

    /// Records a decision. `subject` is called only if it is needed: most requests are allowed and not logged.
    pub(crate) fn record<S: Subject>(
        &self,
        front_end: &'static str,
        entry: &Entry<'_>,
        subject: impl FnOnce() -> S,
    ) {
        let outcome = entry.outcome;
        let shared = &*self.0;
        if !outcome.is_trouble() && !shared.samples() {
            return;
        }
        let subject = subject();
        if outcome.is_trouble() {
            let denials = &shared.metrics.denials;
            denials.count(subject.kind(), subject.namespace(), outcome.name());
        }
        let Some(writer) = &shared.writer else {
            return;
        };
        if !shared.has_room(Instant::now()) {
            shared.metrics.dropped_decisions(DropLabels::RATE);
            return;
        }
        let line = Line::new(front_end, entry, subject);
        // Numbers, strings and names always serialise.
        if let Ok(line) = serde_json::to_vec(&line) {
            writer.write(line);
        }
    }

    /// Waits until what was recorded is written, but not for an output that hangs.
    pub(crate) async fn flush(&self) {
        let Some(writer) = &self.0.writer else {
            return;
        };
        let give_up = Instant::now() + FLUSH;
        while !writer.is_idle() && Instant::now() < give_up {
            tokio::time::sleep(POLL).await;
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Whether this allowed request is logged. Counted, not drawn: even a short test sees a sample.
    fn samples(&self) -> bool {
        self.writer.is_some()
            && self.allows > 0
            && self
                .allowed
                .fetch_add(1, Relaxed)
                .is_multiple_of(self.allows)
    }

    fn has_room(&self, now: Instant) -> bool {
        // A bucket is never left half updated.
        let mut bucket = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now)
    }
}

// === impl Bucket ===

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = now;
        self.lines = (self.lines + passed.as_secs_f64() * LINES_PER_SECOND).min(BURST);
        let has_room = self.lines >= 1.0;
        if has_room {
            self.lines -= 1.0;
        }
        has_room
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(decision: &Decision<'_>) -> Self {
        let verdict = &decision.verdict;
        match (&decision.monitored, &verdict.patch) {
            _ if decision.failed => Self::Error,
            _ if !verdict.allowed => Self::Denied,
            (Some(_), _) => Self::Monitored,
            (None, Some(_)) => Self::Mutated,
            (None, None) => Self::Allowed,
        }
    }

    fn is_trouble(self) -> bool {
        !matches!(self, Self::Allowed | Self::Mutated)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Mutated => "mutated",
            Self::Denied => "denied",
            Self::Monitored => "monitored",
            Self::Error => "error",
        }
    }
}

// === impl Entry ===

impl<'a> From<&'a Decision<'_>> for Entry<'a> {
    fn from(decision: &'a Decision<'_>) -> Self {
        let policy = &decision.policy.policy;
        let verdict = &decision.verdict;
        let message = decision.monitored.as_deref();
        Self {
            outcome: Outcome::of(decision),
            policy: policy.policy.as_str(),
            revision: policy.revision.as_str(),
            message: message.or(verdict.message.as_deref()).unwrap_or_default(),
            code: verdict.code,
            patch_bytes: verdict.patch.as_ref().map_or(0, Vec::len),
            took: decision.took,
        }
    }
}

// === impl Line ===

impl<'a, S> Line<'a, S> {
    fn new(front_end: &'static str, entry: &Entry<'a>, subject: S) -> Self {
        Self {
            time: jiff::Timestamp::now(),
            front_end,
            verdict: entry.outcome.name(),
            policy: entry.policy,
            revision: entry.revision,
            message: entry.message,
            code: entry.code,
            patch_bytes: entry.patch_bytes,
            duration_seconds: rounded(entry.took),
            subject,
        }
    }
}

/// Microseconds are exact enough.
fn rounded(took: Duration) -> f64 {
    Duration::from_micros(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)).as_secs_f64()
}

/// Text of policies and clients: cut, and without control characters.
pub(crate) fn as_log_text<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&LogText(text))
}

#[cfg(test)]
mod tests;
