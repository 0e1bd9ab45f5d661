//! One replica: what it says of itself, whether it is connected, and what it serves.

use std::sync::Arc;

use crate::{
    digest::Version,
    session::{AppliedSnapshot, Report},
    snapshot::Snapshot,
    time::Millis,
};

/// One replica.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    /// Its description of itself.
    pub node: Node,
    /// The identity in its credential.
    pub identity: String,
    /// Whether it is connected.
    pub connection: Connection,
    /// When its stream opened; `None` if it never connected to this process.
    pub connected_since: Option<Millis>,
    /// When its last message or health check arrived.
    pub last_seen: Option<Millis>,
    /// The last report of its stream.
    pub report: Report,
    /// The last set that it applied, on this stream or an earlier one of the same process.
    pub applied: Option<AppliedSnapshot>,
    /// The set that it had applied when its stream opened. A late NACK returns to it (R17).
    pub(super) before: Option<AppliedSnapshot>,
}

/// What evaluators can do that those of earlier versions cannot.
pub mod feature {
    /// It answers `/confirm/`: what a mutating policy would still change is a denial.
    pub const CONFIRM: &str = "confirm";
}

/// A replica's description of itself. Only its name, its instance and its features affect
/// decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The replica's name.
    pub id: String,
    /// The name of its PolicyServer.
    pub policy_server: String,
    /// A random value that the process chose when it started.
    pub instance_uid: String,
    /// The version of its build.
    pub evaluator_version: String,
    /// Fingerprint of its Wasm engine.
    pub engine: String,
    /// The module ABIs that it supports.
    pub abis: Vec<String>,
    /// The address at which it answers admission reviews.
    pub endpoint: String,
    /// What it can do that evaluators of earlier versions cannot.
    pub features: Vec<String>,
}

/// Whether a replica is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// It has an open stream.
    Open {
        /// The stream's number; a later stream of the same replica has a higher one.
        stream: u64,
    },
    /// It disconnected recently and counts with its last answer, or it is expected and has not
    /// connected yet.
    Grace {
        /// The end of the grace period.
        until: Millis,
    },
    /// It is expected, and its grace period has ended.
    #[default]
    Gone,
}

/// What a replica has done with the current version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// It serves the version completely.
    Current,
    /// It has not answered for the version yet.
    Behind,
    /// It refused the version, completely or in part.
    Rejected,
    /// It has no open stream.
    Disconnected,
}

// === impl Node ===

impl Node {
    /// Whether it has a feature.
    pub fn supports(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }
}

// === impl Replica ===

impl Replica {
    /// Whether no stream of it was ever seen.
    pub(super) fn never_connected(&self) -> bool {
        self.connected_since.is_none()
    }

    /// What the replica has applied after an answer. If it applied nothing, or took an
    /// acknowledgement back, that is what it had before its stream. If it had nothing then, it
    /// has answered and serves the empty set.
    pub(super) fn after(&self, report: &Report) -> AppliedSnapshot {
        let applied = report.applied.as_ref().or(self.before.as_ref());
        applied.cloned().unwrap_or_else(|| AppliedSnapshot {
            snapshot: Arc::new(Snapshot::empty()),
            rejected: Vec::new(),
        })
    }

    /// Whether a report, after which the replica has `applied`, changes where it is counted.
    pub(super) fn moves(&self, applied: Option<&AppliedSnapshot>, report: &Report) -> bool {
        let stays = match (&self.applied, applied) {
            (None, None) => true,
            (Some(old), Some(new)) => {
                Arc::ptr_eq(&old.snapshot, &new.snapshot)
                    && old.rejected.is_empty()
                    && new.rejected.is_empty()
            }
            _ => false,
        };
        !stays || self.report.refuses_whole() != report.refuses_whole()
    }

    /// The state of the replica with respect to the `current` version.
    pub fn state(&self, current: Version) -> ReplicaState {
        match self.connection {
            Connection::Grace { .. } | Connection::Gone => ReplicaState::Disconnected,
            Connection::Open { .. } if self.report.refused.is_some() => ReplicaState::Rejected,
            Connection::Open { .. } if self.report.acked == Some(current) => ReplicaState::Current,
            Connection::Open { .. } => ReplicaState::Behind,
        }
    }
}

// === impl ReplicaState ===

impl ReplicaState {
    /// Every state.
    pub const ALL: [ReplicaState; 4] = [
        ReplicaState::Current,
        ReplicaState::Behind,
        ReplicaState::Rejected,
        ReplicaState::Disconnected,
    ];

    /// The name in labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaState::Current => "current",
            ReplicaState::Behind => "behind",
            ReplicaState::Rejected => "rejected",
            ReplicaState::Disconnected => "disconnected",
        }
    }
}
