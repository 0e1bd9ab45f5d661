//! Namespaces that have no service here: their calls get an error that says why.

use std::time::Duration;

use super::{CallError, HostNamespace};

/// A namespace without a service.
#[derive(Clone, Copy)]
pub(super) struct Unavailable {
    name: &'static str,
    operations: &'static [&'static str],
    why: &'static str,
}

/// Every namespace that depends on something outside of this process.
pub(super) const ALL: [Unavailable; 3] = [
    Unavailable {
        name: "kubernetes",
        operations: &[
            "list_resources_by_namespace",
            "list_resources_all",
            "get_resource",
            "can_i",
        ],
        why: "Kubernetes objects are not replicated to this evaluator",
    },
    Unavailable {
        name: "oci",
        operations: &[
            "v1/verify",
            "v2/verify",
            "v1/manifest_digest",
            "v1/oci_manifest",
            "v1/oci_manifest_config",
        ],
        why: "there is no access to registries here",
    },
    Unavailable {
        name: "net",
        operations: super::dns::OPERATIONS,
        why: "there is no access to the network here",
    },
];

// === impl Unavailable ===

impl HostNamespace for Unavailable {
    fn name(&self) -> &'static str {
        self.name
    }

    fn operations(&self) -> &'static [&'static str] {
        self.operations
    }

    fn is_external(&self) -> bool {
        true
    }

    fn waits(&self, _: &str, _: &[u8]) -> bool {
        false
    }

    fn call(&self, operation: &str, _: &[u8], _: Duration) -> Result<Vec<u8>, CallError> {
        let (name, why) = (self.name, self.why);
        Err(CallError::Refused(format!(
            "the host call {name}/{operation} can't be answered: {why}"
        )))
    }
}
