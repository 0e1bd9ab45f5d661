//! The status of a policy: conditions, counters and replicas, derived from its rollout and
//! the fold of its fleet.

use std::{collections::BTreeMap, sync::Arc};

pub use crate::condition::{Condition, ConditionStatus, ConditionType, Reason};
use crate::{
    fleet::{Fleet, Fold, LoadState, Name},
    policy::{Policy, RevisionId},
    rollout::{Acceptance, Candidate, Rollout},
    session::Stage,
};

#[cfg(test)]
mod tests;

/// The most replicas that a status lists: it must stay small with a thousand replicas.
pub const MAX_ROWS: usize = 16;

const SERVED_EVERYWHERE: &str = "every required replica serves this generation";

const NO_REPLICAS: &str = "no replica of the policy server is connected or expected; start one, or check the server's name";

/// The status of one policy, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// The newest generation that the control plane has seen.
    pub observed_generation: i64,
    /// The revision that the webhook calls.
    pub active: Option<RevisionRef>,
    /// The revision that is being rolled out.
    pub pending: Option<RevisionRef>,
    /// The fold of the candidate, or of the active revision if there is no candidate, or of the last good one.
    pub fold: Fold,
    /// Replicas, those that lack the revision first.
    pub replicas: Vec<ReplicaStatus>,
    /// The number of replicas that are not listed.
    pub replicas_omitted: u32,
    /// The conditions in the order of [`ConditionType::ALL`].
    pub conditions: [Condition; 4],
}

/// One revision, by generation and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionRef {
    /// The policy's generation.
    pub generation: i64,
    /// The revision.
    pub revision: RevisionId,
}

/// The state of one policy on one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica's name.
    pub name: Name,
    /// The generation of this policy that the replica serves, if any.
    pub generation: Option<i64>,
    /// Whether the replica serves the newest revision.
    pub ready: Condition,
}

/// Remembers when conditions last changed their status.
#[derive(Clone, Debug, Default)]
pub struct Transitions(BTreeMap<ConditionType, (ConditionStatus, i64)>);

/// Everything that the conditions of one policy depend on. Folds are computed once: each
/// costs the number of versions in use.
struct Facts<'a> {
    rollout: &'a Rollout,
    fleet: &'a Fleet,
    starting_up: bool,
    active: Option<(&'a Arc<Policy>, Fold)>,
    candidate: Option<(&'a Candidate, Fold)>,
}

// === impl PolicyStatus ===

impl PolicyStatus {
    /// Computes the status of a policy on its fleet. While the control plane is
    /// `starting_up`, replicas have not had the time to reconnect, so that their absence
    /// does not count against the active revision.
    pub fn of(rollout: &Rollout, fleet: &Fleet, starting_up: bool) -> Self {
        let facts = Facts::new(rollout, fleet, starting_up);
        let active = rollout.active();
        let candidate = rollout.candidate().map(|c| &c.policy);
        let shown = candidate.or(active).or(rollout.last_good());
        let folds = facts.candidate.map(|(_, fold)| fold);
        let fold = folds.or(facts.active.map(|(_, fold)| fold));
        let last_good = || rollout.last_good().map(|p| fleet.fold(&p.revision));
        let fold = fold.or_else(last_good).unwrap_or_default();
        let states = shown.map(|p| fleet.load_states(&p.revision, MAX_ROWS));
        let row = |(name, state)| replica_status(fleet, active, candidate, name, &state);
        let replicas: Vec<ReplicaStatus> =
            states.unwrap_or_default().into_iter().map(row).collect();
        let listed = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
        Self {
            observed_generation: rollout.generation(),
            active: active.map(RevisionRef::of),
            pending: candidate.map(RevisionRef::of),
            fold,
            replicas_omitted: fold.wanted.saturating_sub(listed),
            replicas,
            conditions: facts.conditions(),
        }
    }

    /// One of the four conditions.
    pub fn condition(&self, kind: ConditionType) -> &Condition {
        let [accepted, programmed, enforced, ready] = &self.conditions;
        match kind {
            ConditionType::Accepted => accepted,
            ConditionType::Programmed => programmed,
            ConditionType::Enforced => enforced,
            ConditionType::Ready => ready,
        }
    }
}

// === impl RevisionRef ===

impl RevisionRef {
    fn of(policy: &Arc<Policy>) -> Self {
        Self {
            generation: policy.generation,
            revision: policy.revision.clone(),
        }
    }
}

// === impl Transitions ===

impl Transitions {
    /// Records a condition at `now`; returns when its status last changed.
    pub fn note(&mut self, now: i64, condition: &Condition) -> i64 {
        let entry = self
            .0
            .entry(condition.kind)
            .or_insert((condition.status, now));
        if entry.0 != condition.status {
            *entry = (condition.status, now);
        }
        entry.1
    }

    /// Takes over a stored time.
    pub fn restore(&mut self, kind: ConditionType, status: ConditionStatus, since: i64) {
        self.0.insert(kind, (status, since));
    }
}

// === impl Facts ===

impl<'a> Facts<'a> {
    fn new(rollout: &'a Rollout, fleet: &'a Fleet, starting_up: bool) -> Self {
        let active = rollout.active();
        let candidate = rollout.candidate();
        Self {
            rollout,
            fleet,
            starting_up,
            active: active.map(|p| (p, fleet.fold(&p.revision))),
            candidate: candidate.map(|c| (c, fleet.fold(&c.policy.revision))),
        }
    }

    fn conditions(&self) -> [Condition; 4] {
        [
            self.accepted(),
            self.programmed(),
            self.enforced(),
            self.ready(),
        ]
    }

    /// Whether the newest generation was refused. A manifest that cannot be parsed makes no
    /// generation, so that the active revision may have the newest number without being what
    /// the user wants. Some reasons stand against what is still to come only: what is active
    /// stays in use.
    fn is_refused(&self) -> bool {
        matches!(self.rollout.acceptance(), Acceptance::Refused(r) if !r.reason.spares_active())
    }

    /// The active revision, if it is of the newest generation.
    fn current(&self) -> Option<(&Arc<Policy>, Fold)> {
        self.active
            .filter(|(p, _)| p.generation == self.rollout.generation() && !self.is_refused())
    }

    /// The candidate, if it is of the newest generation.
    fn newest_candidate(&self) -> Option<(&Candidate, Fold)> {
        self.candidate.filter(|(c, _)| {
            c.policy.generation == self.rollout.generation() && !self.rollout.is_held()
        })
    }

    /// Whether nobody serves a revision with this fold, and nobody is about to reconnect. Replicas that are known
    /// by their pods are counted before they reconnect.
    fn is_deserted(&self, fold: &Fold) -> bool {
        fold.wanted == 0 && !(self.starting_up && self.fleet.counts_unknown())
    }

    fn accepted(&self) -> Condition {
        let condition =
            |status, reason, text| Condition::new(ConditionType::Accepted, status, reason, text);
        match self.rollout.acceptance() {
            Acceptance::Pending => condition(
                ConditionStatus::Unknown,
                Reason::Pending,
                "the module is being fetched and checked",
            ),
            Acceptance::Accepted => condition(
                ConditionStatus::True,
                Reason::Accepted,
                "module and settings were checked and can be loaded",
            ),
            Acceptance::Refused(refusal) => condition(
                ConditionStatus::False,
                refusal.reason.into(),
                &refusal.message,
            ),
        }
    }

    fn programmed(&self) -> Condition {
        let condition = |status, reason, text: String| {
            Condition::new(ConditionType::Programmed, status, reason, text)
        };
        let is_false = |reason, text| condition(ConditionStatus::False, reason, text);
        let served = || {
            condition(
                ConditionStatus::True,
                Reason::Programmed,
                SERVED_EVERYWHERE.into(),
            )
        };
        if let Some((active, fold)) = self.current() {
            return match fold {
                fold if self.is_deserted(&fold) => is_false(Reason::NoReplicas, NO_REPLICAS.into()),
                Fold { rejected: 1.., .. } => is_false(Reason::Rejected, self.cause(active)),
                Fold { degraded: true, .. } => is_false(Reason::Reconciling, self.cause(active)),
                _ => served(),
            };
        }
        let Some((candidate, fold)) = self.newest_candidate() else {
            let text = match self.rollout.acceptance() {
                Acceptance::Refused(_) => "this generation was not accepted and is not distributed",
                _ => "this generation is not a revision yet",
            };
            return condition(ConditionStatus::Unknown, Reason::Pending, text.into());
        };
        let cause = || self.cause(&candidate.policy);
        match fold {
            Fold { complete: true, .. } => served(),
            Fold { wanted: 0, .. } => is_false(Reason::NoReplicas, NO_REPLICAS.into()),
            _ if candidate.stalled => is_false(
                Reason::Stalled,
                format!(
                    "not applied everywhere within the progress deadline: {}",
                    cause()
                ),
            ),
            Fold { rejected: 1.., .. } => is_false(Reason::Rejected, cause()),
            _ => is_false(Reason::Reconciling, cause()),
        }
    }

    fn enforced(&self) -> Condition {
        let condition = |status, reason, text: String| {
            Condition::new(ConditionType::Enforced, status, reason, text)
        };
        let is_false = |reason, text| condition(ConditionStatus::False, reason, text);
        if let Some((active, fold)) = self.current() {
            return match fold {
                fold if self.is_deserted(&fold) => {
                    is_false(Reason::NotProgrammed, NO_REPLICAS.into())
                }
                Fold { degraded: true, .. } => {
                    is_false(Reason::PartiallyEnforced, self.cause(active))
                }
                _ => condition(
                    ConditionStatus::True,
                    Reason::Enforced,
                    self.words().0.into(),
                ),
            };
        }
        match (self.newest_candidate(), self.rollout.acceptance()) {
            (Some((_, Fold { complete: true, .. })), _) => is_false(
                Reason::WebhookPending,
                format!("{SERVED_EVERYWHERE}; {}", self.words().1),
            ),
            (None, Acceptance::Pending) => condition(
                ConditionStatus::Unknown,
                Reason::Pending,
                "this generation is being checked".into(),
            ),
            (_, _) => is_false(
                Reason::NotProgrammed,
                "this generation is not applied everywhere".into(),
            ),
        }
    }

    /// What makes a generation enforced, and what is happening until then. A policy at Envoy has no webhook.
    fn words(&self) -> (&'static str, &'static str) {
        match self.rollout.id().key.is_for_requests() {
            true => (
                "requests are decided by this generation",
                "its route is being changed",
            ),
            false => (
                "the webhook points at this generation",
                "the webhook is being changed",
            ),
        }
    }

    fn ready(&self) -> Condition {
        let condition =
            |status, reason, text: &str| Condition::new(ConditionType::Ready, status, reason, text);
        let not_served = |text| condition(ConditionStatus::False, Reason::NotServed, text);
        let Some((active, fold)) = self.active else {
            return match self.rollout.acceptance() {
                Acceptance::Pending => condition(
                    ConditionStatus::Unknown,
                    Reason::Pending,
                    "no revision is enforced yet",
                ),
                _ => not_served("no revision is enforced"),
            };
        };
        match fold {
            fold if self.is_deserted(&fold) => not_served("no replica serves the active revision"),
            Fold { degraded: true, .. } => {
                not_served("a replica does not serve the active revision")
            }
            _ if active.generation == self.rollout.generation() && !self.is_refused() => condition(
                ConditionStatus::True,
                Reason::Current,
                "the newest generation is enforced",
            ),
            _ => condition(
                ConditionStatus::True,
                Reason::LastGood,
                "an earlier generation is enforced",
            ),
        }
    }

    /// The first replica that lacks the revision, and its error.
    fn cause(&self, policy: &Policy) -> String {
        match self.fleet.load_states(&policy.revision, 1).pop() {
            None | Some((_, LoadState::Applied)) => "waiting for replicas".into(),
            Some((name, state)) => format!("{name}: {}", message(&state)),
        }
    }
}

fn replica_status(
    fleet: &Fleet,
    active: Option<&Arc<Policy>>,
    candidate: Option<&Arc<Policy>>,
    name: Name,
    state: &LoadState,
) -> ReplicaStatus {
    let served = candidate.into_iter().chain(active);
    let mut served = served.filter(|p| fleet.serves(&name, &p.revision));
    let status = match state {
        LoadState::Applied => ConditionStatus::True,
        LoadState::Disconnected => ConditionStatus::Unknown,
        _ => ConditionStatus::False,
    };
    let (reason, message) = (reason(state), message(state));
    ReplicaStatus {
        generation: served.next().map(|p| p.generation),
        ready: Condition::new(ConditionType::Ready, status, reason, message),
        name,
    }
}

fn reason(state: &LoadState) -> Reason {
    match state {
        LoadState::Applied => Reason::Applied,
        LoadState::Behind => Reason::Behind,
        LoadState::Disconnected => Reason::Disconnected,
        LoadState::Refused(_) => Reason::SnapshotRefused,
        LoadState::Rejected(rejection) => match rejection.stage {
            Stage::Unspecified => Reason::Rejected,
            Stage::Fetch => Reason::FetchFailed,
            Stage::Verify => Reason::VerificationFailed,
            Stage::Compile => Reason::CompileFailed,
            Stage::Link => Reason::LinkFailed,
            Stage::Instantiate => Reason::InstantiationFailed,
            Stage::Settings => Reason::SettingsRejected,
            Stage::SelfTest => Reason::SelfTestFailed,
            Stage::Swap => Reason::SwapFailed,
            Stage::Runtime => Reason::RuntimeFailed,
            Stage::Context => Reason::ContextNotSynced,
        },
    }
}

fn message(state: &LoadState) -> String {
    match state {
        LoadState::Applied => "serves the revision".into(),
        LoadState::Behind => "has not answered for the revision yet".into(),
        LoadState::Disconnected => "is not connected".into(),
        LoadState::Refused(refused) => {
            format!("refused the whole snapshot: {}", refused.failure.message)
        }
        LoadState::Rejected(rejection) => rejection.failure.message.clone(),
    }
}
