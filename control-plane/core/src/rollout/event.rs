//! What a rollout is told, and what it asks for.

use std::{sync::Arc, time::Duration};

use super::Timing;
use crate::{
    condition::Reason,
    policy::{Policy, PolicyKey, RevisionId},
};

/// Identifies one policy object. A policy that is deleted and created again has another uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// The name of the policy.
    pub key: PolicyKey,
    /// The uid of the object.
    pub uid: Arc<str>,
}

/// Whether the newest generation was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// It is being vetted.
    Pending,
    /// It became a revision.
    Accepted,
    /// It is not distributed.
    Refused(Refusal),
}

/// Why a generation is not distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason of the `Accepted` condition.
    pub reason: RefusalReason,
    /// What is wrong, where, and what to do about it.
    pub message: String,
}

/// Reasons for a refusal. docs/status.md explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum RefusalReason {
    Invalid,
    PullError,
    SignatureRejected,
    TargetNotFound,
    NotAllowed,
    QuotaExceeded,
    Conflicted,
    ContextAbsent,
    ContextForbidden,
    ContextTooLarge,
    ContextUnavailable,
    SettingsUnavailable,
}

/// Something that happened to a policy.
#[derive(Clone, Debug)]
pub enum Input {
    /// Its object was read.
    Observed {
        /// The generation of the object.
        generation: i64,
        /// The durations that its spec asks for.
        timing: Timing,
    },
    /// A generation is not distributed.
    Refused {
        /// The generation.
        generation: i64,
        /// The reason.
        refusal: Refusal,
    },
    /// The reason for which the newest generation was refused may no longer apply.
    Reconsidered,
    /// A generation became a revision, which is stored as a candidate.
    Ready(Arc<Policy>),
    /// The webhook names this revision.
    Flipped(RevisionId),
    /// The webhook could not be changed. The flip is decided again.
    FlipFailed,
    /// There was no response, so that the webhook may have been changed or not. The flip is
    /// decided again.
    FlipUnknown,
    /// The revision is stored as history.
    Retired(RevisionId),
    /// The revision cannot be stored as history, because a route names it.
    StillRouted(RevisionId),
    /// A replica reported a request on a retired path.
    Request(RevisionId),
    /// The object is being deleted.
    Deleted,
    /// The webhook was removed.
    WebhookRemoved,
}

/// What a rollout asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Point the webhook at this revision, if it still names `from`.
    Flip {
        /// The revision that the webhook must name now.
        from: Option<RevisionId>,
        /// The revision to point it at.
        to: Arc<Policy>,
    },
    /// Store the revision as history.
    Retire(RevisionId),
    /// Remove the webhook.
    RemoveWebhook,
    /// The policy has drained: its object may be deleted.
    Release,
    /// The newest generation is enforced, this long after it was first seen.
    Enforced(Duration),
}

// === impl RefusalReason ===

impl RefusalReason {
    /// The reason of the `Accepted` condition.
    pub fn as_str(self) -> &'static str {
        Reason::from(self).as_str()
    }

    /// Whether the policy itself is fine, and its namespace may not have it.
    pub fn is_permission(self) -> bool {
        matches!(
            self,
            RefusalReason::NotAllowed | RefusalReason::QuotaExceeded
        )
    }

    /// Whether the policy itself is fine, and objects that it reads are not available.
    pub fn is_context(self) -> bool {
        matches!(
            self,
            RefusalReason::ContextAbsent
                | RefusalReason::ContextForbidden
                | RefusalReason::ContextTooLarge
        )
    }

    /// Whether an active revision of the refused generation is still what the user wants. A
    /// second manifest of the same name does not affect the first one, a permission that was
    /// withdrawn ends no protection, and neither does a kind that is gone: evaluators report
    /// errors instead of empty lists, and the policy's `failurePolicy` decides.
    pub fn spares_active(self) -> bool {
        self == RefusalReason::Conflicted || self.is_permission() || self.is_context()
    }
}
