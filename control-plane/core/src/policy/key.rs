//! Names of policies.

use std::{fmt, sync::Arc};

/// Names a policy: `cluster/<name>` or `namespaced/<namespace>/<name>` if it decides about admission,
/// `cluster-requests/<name>` or `requests/<namespace>/<name>` if it decides about requests at Envoy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey(Arc<str>);

// === impl PolicyKey ===

impl PolicyKey {
    /// A cluster-wide policy.
    pub fn cluster(name: &str) -> Self {
        Self(format!("cluster/{name}").into())
    }

    /// A policy of one namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self(format!("namespaced/{namespace}/{name}").into())
    }

    /// A policy for requests to all workloads.
    pub fn cluster_requests(name: &str) -> Self {
        Self(format!("cluster-requests/{name}").into())
    }

    /// A policy for requests to the workloads of one namespace.
    pub fn requests(namespace: &str, name: &str) -> Self {
        Self(format!("requests/{namespace}/{name}").into())
    }

    /// Reads a key as it is displayed.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let ok = match parts.as_slice() {
            ["cluster" | "cluster-requests", name] => is_dns_subdomain(name),
            ["namespaced" | "requests", namespace, name] => {
                is_dns_subdomain(namespace) && is_dns_subdomain(name)
            }
            _ => false,
        };
        ok.then(|| Self(text.into()))
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The policy's own name.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The namespace of a namespaced policy.
    pub fn namespace(&self) -> Option<&str> {
        let rest = self.0.strip_prefix("namespaced/");
        let rest = rest.or_else(|| self.0.strip_prefix("requests/"));
        rest?.split('/').next()
    }

    /// Whether the policy decides about requests at Envoy, not about admission.
    pub fn is_for_requests(&self) -> bool {
        is_for_requests(&self.0)
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a policy, revision or route of this name decides about requests at Envoy.
pub fn is_for_requests(name: &str) -> bool {
    name.starts_with("requests/") || name.starts_with("cluster-requests/")
}

/// Whether `text` is a DNS subdomain as Kubernetes names are: at most 253 characters.
pub fn is_dns_subdomain(text: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}
