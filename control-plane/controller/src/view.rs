//! Times, and statuses as objects carry them.

use assent_api::{
    PolicyStatus,
    status::{ActiveRevision, PendingRevision, ReplicaRow, RolloutCounts},
};
use assent_core::{Millis, condition, status};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The time of a decision, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic; decisions depend on it.
    pub at: Millis,
    /// The date, for readers.
    pub date: Timestamp,
}

/// What is known of the active revision besides its name.
#[derive(Clone, Debug, Default)]
pub struct ActiveFacts {
    /// When the route was pointed at it.
    pub since: Option<Timestamp>,
    /// Digest of its module.
    pub digest: Option<String>,
}

// === impl Now ===

impl Now {
    /// The date in whole seconds, as Kubernetes writes times.
    pub fn seconds(&self) -> Timestamp {
        seconds(self.date.as_second())
    }
}

/// A status with its times, as an object carries it.
pub fn to_status(
    status: &status::PolicyStatus,
    since: [i64; 4],
    active: ActiveFacts,
) -> PolicyStatus {
    let generation = status.observed_generation;
    let conditions = status.conditions.iter().zip(since);
    let conditions = conditions.map(|(c, s)| to_condition(c, generation, seconds(s)));
    PolicyStatus {
        observed_generation: Some(generation),
        active: status.active.as_ref().map(|a| ActiveRevision {
            generation: a.generation,
            revision: a.revision.short().to_owned(),
            since: active.since.map(Time),
            digest: active.digest,
        }),
        pending: status.pending.as_ref().map(|p| PendingRevision {
            generation: p.generation,
            revision: Some(p.revision.short().to_owned()),
        }),
        rollout: Some(RolloutCounts {
            desired: count(status.fold.wanted),
            applied: count(status.fold.applied),
            rejected: count(status.fold.rejected),
            behind: count(status.fold.behind),
            disconnected: count(status.fold.disconnected),
        }),
        replicas: status
            .replicas
            .iter()
            .map(|r| to_row(r, generation, seconds(since[1])))
            .collect(),
        replicas_omitted: count(status.replicas_omitted),
        conditions: conditions.collect(),
    }
}

fn to_row(row: &status::ReplicaStatus, generation: i64, since: Timestamp) -> ReplicaRow {
    ReplicaRow {
        name: row.name.to_string(),
        generation: row.generation,
        conditions: vec![to_condition(&row.ready, generation, since)],
    }
}

/// A condition with its time.
pub fn to_condition(
    condition: &condition::Condition,
    generation: i64,
    since: Timestamp,
) -> Condition {
    Condition {
        type_: condition.kind.as_str().to_owned(),
        status: condition.status.as_str().to_owned(),
        reason: condition.reason.as_str().to_owned(),
        message: condition.message.clone(),
        observed_generation: Some(generation),
        last_transition_time: Time(since),
    }
}

fn seconds(at: i64) -> Timestamp {
    Timestamp::from_second(at).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn count(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
