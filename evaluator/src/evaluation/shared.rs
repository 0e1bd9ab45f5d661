//! What the loaded revisions of one policy share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use assent_wasm::MemoryBudget;

use super::concurrency::ConcurrencyLimit;
use crate::metrics::Metrics;

/// Shared by the loaded revisions of one policy, so that a swap to a new revision frees no capacity that the old
/// one still uses. Ends with the last revision, and the policy's metric series with it: the cost of a removed
/// policy does not depend on how many others there are.
pub(crate) struct PolicyState {
    pub(super) limit: ConcurrencyLimit,
    policy: String,
    states: PolicyStates,
}

/// The states of all policies that have a loaded revision.
#[derive(Clone)]
pub(crate) struct PolicyStates(Arc<Inner>);

struct Inner {
    states: Mutex<HashMap<String, Weak<PolicyState>>>,
    metrics: Metrics,
    /// Concurrent evaluations of one policy.
    per_policy: usize,
    memory: MemoryBudget,
}

// === impl PolicyStates ===

impl PolicyStates {
    /// Each policy may have `per_policy` concurrent evaluations, so that a slow one leaves threads for others.
    /// `memory` is what all evaluations share, of which one policy may take half.
    pub(crate) fn new(metrics: Metrics, per_policy: usize, memory: MemoryBudget) -> Self {
        Self(Arc::new(Inner {
            states: Mutex::default(),
            metrics,
            per_policy,
            memory,
        }))
    }

    /// `memory_bytes` is the limit of the policy's guest.
    pub(super) fn get(&self, policy: &str, memory_bytes: u64) -> Arc<PolicyState> {
        let mut states = self.lock();
        if let Some(state) = states.get(policy).and_then(Weak::upgrade) {
            return state;
        }
        let state = Arc::new(PolicyState {
            limit: ConcurrencyLimit::new(self.at_once(memory_bytes)),
            policy: policy.to_owned(),
            states: self.clone(),
        });
        states.insert(policy.to_owned(), Arc::downgrade(&state));
        state
    }

    /// As many as fit into half of the memory if each uses all that its limit allows; at least one.
    fn at_once(&self, memory_bytes: u64) -> usize {
        let half = self.0.memory.available_to_evaluations() / 2;
        let fit = usize::try_from(half / memory_bytes.max(1)).unwrap_or(usize::MAX);
        fit.clamp(1, self.0.per_policy.max(1))
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<PolicyState>>> {
        let states = self.0.states.lock();
        states.expect("the lock of the policies' states must not be poisoned")
    }
}

// === impl PolicyState ===

impl Drop for PolicyState {
    fn drop(&mut self) {
        let mut states = self.states.lock();
        // A new revision of the policy may have been loaded since the count went to zero.
        let replaced = states
            .get(&self.policy)
            .is_some_and(|state| state.strong_count() > 0);
        if !replaced {
            states.remove(&self.policy);
            self.states
                .metrics()
                .forget(&self.policy, super::loaded::REASONS);
        }
    }
}
