//! Policies that must see other objects of the cluster, which evaluators do not have.

use assent_core::{
    policy::ContextResource,
    rollout::{Refusal, RefusalReason},
};

/// Refuses a policy that would be evaluated without the objects that it must see: Rego finds no violation in an empty
/// inventory and would allow everything. `why` is a clause that says how that is known.
pub fn context_unavailable(field: &str, why: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::ContextUnavailable,
        message: format!(
            "{field}: {why}, but Kubernetes objects are not replicated to evaluators; use a policy that looks at the \
             request alone"
        ),
    }
}

/// Refuses a policy for the kinds that its spec declares.
pub(crate) fn declared_context(kinds: &[ContextResource]) -> Refusal {
    let kinds = kinds.iter();
    let kinds: Vec<_> = kinds
        .map(|one| format!("{} ({})", one.kind, one.api_version))
        .collect();
    let why = format!("the policy reads {}", kinds.join(", "));
    context_unavailable("spec.contextAwareResources", &why)
}
