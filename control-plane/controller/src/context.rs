//! Policies that must see other objects of the cluster and do not declare them.

use assent_core::rollout::{Refusal, RefusalReason};

/// Refuses a policy that would be evaluated without the objects that it must see: Rego finds no violation in an empty
/// inventory and would allow everything. `why` is a clause that says how that is known.
pub fn context_unavailable(why: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::ContextUnavailable,
        message: format!(
            "spec.contextAwareResources: {why}, and the policy declares no kind; declare the kinds that it reads"
        ),
    }
}
