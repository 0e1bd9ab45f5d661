//! Vetting jobs that run, and those to retry.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use assent_core::{
    Millis,
    rollout::{PolicyId, Refusal, RefusalReason},
};
use tracing::warn;

use crate::action::Failure;

#[cfg(test)]
mod tests;

/// The delay before the first retry; doubled each time up to the longest. A registry that is
/// down for a minute costs few requests, and a module that is pushed later is found in minutes.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// How often a module that brings down its vetting process is vetted: once may have been the
/// machine's fault, twice is the module's.
const MAX_VET_TRIES: u32 = 2;

/// At most one job per policy, for its newest generation.
#[derive(Debug, Default)]
pub struct Jobs {
    running: HashMap<PolicyId, i64>,
    retries: HashMap<PolicyId, Retry>,
    /// Retries in the order in which they are due.
    queue: BTreeMap<Millis, BTreeSet<PolicyId>>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Millis,
    wait: Duration,
    generation: i64,
    tries: u32,
}

// === impl Jobs ===

impl Jobs {
    /// Whether this generation is being vetted.
    pub fn is_running(&self, id: &PolicyId, generation: i64) -> bool {
        self.running.get(id) == Some(&generation)
    }

    /// Records a job, which replaces whatever ran for the policy.
    pub fn begin(&mut self, id: PolicyId, generation: i64) {
        // A retry that is due has become this job; its history counts the tries.
        if let Some(at) = self.retries.get(&id).map(|r| r.at) {
            self.dequeue(at, &id);
        }
        self.running.insert(id, generation);
    }

    /// Forgets whatever runs or waits for the policy; true if a job was running.
    pub fn cancel(&mut self, id: &PolicyId) -> bool {
        self.forget_retry(id);
        self.running.remove(id).is_some()
    }

    /// A job ended; the end of an older generation's job says nothing about the newer one.
    pub fn ended(&mut self, id: &PolicyId, generation: i64) {
        if self.is_running(id, generation) {
            self.running.remove(id);
        }
    }

    /// Policies whose retry is due; each is returned once.
    pub fn take_due(&mut self, now: Millis) -> Vec<PolicyId> {
        let later = self.queue.split_off(&Millis(now.0.saturating_add(1)));
        let due = std::mem::replace(&mut self.queue, later);
        due.into_values().flatten().collect()
    }

    /// When the next retry is due.
    pub fn next_retry(&self) -> Option<Millis> {
        self.queue.first_key_value().map(|(at, _)| *at)
    }

    /// A generation was accepted.
    pub fn accepted(&mut self, id: &PolicyId) {
        self.forget_retry(id);
    }

    /// A generation was rejected: returns what to tell the user, and schedules a retry if one
    /// may help. A missing signature is retried like a failed pull: signing later is the remedy.
    pub fn rejected(
        &mut self,
        now: Millis,
        id: &PolicyId,
        generation: i64,
        failure: Failure,
    ) -> Refusal {
        let Failure {
            mut refusal,
            retryable,
        } = failure;
        let before = self.retries.get(id).copied();
        self.forget_retry(id);
        let before = before.filter(|r| r.generation == generation);
        let tries = before.map_or(1, |r| r.tries + 1);
        let retry = match refusal.reason {
            // The remedy is elsewhere: a signature, or the value of a Secret.
            RefusalReason::SignatureRejected | RefusalReason::SettingsUnavailable => true,
            RefusalReason::PullError => retryable,
            // Objects are deleted, and permissions granted, without a change of the policy.
            reason if reason.is_context() => retryable,
            _ => retryable && tries < MAX_VET_TRIES,
        };
        if retry {
            let wait = before.map_or(FIRST_RETRY, |r| (r.wait * 2).min(LONGEST_RETRY));
            let retry = Retry {
                at: now + wait,
                wait,
                generation,
                tries,
            };
            self.retries.insert(id.clone(), retry);
            self.queue.entry(retry.at).or_default().insert(id.clone());
            refusal.message.push_str("; retrying");
        }
        warn!(policy = %id.key, generation, reason = refusal.reason.as_str(), "rejected: {}", refusal.message);
        refusal
    }

    fn forget_retry(&mut self, id: &PolicyId) {
        if let Some(retry) = self.retries.remove(id) {
            self.dequeue(retry.at, id);
        }
    }

    fn dequeue(&mut self, at: Millis, id: &PolicyId) {
        if let Some(ids) = self.queue.get_mut(&at) {
            ids.remove(id);
            if ids.is_empty() {
                self.queue.remove(&at);
            }
        }
    }
}
