//! What a policy gets from its PolicyServer.

use assent_api::{Parsed, ParsedServer};
use assent_core::{
    policy::Limits,
    rollout::{Refusal, RefusalReason},
};

pub(crate) fn target_not_found(server: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::TargetNotFound,
        message: format!(
            "spec.policyServer: there is no PolicyServer {server:?}; create it, or name another one"
        ),
    }
}

pub(crate) fn target_invalid(server: &str, why: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::TargetNotFound,
        message: format!("spec.policyServer: the PolicyServer {server:?} is invalid: {why}"),
    }
}

pub(crate) fn limits(server: Option<&ParsedServer>, policy: &Parsed) -> Limits {
    policy.limits(server.map_or_else(Limits::default, |s| s.limits))
}

/// Host capabilities that a namespaced policy is restricted to.
pub(crate) fn allowed_capabilities(
    server: Option<&ParsedServer>,
    policy: &Parsed,
) -> Option<Vec<String>> {
    policy.key.namespace()?;
    let allowed = server.map(|s| s.spec.namespaced_policies_capabilities.clone());
    Some(allowed.unwrap_or_default())
}

/// Public keys that modules must be signed with.
pub(crate) fn verification(server: Option<&ParsedServer>) -> Vec<String> {
    let asked = server.and_then(|s| s.spec.verification.as_ref());
    asked.map(|v| v.public_keys.clone()).unwrap_or_default()
}
