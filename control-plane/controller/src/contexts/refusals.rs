//! Why a policy may not read what it declares: one message for each condition.

use assent_core::rollout::{Refusal, RefusalReason};

use super::{CollectionReport, KindRef};

const FIELD: &str = "spec.contextAwareResources";

/// The label that adds a ClusterRole's rules to what the control plane may read.
const AGGREGATION_LABEL: &str = "policies.assent.dev/aggregate-to-context: \"true\"";

/// There are no Kubernetes objects.
pub(crate) fn no_context(why: &str) -> Refusal {
    Refusal {
        reason: RefusalReason::ContextUnavailable,
        message: format!("{FIELD}: {why}"),
    }
}

/// The server grants namespaced policies no reading.
pub(crate) fn not_granted(server: &str) -> Refusal {
    forbidden(format!(
        "the PolicyServer {server:?} does not let policies of namespaces read Kubernetes objects; have \"kubernetes/*\" \
         added to its spec.namespacedPoliciesCapabilities, or write a ClusterAdmissionPolicy"
    ))
}

/// A namespaced policy declares a kind that no namespace has.
pub(crate) fn cluster_scoped(kind: &KindRef) -> Refusal {
    forbidden(format!(
        "{kind} is cluster-scoped, and an AdmissionPolicy reads objects of its own namespace only; remove it, or write \
         a ClusterAdmissionPolicy"
    ))
}

/// The server does not allow the kind.
pub(crate) fn kind_not_allowed(kind: &KindRef, server: &str) -> Refusal {
    forbidden(format!(
        "the PolicyServer {server:?} does not allow its policies to read {kind}; have it added to its \
         spec.context.allow"
    ))
}

/// The control plane may not read the kind.
pub(crate) fn kind_forbidden(kind: &KindRef, why: &str) -> Refusal {
    forbidden(format!(
        "the control plane may not read {kind}: {why}; create a ClusterRole with the verbs get, list and watch for it \
         and the label {AGGREGATION_LABEL}"
    ))
}

/// Reading failed, although permissions seem to be there.
pub(crate) fn not_readable(kind: &KindRef, why: &str) -> Refusal {
    forbidden(format!("the control plane cannot read {kind}: {why}"))
}

/// The API server does not serve the kind.
pub(crate) fn kind_absent(kind: &KindRef) -> Refusal {
    Refusal {
        reason: RefusalReason::ContextAbsent,
        message: format!(
            "{FIELD}: the API server does not serve {kind}; install its CustomResourceDefinition, or correct apiVersion \
             and kind"
        ),
    }
}

/// Namespaces are given for a kind that is in none.
pub(crate) fn namespaces_of_cluster_kind(kind: &KindRef) -> Refusal {
    Refusal {
        reason: RefusalReason::Invalid,
        message: format!("{FIELD}: {kind} is cluster-scoped; remove its `namespaces`"),
    }
}

/// The objects do not fit.
pub(crate) fn too_large(
    kind: &KindRef,
    report: &CollectionReport,
    server: &str,
    limit: u64,
    used: u64,
    given_up: bool,
) -> Refusal {
    let CollectionReport { objects, bytes, .. } = report;
    let largest = report.largest.iter();
    let largest: Vec<String> = largest
        .map(|(field, bytes)| format!("{field} ({})", size(*bytes)))
        .collect();
    let largest = match largest.is_empty() {
        true => String::new(),
        false => format!("; most of it is {}", largest.join(", ")),
    };
    let more = if given_up { " or more" } else { "" };
    Refusal {
        reason: RefusalReason::ContextTooLarge,
        message: format!(
            "{FIELD}: {objects} objects of {kind} take {}{more}, and the evaluators of the PolicyServer {server:?} have {} \
             left of {} (spec.context.memoryLimit){largest}; declare the `fields` that the policy reads, its \
             `namespaces` or a `labelSelector`, or have the limit raised",
            size(*bytes),
            size(limit.saturating_sub(used)),
            size(limit),
        ),
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn forbidden(message: String) -> Refusal {
    Refusal {
        reason: RefusalReason::ContextForbidden,
        message: format!("{FIELD}: {message}"),
    }
}
