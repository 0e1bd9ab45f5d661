//! What a policy gets from its PolicyServer.

use assent_api::{Parsed, ParsedServer, server::PolicyServerSpec};
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

/// The host calls that a policy's server grants. A built-in server grants what an empty spec does.
pub(crate) fn granted_capabilities(server: Option<&ParsedServer>, policy: &Parsed) -> Vec<String> {
    let default = PolicyServerSpec::default();
    let spec = server.map_or(&default, |s| &s.spec);
    match policy.key.namespace() {
        None => spec.host_capabilities.clone(),
        Some(_) => without_access_reviews(&spec.namespaced_policies_capabilities),
    }
}

/// Wildcards as the calls that they mean for a namespaced policy. `kubernetes/can_i` must be granted by its name: it
/// tells who may do what anywhere in the cluster.
fn without_access_reviews(granted: &[String]) -> Vec<String> {
    let mut calls = Vec::new();
    for pattern in granted {
        let meant: &[&str] = match pattern.as_str() {
            "*" => &NAMESPACED,
            "kubernetes/*" => &NAMESPACED[..KUBERNETES],
            other => &[other],
        };
        calls.extend(meant.iter().map(|&call| call.to_owned()));
    }
    calls
}

/// What `*` means for a namespaced policy. The first [`KUBERNETES`] are what `kubernetes/*` means.
const NAMESPACED: [&str; 6] = [
    "kubernetes/get_resource",
    "kubernetes/list_resources_all",
    "kubernetes/list_resources_by_namespace",
    "crypto/*",
    "net/*",
    "oci/*",
];
const KUBERNETES: usize = 3;

/// Public keys that modules must be signed with.
pub(crate) fn verification(server: Option<&ParsedServer>) -> Vec<String> {
    let asked = server.and_then(|s| s.spec.verification.as_ref());
    asked.map(|v| v.public_keys.clone()).unwrap_or_default()
}
