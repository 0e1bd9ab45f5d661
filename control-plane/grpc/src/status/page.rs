//! Questions about the state and their answers, in core types.

use std::time::SystemTime;

use assent_core::{
    Millis, Version,
    fleet::{Fleet, Fold, Name, Replica, ReplicaState},
};

#[cfg(test)]
mod tests;

/// What somebody wants to know.
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
    /// Replicas on one page.
    pub limit: usize,
    /// Only replicas whose names come after this: the page token.
    pub after: Option<String>,
}

/// One page of the answer.
#[derive(Clone, Debug)]
pub struct Page {
    /// What is published; none where nothing is yet.
    pub version: Option<Version>,
    /// Replicas in the order of their names.
    pub replicas: Vec<ReplicaRow>,
    /// Policies; on the first page only.
    pub policies: Vec<PolicyRow>,
    /// Token of the next page, where there is one.
    pub next: Option<String>,
    /// The core's clock when the answer was made…
    pub now: Millis,
    /// …and everyone else's.
    pub at: SystemTime,
}

/// One replica.
#[derive(Clone, Debug)]
pub struct ReplicaRow {
    /// Its name.
    pub name: Name,
    /// What it has and said.
    pub replica: Replica,
    /// What that amounts to.
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
    /// Of the candidate, or of the active revision where there is none.
    pub fold: Fold,
    /// As in the policy's status.
    pub conditions: Vec<ConditionRow>,
}

/// One condition, as in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRow {
    /// `Accepted`, say.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The generation that it is about.
    pub observed_generation: i64,
    /// When `status` changed last.
    pub transition: Option<SystemTime>,
}

// === impl Query ===

impl Query {
    /// The replicas of this page, and the token of the next one. Costs one walk over the
    /// fleet's names; only what is shown is copied.
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

    /// Whether the answer has this policy in it.
    pub fn wants_policy(&self, policy: &str) -> bool {
        self.after.is_none() && self.policy.as_deref().is_none_or(|wanted| wanted == policy)
    }
}
