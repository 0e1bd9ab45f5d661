//! What the control plane must be allowed to do: nothing more is in the chart's roles.

use super::Problem;

/// A permission that the control plane needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// API group; empty is the core group.
    pub group: &'static str,
    /// `pods`, or `policyservers/status`.
    pub resource: &'static str,
    /// What is done.
    pub verbs: &'static [&'static str],
    /// The names of the objects; all if it is empty.
    pub names: &'static [&'static str],
    /// Where.
    pub scope: Scope,
}

/// Where something is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Everywhere, by a ClusterRole.
    Cluster,
    /// In the control plane's namespace, by a Role.
    Namespace,
}

const GROUP: &str = assent_api::GROUP;
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &[
    "get", "list", "watch", "create", "update", "patch", "delete",
];
const STATUS: &[&str] = &["get", "update", "patch"];

/// Names of the definitions.
const DEFINITIONS: &[&str] = &[
    "admissionpolicies.policies.assent.dev",
    "clusteradmissionpolicies.policies.assent.dev",
    "policyrevisions.policies.assent.dev",
    "policyservers.policies.assent.dev",
];

/// Every permission that the control plane needs.
pub const REQUIRED: &[Permission] = &[
    // Users' objects: read, finalizers and rollbacks written, never deleted.
    cluster(
        GROUP,
        "admissionpolicies",
        &["get", "list", "watch", "update", "patch"],
    ),
    cluster(GROUP, "admissionpolicies/status", STATUS),
    cluster(
        GROUP,
        "clusteradmissionpolicies",
        &["get", "list", "watch", "update", "patch"],
    ),
    cluster(GROUP, "clusteradmissionpolicies/status", STATUS),
    // The control plane creates the `default` one.
    cluster(
        GROUP,
        "policyservers",
        &["get", "list", "watch", "create", "update", "patch"],
    ),
    cluster(GROUP, "policyservers/status", STATUS),
    // Revisions live beside their policies, in any namespace.
    cluster(GROUP, "policyrevisions", WRITE),
    cluster(GROUP, "policyrevisions/status", STATUS),
    // Owner references, if the API server checks permissions for them.
    cluster(GROUP, "admissionpolicies/finalizers", &["update"]),
    cluster(GROUP, "clusteradmissionpolicies/finalizers", &["update"]),
    cluster(GROUP, "policyservers/finalizers", &["update"]),
    cluster(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        WRITE,
    ),
    cluster(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        WRITE,
    ),
    named(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &["get"],
        DEFINITIONS,
    ),
    // The control plane's Namespace owns every webhook configuration; PolicyServers select
    // namespaces by their labels.
    cluster("", "namespaces", READ),
    // Followers are pods of any namespace; a token names the pod, which names its server.
    cluster("", "pods", &["get"]),
    cluster("", "events", &["create", "patch"]),
    cluster("events.k8s.io", "events", &["create", "patch"]),
    cluster("authentication.k8s.io", "tokenreviews", &["create"]),
    cluster("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    // What a PolicyServer is made of.
    own("", "configmaps", WRITE),
    own("", "pods", &["get", "list", "watch", "delete"]),
    // `create` cannot be limited to names. Secrets with registry credentials are named by users, and
    // the chart's values list them.
    own("", "secrets", &["create"]),
    Permission {
        names: &[crate::names::CA, crate::names::CA_RECORD],
        ..own("", "secrets", &["get", "update", "patch"])
    },
    // Encrypts settings that come from Secrets. Those are named by users, who allow the control
    // plane to read them.
    Permission {
        names: &[crate::names::SETTINGS_KEY],
        ..own("", "secrets", &["get"])
    },
    // A change of the authority must take effect at once.
    Permission {
        names: &[crate::names::CA],
        ..own("", "secrets", &["list", "watch"])
    },
    own("", "serviceaccounts", WRITE),
    own("", "services", WRITE),
    own("apps", "statefulsets", WRITE),
    own(
        "coordination.k8s.io",
        "leases",
        &["get", "create", "update", "patch"],
    ),
    own("discovery.k8s.io", "endpointslices", READ),
    own("networking.k8s.io", "networkpolicies", WRITE),
    own("policy", "poddisruptionbudgets", WRITE),
];

const fn cluster(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Permission {
    named(group, resource, verbs, &[])
}

const fn named(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    names: &'static [&'static str],
) -> Permission {
    Permission {
        group,
        resource,
        verbs,
        names,
        scope: Scope::Cluster,
    }
}

const fn own(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Permission {
    Permission {
        group,
        resource,
        verbs,
        names: &[],
        scope: Scope::Namespace,
    }
}

// === impl Permission ===

impl Permission {
    pub(super) fn problem(&self, verbs: Vec<String>, namespace: &str) -> Problem {
        let dot = if self.group.is_empty() { "" } else { "." };
        Problem::Permission {
            verbs,
            resource: format!("{}{dot}{}", self.resource, self.group),
            place: match self.scope {
                Scope::Cluster => String::new(),
                Scope::Namespace => format!(" in the namespace {namespace}"),
            },
        }
    }
}
