//! Queries of client status and their pages, in core types.

use std::time::SystemTime;

use assent_core::{
    Millis, Version,
    fleet::{Fleet, Fold, Name, Replica, ReplicaState},
};

#[cfg(test)]
mod tests;

/// A query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The PolicyServer.
    pub server: String,
    /// Only this policy.
    pub policy: Option<String>,
    /// Only this replica.
    pub replica: Option<String>,
    /// Only replicas in these states; empty is all.
    pub states: Vec<ReplicaState>,
    /// The most replicas of one page.
    pub limit: usize,
    /// Only replicas whose names come after this: the page token.
    pub after: Option<String>,
}

/// One page of the answer.
#[derive(Clone, Debug)]
pub struct Page {
    /// The published version; `None` before the first one.
    pub version: Option<Version>,
    /// Replicas in the order of their names.
    pub replicas: Vec<ReplicaRow>,
    /// Policies; on the first page only.
    pub policies: Vec<PolicyRow>,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
    /// The time of the page on the core's clock.
    pub now: Millis,
    /// The same time of day.
    pub at: SystemTime,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct ReplicaRow {
    /// Its name.
    pub name: Name,
    /// Its state in the fleet.
    pub replica: Replica,
    /// What it has done with the published version.
    pub state: ReplicaState,
}

/// One policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyRow {
    /// Its key.
    pub policy: String,
    /// The revision that the webhook points at.
    pub active: Option<String>,
    /// The revision that is being rolled out.
    pub candidate: Option<String>,
    /// The fold of the candidate, or of the active revision if there is no candidate.
    pub fold: Fold,
    /// The conditions of the policy's status.
    pub conditions: Vec<ConditionRow>,
}

/// One condition, as in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRow {
    /// The type, for example `Accepted`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason in CamelCase.
    pub reason: String,
    /// The message for readers.
    pub message: String,
    /// The generation that the condition describes.
    pub observed_generation: i64,
    /// When `status` changed last.
    pub transition: Option<SystemTime>,
}

// === impl Query ===

impl Query {
    /// The replicas of this page, and the token of the next one. It visits every replica of the
    /// fleet, and copies only those of the page.
    pub fn select(&self, fleet: &Fleet, current: Version) -> (Vec<ReplicaRow>, Option<String>) {
        let wanted = |name: &Name, state: ReplicaState| {
            self.after.as_deref().is_none_or(|after| &**name > after)
                && self
                    .replica
                    .as_deref()
                    .is_none_or(|replica| &**name == replica)
                && (self.states.is_empty() || self.states.contains(&state))
        };
        let rows = fleet
            .replicas()
            .map(|(name, r)| (name, r, r.state(current)));
        let mut rows = rows.filter(|(name, _, state)| wanted(name, *state));
        let page: Vec<ReplicaRow> = rows
            .by_ref()
            .take(self.limit)
            .map(|(name, replica, state)| ReplicaRow {
                name: name.clone(),
                replica: replica.clone(),
                state,
            })
            .collect();
        let more = rows.next().is_some();
        let next = page.last().filter(|_| more).map(|row| row.name.to_string());
        (page, next)
    }

    /// Whether the query asks for this policy.
    pub fn wants_policy(&self, policy: &str) -> bool {
        self.after.is_none() && self.policy.as_deref().is_none_or(|wanted| wanted == policy)
    }
}
