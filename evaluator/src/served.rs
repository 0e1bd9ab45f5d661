//! One loaded revision, ready to judge.

use std::sync::{
    Arc,
    atomic::{
        AtomicU8,
        Ordering::{AcqRel, Acquire},
    },
};

use assent_core::{Policy, RevisionId};
use assent_wasm::{EvalError, Review, Verdict};
use tokio::sync::mpsc;

use crate::{gate::Gate, metrics::PolicyMetrics};

/// A revision with its sandbox and what is known of its health.
pub(crate) struct Served {
    pub(crate) policy: Arc<Policy>,
    sandbox: Arc<assent_wasm::Policy>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) metrics: PolicyMetrics,
    health: AtomicU8,
    events: mpsc::Sender<HealthEvent>,
}

/// News about a revision's first reviews.
#[derive(Debug)]
pub(crate) enum HealthEvent {
    Failed { revision: RevisionId, why: String },
    Recovered { revision: RevisionId },
}

/// No verdict yet; at least one; none but failures.
const FRESH: u8 = 0;
const PROVEN: u8 = 1;
const FAILING: u8 = 2;

/// Every reason that an evaluation error may have, for forgetting its series.
pub(crate) const REASONS: &[&str] = &[
    "timeout",
    "memory",
    "table",
    "stack",
    "trap",
    "guest",
    "exit",
    "host_call_budget",
    "output_too_large",
    "bad_address",
    "bad_answer",
    "rego",
    "overloaded",
    "internal",
];

// === impl Served ===

impl Served {
    pub(crate) fn new(
        policy: Arc<Policy>,
        sandbox: Arc<assent_wasm::Policy>,
        gate: Arc<Gate>,
        metrics: PolicyMetrics,
        events: mpsc::Sender<HealthEvent>,
    ) -> Self {
        Self {
            policy,
            sandbox,
            gate,
            metrics,
            health: AtomicU8::new(FRESH),
            events,
        }
    }

    /// Judges a request; blocks for at most the policy's deadline. `long` is for threads that have other
    /// work to do.
    pub(crate) fn evaluate(
        &self,
        review: &Review<'_>,
        long: Option<fn()>,
    ) -> Result<Verdict, EvalError> {
        let result = match long {
            Some(long) => self.sandbox.evaluate_among_others(review, long),
            None => self.sandbox.evaluate(review),
        };
        match &result {
            Ok(_) => self.succeeded(),
            Err(error) => {
                self.metrics.error(error.reason());
                if tells_of_the_policy(error) {
                    self.failed(error);
                }
            }
        }
        result
    }

    fn succeeded(&self) {
        if self.health.load(Acquire) != PROVEN && self.health.swap(PROVEN, AcqRel) == FAILING {
            let revision = self.policy.revision.clone();
            self.tell(HealthEvent::Recovered { revision });
        }
    }

    /// A failure before the first verdict is news for the control plane; later ones are
    /// errors of their requests alone.
    fn failed(&self, error: &EvalError) {
        let first = self
            .health
            .compare_exchange(FRESH, FAILING, AcqRel, Acquire);
        if first.is_ok() {
            self.tell(HealthEvent::Failed {
                revision: self.policy.revision.clone(),
                why: error.to_string(),
            });
        }
    }

    /// A full channel loses news, never a request.
    fn tell(&self, event: HealthEvent) {
        if let Err(error) = self.events.try_send(event) {
            tracing::warn!(%error, "failed to report the health of a revision");
        }
    }
}

/// A guest that says in good order that it can't judge a request is not broken, and an
/// overloaded host says nothing about the policy.
fn tells_of_the_policy(error: &EvalError) -> bool {
    !matches!(
        error,
        EvalError::Guest(_) | EvalError::Exit { .. } | EvalError::Rego(_) | EvalError::Overloaded
    )
}
