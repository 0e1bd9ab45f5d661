//! The policies that decide about a request together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::OwnedSemaphorePermit;

use super::{LoadedPolicy, concurrency::Refusal, shared::PolicyState};

/// The policies of a route, in the order in which they are asked; at least one.
pub(crate) struct Route {
    policies: Vec<Arc<LoadedPolicy>>,
    /// What the policies share with their other revisions, each policy once. All routes have the same order, so
    /// that requests on two routes with the same policies never wait for each other's limits.
    shared: Vec<Arc<PolicyState>>,
}

/// The right to run every policy of a route.
pub(super) struct Turn {
    _first: OwnedSemaphorePermit,
    /// Empty, and not allocated, for a route with one policy.
    _others: Vec<OwnedSemaphorePermit>,
}

// === impl Route ===

impl Route {
    /// None without policies: nothing could decide.
    pub(crate) fn new(policies: Vec<Arc<LoadedPolicy>>) -> Option<Self> {
        if policies.is_empty() {
            return None;
        }
        let mut shared: Vec<_> = policies.iter().map(|one| one.shared().clone()).collect();
        shared.sort_by_key(Arc::as_ptr);
        shared.dedup_by_key(|one| Arc::as_ptr(one));
        Some(Self { policies, shared })
    }

    pub(crate) fn policies(&self) -> &[Arc<LoadedPolicy>] {
        &self.policies
    }

    /// How long a request may wait before it is evaluated, if its client waits for `timeout` in total.
    pub(crate) fn patience(&self, timeout: Duration) -> Duration {
        let limits = self.policies.iter().map(|one| one.policy.content.limits);
        let evaluation: u64 = limits.map(|limits| u64::from(limits.timeout_ms)).sum();
        // Most evaluations take far less than their limit: a policy whose limit is the client's timeout may be
        // waited for too.
        timeout
            .saturating_sub(Duration::from_millis(evaluation))
            .max(timeout / 4)
    }

    /// Whether all policies can be relied on to be quick, and none waits for anything.
    pub(super) fn is_quick(&self) -> bool {
        self.policies.iter().all(|one| one.is_quick())
    }

    /// Waits until every policy may run.
    pub(super) async fn acquire(&self, start_by: Instant) -> Result<Turn, Refusal> {
        let (first, others) = self
            .shared
            .split_first()
            .expect("a route must have a policy");
        let first = first.limit.acquire(start_by).await?;
        let mut permits = Vec::new();
        for one in others {
            permits.push(one.limit.acquire(start_by).await?);
        }
        Ok(Turn {
            _first: first,
            _others: permits,
        })
    }
}
