//! Whether a namespace may have a policy. The controller decides the same again: an answer here
//! is for the person who writes the policy.

use assent_api::{
    Parsed,
    parse::{self, Manifest},
    tenancy,
};

use super::{
    AdmissionView,
    review::{Operation, Request},
    validate::{is_terminating, is_untouched},
};

/// Why the namespace of the policy in `request` may not have it. `max` is how many policies a
/// namespace may have.
pub fn refusal(
    request: &Request,
    known: &AdmissionView,
    max: Option<usize>,
    options: &assent_api::Options,
) -> Option<String> {
    let written = matches!(request.operation, Operation::Create | Operation::Update);
    let ignored = !request.sub_resource.is_empty() || is_terminating(&request.object);
    if !written || ignored || is_untouched(request) {
        return None;
    }
    let Ok(Manifest::Policy(policy)) = parse::manifest(&request.object, options) else {
        return None;
    };
    let namespace = policy.key.namespace()?;
    server(&policy, namespace, known).or_else(|| {
        let count = known.policies.get(namespace).copied().unwrap_or_default();
        // A policy that exists keeps its place.
        let max = max.filter(|max| request.operation == Operation::Create && count >= *max)?;
        Some(tenancy::quota_exceeded(namespace, max))
    })
}

fn server(policy: &Parsed, namespace: &str, known: &AdmissionView) -> Option<String> {
    let server = known.servers.get(&policy.server)?;
    let labels = known.namespaces.get(namespace);
    let allowed = match &server.policies_from {
        Some(allowed) => allowed.contains(namespace, labels),
        None => tenancy::allows_policies(&policy.server, None, namespace, labels),
    };
    (!allowed).then(|| tenancy::not_allowed(&policy.server, namespace))
}

#[cfg(test)]
mod tests;
