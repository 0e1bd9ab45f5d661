//! One loaded revision of a policy.

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

use super::{PolicyStates, concurrency::ConcurrencyLimit, shared::PolicyState};
use crate::metrics::PolicyMetrics;

/// A revision, its sandbox and its health.
pub(crate) struct LoadedPolicy {
    pub(crate) policy: Arc<Policy>,
    sandbox: Arc<assent_wasm::Policy>,
    shared: Arc<PolicyState>,
    metrics: PolicyMetrics,
    health: AtomicU8,
    events: mpsc::Sender<HealthEvent>,
}

/// A change in the health of a revision that the control plane should know of.
#[derive(Debug)]
pub(crate) enum HealthEvent {
    Failed { revision: RevisionId, why: String },
    Recovered { revision: RevisionId },
}

/// No verdict yet; at least one; only failures.
const FRESH: u8 = 0;
const PROVEN: u8 = 1;
const FAILING: u8 = 2;

/// Every reason that an evaluation error may have: the label values of the series to remove with a policy.
pub(super) const REASONS: &[&str] = &[
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
    "context",
    "internal",
];

// === impl LoadedPolicy ===

impl LoadedPolicy {
    pub(crate) fn new(
        policy: Arc<Policy>,
        sandbox: Arc<assent_wasm::Policy>,
        states: &PolicyStates,
        events: mpsc::Sender<HealthEvent>,
    ) -> Self {
        Self {
            shared: states.get(policy.policy.as_str(), policy.content.limits.memory_bytes),
            metrics: states.metrics().of(&policy),
            policy,
            sandbox,
            health: AtomicU8::new(FRESH),
            events,
        }
    }

    /// Evaluates a request; blocks for at most the policy's deadline. On a thread that has other work to do,
    /// `on_slow` is called if the evaluation takes longer than some milliseconds.
    pub(super) fn evaluate(
        &self,
        review: &Review<'_>,
        on_slow: Option<fn()>,
    ) -> Result<Verdict, EvalError> {
        let result = match on_slow {
            Some(on_slow) => self.sandbox.evaluate_in_place(review, on_slow),
            None => self.sandbox.evaluate(review),
        };
        match &result {
            Ok(_) => self.succeeded(),
            Err(error) => {
                self.metrics.error(error.reason());
                if concerns_policy(error) {
                    self.failed(error);
                }
            }
        }
        result
    }

    /// Whether an evaluation will hardly take longer than reading its request did. A host call that waits for
    /// something outside of the process may take any time.
    pub(super) fn is_quick(&self) -> bool {
        !self.sandbox.waits() && self.limit().is_quick()
    }

    pub(super) fn limit(&self) -> &ConcurrencyLimit {
        &self.shared.limit
    }

    pub(super) fn shared(&self) -> &Arc<PolicyState> {
        &self.shared
    }

    pub(super) fn metrics(&self) -> &PolicyMetrics {
        &self.metrics
    }

    fn succeeded(&self) {
        if self.health.load(Acquire) != PROVEN && self.health.swap(PROVEN, AcqRel) == FAILING {
            let revision = self.policy.revision.clone();
            self.report(HealthEvent::Recovered { revision });
        }
    }

    /// A failure before the first verdict is reported to the control plane; later ones are errors of their
    /// requests alone.
    fn failed(&self, error: &EvalError) {
        let first = self
            .health
            .compare_exchange(FRESH, FAILING, AcqRel, Acquire);
        if first.is_ok() {
            self.report(HealthEvent::Failed {
                revision: self.policy.revision.clone(),
                why: error.to_string(),
            });
        }
    }

    /// A full channel loses the event, never the request.
    fn report(&self, event: HealthEvent) {
        if let Err(error) = self.events.try_send(event) {
            tracing::warn!(%error, "failed to report the health of a revision");
        }
    }
}

/// A guest that reports that it can't evaluate a request is not broken, and an overloaded host says nothing about
/// the policy.
fn concerns_policy(error: &EvalError) -> bool {
    !matches!(
        error,
        EvalError::Guest(_)
            | EvalError::Exit { .. }
            | EvalError::Rego(_)
            | EvalError::Overloaded
            | EvalError::Context(_)
    )
}
