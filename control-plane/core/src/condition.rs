//! Conditions and their reasons: one vocabulary for status, events and documentation.
//!
//! [`REASONS`] lists every combination of condition, status and reason that Assent writes,
//! with its meaning and what a user can do about it. `docs/status.md` holds the same table;
//! a test compares the two.

use std::fmt;

use crate::rollout::RefusalReason;

mod reasons;
#[cfg(test)]
mod tests;

pub use reasons::REASONS;

/// One condition, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The condition's type.
    pub kind: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// The machine-readable cause.
    pub reason: Reason,
    /// The cause in a sentence. It contains no counters, so that it changes only with the
    /// cause.
    pub message: String,
}

/// Types of conditions. A replica has only `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum ConditionType {
    Accepted,
    Programmed,
    Enforced,
    Ready,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Reasons of all conditions. [`REASONS`] explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Reason {
    Accepted,
    Applied,
    ApplyFailed,
    Behind,
    CompileFailed,
    Conflicted,
    ContextAbsent,
    ContextForbidden,
    ContextTooLarge,
    ContextUnavailable,
    Current,
    Disconnected,
    Enforced,
    FetchFailed,
    InstantiationFailed,
    Invalid,
    LastGood,
    LinkFailed,
    NoReplicas,
    NotAllowed,
    NotProgrammed,
    NotServed,
    PartiallyEnforced,
    Pending,
    Programmed,
    Progressing,
    PullError,
    QuotaExceeded,
    Ready,
    Reconciling,
    Rejected,
    RuntimeFailed,
    ContextNotSynced,
    SelfTestFailed,
    SettingsRejected,
    SettingsUnavailable,
    SignatureRejected,
    SnapshotRefused,
    Stalled,
    SwapFailed,
    TargetNotFound,
    Uninstalled,
    VerificationFailed,
    WebhookPending,
}

/// One row of [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentedReason {
    /// The object that has the condition.
    pub object: ConditionedObject,
    /// The condition's type.
    pub kind: ConditionType,
    /// The condition's status with this reason.
    pub status: ConditionStatus,
    /// The reason.
    pub reason: Reason,
    /// When the condition has this reason.
    pub when: &'static str,
    /// What a user can do; empty if nothing is wrong.
    pub remedy: &'static str,
}

/// Objects and rows that have conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionedObject {
    /// `status.conditions` of an AdmissionPolicy or ClusterAdmissionPolicy.
    Policy,
    /// `status.replicas[].conditions` of a policy.
    PolicyReplica,
    /// `status.conditions` of a PolicyServer.
    PolicyServer,
    /// `status.evaluators[].conditions` of a PolicyServer.
    Evaluator,
}

// === impl Condition ===

impl Condition {
    /// Puts a condition together. Its combination of type, status and reason must be in
    /// [`REASONS`].
    pub fn new(
        kind: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        debug_assert!(
            REASONS
                .iter()
                .any(|row| (row.kind, row.status, row.reason) == (kind, status, reason)),
            "{kind}={status} with reason {reason} must be documented"
        );
        Self {
            kind,
            status,
            reason,
            message: message.into(),
        }
    }
}

// === impl ConditionType ===

impl ConditionType {
    /// The conditions of a policy, in the order of its status.
    pub const ALL: [ConditionType; 4] = [
        ConditionType::Accepted,
        ConditionType::Programmed,
        ConditionType::Enforced,
        ConditionType::Ready,
    ];

    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionType::Accepted => "Accepted",
            ConditionType::Programmed => "Programmed",
            ConditionType::Enforced => "Enforced",
            ConditionType::Ready => "Ready",
        }
    }

    /// Reads the name in the API.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }

    /// Reads the value in the API.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "True" => Some(ConditionStatus::True),
            "False" => Some(ConditionStatus::False),
            "Unknown" => Some(ConditionStatus::Unknown),
            _ => None,
        }
    }
}

impl fmt::Display for ConditionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Reason ===

impl Reason {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Accepted => "Accepted",
            Reason::Applied => "Applied",
            Reason::ApplyFailed => "ApplyFailed",
            Reason::Behind => "Behind",
            Reason::CompileFailed => "CompileFailed",
            Reason::Conflicted => "Conflicted",
            Reason::ContextAbsent => "ContextAbsent",
            Reason::ContextForbidden => "ContextForbidden",
            Reason::ContextTooLarge => "ContextTooLarge",
            Reason::ContextUnavailable => "ContextUnavailable",
            Reason::Current => "Current",
            Reason::Disconnected => "Disconnected",
            Reason::Enforced => "Enforced",
            Reason::FetchFailed => "FetchFailed",
            Reason::InstantiationFailed => "InstantiationFailed",
            Reason::Invalid => "Invalid",
            Reason::LastGood => "LastGood",
            Reason::LinkFailed => "LinkFailed",
            Reason::NoReplicas => "NoReplicas",
            Reason::NotAllowed => "NotAllowed",
            Reason::NotProgrammed => "NotProgrammed",
            Reason::NotServed => "NotServed",
            Reason::PartiallyEnforced => "PartiallyEnforced",
            Reason::Pending => "Pending",
            Reason::Programmed => "Programmed",
            Reason::Progressing => "Progressing",
            Reason::PullError => "PullError",
            Reason::QuotaExceeded => "QuotaExceeded",
            Reason::Ready => "Ready",
            Reason::Reconciling => "Reconciling",
            Reason::Rejected => "Rejected",
            Reason::RuntimeFailed => "RuntimeFailed",
            Reason::ContextNotSynced => "ContextNotSynced",
            Reason::SelfTestFailed => "SelfTestFailed",
            Reason::SettingsRejected => "SettingsRejected",
            Reason::SettingsUnavailable => "SettingsUnavailable",
            Reason::SignatureRejected => "SignatureRejected",
            Reason::SnapshotRefused => "SnapshotRefused",
            Reason::Stalled => "Stalled",
            Reason::SwapFailed => "SwapFailed",
            Reason::TargetNotFound => "TargetNotFound",
            Reason::Uninstalled => "Uninstalled",
            Reason::VerificationFailed => "VerificationFailed",
            Reason::WebhookPending => "WebhookPending",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<RefusalReason> for Reason {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::Invalid => Reason::Invalid,
            RefusalReason::PullError => Reason::PullError,
            RefusalReason::SignatureRejected => Reason::SignatureRejected,
            RefusalReason::TargetNotFound => Reason::TargetNotFound,
            RefusalReason::NotAllowed => Reason::NotAllowed,
            RefusalReason::QuotaExceeded => Reason::QuotaExceeded,
            RefusalReason::Conflicted => Reason::Conflicted,
            RefusalReason::ContextAbsent => Reason::ContextAbsent,
            RefusalReason::ContextForbidden => Reason::ContextForbidden,
            RefusalReason::ContextTooLarge => Reason::ContextTooLarge,
            RefusalReason::ContextUnavailable => Reason::ContextUnavailable,
            RefusalReason::SettingsUnavailable => Reason::SettingsUnavailable,
        }
    }
}
