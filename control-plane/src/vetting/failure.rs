//! Why a generation can not be used.

use assent_controller::Failure;
use assent_core::rollout::{Refusal, RefusalReason};
use assent_modules::{
    attempts,
    vet::{Refused, Stage, VetRequest},
};

/// The user has to change something.
pub(crate) fn invalid(message: String) -> Failure {
    failure(RefusalReason::Invalid, message, false)
}

/// A failure that is not the module's fault.
pub(crate) fn later(message: String) -> Failure {
    failure(RefusalReason::PullError, message, true)
}

/// A process that died or was too slow may have been the machine's fault: it is tried
/// again before the module is refused for good.
///
/// Settings that come from Secrets may become valid without an edit of the policy.
pub(super) fn vetted(refused: Refused, request: &VetRequest) -> Failure {
    if request.confidential && matches!(refused.stage, Stage::Settings | Stage::SelfTest) {
        return settings(refused.message);
    }
    let retryable = matches!(refused.stage, Stage::Crashed | Stage::TimedOut);
    failure(RefusalReason::Invalid, refused.message, retryable)
}

/// A module that is missing may be pushed later; content that is not a module stays so.
pub(super) fn pulling(error: assent_oci::Error) -> Failure {
    let reason = match &error {
        assent_oci::Error::NotWasm { .. } | assent_oci::Error::TooLarge { .. } => {
            RefusalReason::Invalid
        }
        assent_oci::Error::SignatureRejected { .. } => RefusalReason::SignatureRejected,
        _ => RefusalReason::PullError,
    };
    let retryable = reason == RefusalReason::PullError;
    failure(reason, error.to_string(), retryable)
}

/// A module that would evaluate requests without the objects that it must see.
pub(super) fn no_context(why: &str) -> Failure {
    Failure {
        refusal: assent_controller::context_unavailable(why),
        retryable: false,
    }
}

/// What was pulled is not what is needed.
pub(super) fn pull(message: String) -> Failure {
    failure(RefusalReason::PullError, message, false)
}

/// A Secret that settings come from cannot be read or used.
pub(super) fn settings(message: String) -> Failure {
    failure(RefusalReason::SettingsUnavailable, message, true)
}

/// The module must not be tried.
pub(super) fn attempting(error: attempts::Error) -> Failure {
    match error {
        attempts::Error::Refused { .. } => invalid(error.to_string()),
        attempts::Error::Io { .. } => later(error.to_string()),
    }
}

fn failure(reason: RefusalReason, message: String, retryable: bool) -> Failure {
    Failure {
        refusal: Refusal { reason, message },
        retryable,
    }
}
