//! Vetting jobs that run, and those that are to be tried again.

use std::{collections::HashMap, time::Duration};

use assent_core::rollout::{PolicyId, Refusal, RefusalReason};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use crate::vetting::Failed;

/// How long to wait before a module that could not be fetched is fetched again; doubled
/// each time up to the longest.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(300);

/// How often a module that brings down its vetting process is vetted.
const MAX_VET_TRIES: u32 = 2;

/// At most one job per policy, for its newest generation.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    running: HashMap<PolicyId, (i64, DropGuard)>,
    retries: HashMap<PolicyId, Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    wait: Duration,
    generation: i64,
    tries: u32,
}

// === impl Jobs ===

impl Jobs {
    /// Whether this generation is being vetted.
    pub(crate) fn is_running(&self, id: &PolicyId, generation: i64) -> bool {
        self.running.get(id).is_some_and(|(g, _)| *g == generation)
    }

    /// Notes a job in the place of whatever ran for the policy, which is cancelled. The token
    /// cancels this one.
    pub(crate) fn begin(&mut self, id: PolicyId, generation: i64) -> CancellationToken {
        let token = CancellationToken::new();
        let guard = token.clone().drop_guard();
        self.running.insert(id, (generation, guard));
        token
    }

    /// Ends whatever runs or waits for the policy.
    pub(crate) fn cancel(&mut self, id: &PolicyId) {
        self.running.remove(id);
        self.retries.remove(id);
    }

    /// A job has an outcome; one of an older generation says nothing of the newer's.
    pub(crate) fn ended(&mut self, id: &PolicyId, generation: i64) {
        if self.is_running(id, generation) {
            self.running.remove(id);
        }
    }

    /// Policies whose next try is due.
    pub(crate) fn due(&self) -> Vec<PolicyId> {
        let now = Instant::now();
        let due = self.waiting().filter(|(_, retry)| retry.at <= now);
        due.map(|(id, _)| id.clone()).collect()
    }

    /// When the next try is due.
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        self.waiting().map(|(_, retry)| retry.at).min()
    }

    /// A generation passed.
    pub(crate) fn accepted(&mut self, id: &PolicyId) {
        self.retries.remove(id);
    }

    /// A generation did not pass: says what to tell the user, and notes another try where
    /// that may help.
    pub(crate) fn refused(&mut self, id: &PolicyId, generation: i64, failed: Failed) -> Refusal {
        let Failed {
            mut refusal,
            retryable,
        } = failed;
        let before = self
            .retries
            .remove(id)
            .filter(|r| r.generation == generation);
        let tries = before.map_or(1, |r| r.tries + 1);
        let for_ever = refusal.reason == RefusalReason::PullError;
        if retryable && (for_ever || tries < MAX_VET_TRIES) {
            let wait = before.map_or(RETRY_FIRST, |r| (r.wait * 2).min(RETRY_LONGEST));
            let retry = Retry {
                at: Instant::now() + wait,
                wait,
                generation,
                tries,
            };
            self.retries.insert(id.clone(), retry);
            refusal.message.push_str("; it is tried again");
        }
        warn!(policy = %id.key, generation, reason = refusal.reason.as_str(), "refused: {}", refusal.message);
        refusal
    }

    fn waiting(&self) -> impl Iterator<Item = (&PolicyId, &Retry)> {
        let idle = |(id, _): &(&PolicyId, &Retry)| !self.running.contains_key(*id);
        self.retries.iter().filter(idle)
    }
}
