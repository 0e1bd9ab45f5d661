//! What is said of a policy: conditions, counters and rows, as true as the fold is.

use std::collections::BTreeMap;

use crate::{
    fleet::{Fleet, Fold, Name, Standing},
    policy::{Policy, RevisionId},
    rollout::{Acceptance, Candidate, RefusalReason, Rollout},
    session::Stage,
};

#[cfg(test)]
mod tests;

/// Rows that a status holds at most: it must stay small with a thousand replicas.
pub const MAX_ROWS: usize = 16;

/// The status of one policy, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// The newest generation that was looked at.
    pub observed_generation: i64,
    /// What protects the user now.
    pub active: Option<Pointer>,
    /// What is on its way.
    pub pending: Option<Pointer>,
    /// Of the candidate, or of the active revision where there is none.
    pub fold: Fold,
    /// Replicas, those that lack the revision first.
    pub rows: Vec<Row>,
    /// Replicas without a row.
    pub omitted: u32,
    /// In the order Accepted, Programmed, Enforced, Ready.
    pub conditions: [Condition; 4],
}

/// One revision, by generation and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The policy's generation.
    pub generation: i64,
    /// The revision.
    pub revision: RevisionId,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: Name,
    /// The generation of this policy that it serves, if any.
    pub generation: Option<i64>,
    /// Whether it serves what it should.
    pub ready: Condition,
}

/// One condition, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// Whether it holds.
    pub status: Truth,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, as a sentence; it never counts anything.
    pub message: String,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Truth {
    True,
    False,
    Unknown,
}

/// Remembers since when conditions are what they are.
#[derive(Clone, Debug, Default)]
pub struct Transitions(BTreeMap<&'static str, (Truth, i64)>);

// === impl PolicyStatus ===

impl PolicyStatus {
    /// Computes the status of a policy on its fleet.
    /// `settling` says that the control plane started lately: without replicas yet, what
    /// was active stays as it was.
    pub fn of(rollout: &Rollout, fleet: &Fleet, settling: bool) -> Self {
        let active = rollout.active();
        let candidate = rollout.candidate().map(|c| &c.policy);
        let shown = candidate.or(active);
        let fold = shown.map(|p| fleet.fold(&p.revision)).unwrap_or_default();
        let standings = shown.map(|p| fleet.standings(&p.revision, MAX_ROWS));
        let row = |(name, standing)| row(fleet, active, candidate, name, standing);
        let rows: Vec<Row> = standings.unwrap_or_default().into_iter().map(row).collect();
        let listed = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        Self {
            observed_generation: rollout.generation(),
            active: active.map(Pointer::to),
            pending: candidate.map(Pointer::to),
            fold,
            omitted: fold.wanted.saturating_sub(listed),
            rows,
            conditions: conditions(rollout, fleet, settling),
        }
    }

    /// One of the four conditions.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

// === impl Pointer ===

impl Pointer {
    fn to(policy: &std::sync::Arc<Policy>) -> Self {
        Self {
            generation: policy.generation,
            revision: policy.revision.clone(),
        }
    }
}

// === impl Condition ===

impl Condition {
    fn new(
        kind: &'static str,
        status: Truth,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status,
            reason,
            message: message.into(),
        }
    }
}

// === impl Truth ===

impl Truth {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

// === impl Transitions ===

impl Transitions {
    /// Notes the conditions at `now`; returns since when `kind` is what it is.
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
    pub fn restore(&mut self, kind: &'static str, status: Truth, since: i64) {
        self.0.insert(kind, (status, since));
    }
}

fn conditions(rollout: &Rollout, fleet: &Fleet, settling: bool) -> [Condition; 4] {
    let generation = rollout.generation();
    // An edit that could not even be read makes no generation: what is active is then not
    // what the user wants, although the number is the same.
    // A second manifest of the same name changes nothing about the first, which is used.
    let refused = matches!(rollout.acceptance(), Acceptance::Refused(r) if r.reason != RefusalReason::Conflicted);
    let current = rollout
        .active()
        .filter(|p| p.generation == generation && !refused);
    let candidate = rollout
        .candidate()
        .filter(|c| c.policy.generation == generation);
    [
        accepted(rollout),
        programmed(rollout, fleet, settling, current, candidate),
        enforced(rollout, fleet, settling, current, candidate),
        ready(rollout, fleet, settling),
    ]
}

fn accepted(rollout: &Rollout) -> Condition {
    let (status, reason, message) = match rollout.acceptance() {
        Acceptance::Pending => (
            Truth::Unknown,
            "Pending",
            "the module is being fetched and checked",
        ),
        Acceptance::Accepted => (
            Truth::True,
            "Accepted",
            "module and settings were checked and can be loaded",
        ),
        Acceptance::Refused(refusal) => {
            let reason = refusal.reason.as_str();
            return Condition::new("Accepted", Truth::False, reason, &refusal.message);
        }
    };
    Condition::new("Accepted", status, reason, message)
}

fn programmed(
    rollout: &Rollout,
    fleet: &Fleet,
    settling: bool,
    current: Option<&std::sync::Arc<Policy>>,
    candidate: Option<&Candidate>,
) -> Condition {
    let say =
        |status, reason, message: String| Condition::new("Programmed", status, reason, message);
    if let Some(active) = current {
        let fold = fleet.fold(&active.revision);
        return match fold {
            Fold { wanted: 0, .. } if !settling => say(Truth::False, "NoReplicas", no_replicas()),
            Fold { rejected: 1.., .. } => {
                say(Truth::False, "Rejected", why(fleet, &active.revision))
            }
            Fold { lacking: true, .. } => {
                say(Truth::False, "Reconciling", why(fleet, &active.revision))
            }
            _ => say(
                Truth::True,
                "Programmed",
                "every required replica serves this generation".into(),
            ),
        };
    }
    let Some(candidate) = candidate else {
        let message = match rollout.acceptance() {
            Acceptance::Refused(_) => "this generation was not accepted and is not distributed",
            _ => "this generation is not a revision yet",
        };
        return say(Truth::Unknown, "Pending", message.into());
    };
    let revision = &candidate.policy.revision;
    match fleet.fold(revision) {
        Fold { complete: true, .. } => say(
            Truth::True,
            "Programmed",
            "every required replica serves this generation".into(),
        ),
        Fold { wanted: 0, .. } => say(Truth::False, "NoReplicas", no_replicas()),
        _ if candidate.stalled => say(
            Truth::False,
            "Stalled",
            format!(
                "not applied everywhere within the progress deadline: {}",
                why(fleet, revision)
            ),
        ),
        Fold { rejected: 1.., .. } => say(Truth::False, "Rejected", why(fleet, revision)),
        _ => say(Truth::False, "Reconciling", why(fleet, revision)),
    }
}

fn enforced(
    rollout: &Rollout,
    fleet: &Fleet,
    settling: bool,
    current: Option<&std::sync::Arc<Policy>>,
    candidate: Option<&Candidate>,
) -> Condition {
    let say = |status, reason, message: String| Condition::new("Enforced", status, reason, message);
    if let Some(active) = current {
        return match fleet.fold(&active.revision) {
            Fold { wanted: 0, .. } if !settling => {
                say(Truth::False, "NotProgrammed", no_replicas())
            }
            Fold { lacking: true, .. } => say(
                Truth::False,
                "PartiallyEnforced",
                why(fleet, &active.revision),
            ),
            _ => say(
                Truth::True,
                "Enforced",
                "the webhook points at this generation".into(),
            ),
        };
    }
    match (candidate, rollout.acceptance()) {
        (Some(c), _) if fleet.fold(&c.policy.revision).complete => say(
            Truth::False,
            "WebhookPending",
            "every required replica serves this generation; the webhook is being changed".into(),
        ),
        (None, Acceptance::Pending) => say(
            Truth::Unknown,
            "Pending",
            "this generation is being checked".into(),
        ),
        (_, _) => say(
            Truth::False,
            "NotProgrammed",
            "this generation is not applied everywhere".into(),
        ),
    }
}

fn ready(rollout: &Rollout, fleet: &Fleet, settling: bool) -> Condition {
    let say = |status, reason, message: &str| Condition::new("Ready", status, reason, message);
    let Some(active) = rollout.active() else {
        return match rollout.acceptance() {
            Acceptance::Pending => say(Truth::Unknown, "Pending", "no revision is enforced yet"),
            _ => say(Truth::False, "NotServed", "no revision is enforced"),
        };
    };
    let fold = fleet.fold(&active.revision);
    match fold {
        Fold { wanted: 0, .. } if !settling => say(
            Truth::False,
            "NotServed",
            "no replica serves the active revision",
        ),
        Fold { lacking: true, .. } => say(
            Truth::False,
            "NotServed",
            "a replica does not serve the active revision",
        ),
        _ if active.generation == rollout.generation()
            && !matches!(rollout.acceptance(), Acceptance::Refused(r) if r.reason != RefusalReason::Conflicted) =>
        {
            say(Truth::True, "Current", "the newest generation is enforced")
        }
        _ => say(Truth::True, "LastGood", "an earlier generation is enforced"),
    }
}

fn no_replicas() -> String {
    "no replica of the policy server is connected or expected; start one, or check the server's name".into()
}

/// The first replica that lacks the revision, and why.
fn why(fleet: &Fleet, revision: &RevisionId) -> String {
    match fleet.standings(revision, 1).pop() {
        None | Some((_, Standing::Applied)) => "waiting for replicas".into(),
        Some((name, standing)) => format!("{name}: {}", explain(&standing)),
    }
}

fn row(
    fleet: &Fleet,
    active: Option<&std::sync::Arc<Policy>>,
    candidate: Option<&std::sync::Arc<Policy>>,
    name: Name,
    standing: Standing,
) -> Row {
    let served = candidate.into_iter().chain(active);
    let mut served = served.filter(|p| fleet.serves(&name, &p.revision));
    let status = match standing {
        Standing::Applied => Truth::True,
        Standing::Disconnected => Truth::Unknown,
        _ => Truth::False,
    };
    Row {
        generation: served.next().map(|p| p.generation),
        ready: Condition::new("Ready", status, reason(&standing), explain(&standing)),
        name,
    }
}

fn reason(standing: &Standing) -> &'static str {
    match standing {
        Standing::Applied => "Applied",
        Standing::Behind => "Behind",
        Standing::Disconnected => "Disconnected",
        Standing::Refused(_) => "SnapshotRefused",
        Standing::Rejected(rejection) => match rejection.stage {
            Stage::Unspecified => "Rejected",
            Stage::Fetch => "FetchFailed",
            Stage::Verify => "VerificationFailed",
            Stage::Compile => "CompileFailed",
            Stage::Link => "LinkFailed",
            Stage::Instantiate => "InstantiationFailed",
            Stage::Settings => "SettingsRejected",
            Stage::SelfTest => "SelfTestFailed",
            Stage::Swap => "SwapFailed",
            Stage::Runtime => "RuntimeFailed",
        },
    }
}

fn explain(standing: &Standing) -> String {
    match standing {
        Standing::Applied => "serves the revision".into(),
        Standing::Behind => "has not answered for the revision yet".into(),
        Standing::Disconnected => "is not connected".into(),
        Standing::Refused(refused) => {
            format!("refused the whole snapshot: {}", refused.failure.message)
        }
        Standing::Rejected(rejection) => rejection.failure.message.clone(),
    }
}
