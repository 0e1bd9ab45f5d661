//! The module store as a standby fills it.

use std::collections::HashSet;

use assent_core::Digest;
use assent_k8s::{
    Client,
    standby::{ModuleStore, StoredModule},
};
use futures::future::BoxFuture;

use super::sources::module_access;
use crate::vetting::{Artefacts, fetch_again};

/// Fetches modules from registries, compiles them for evaluators, and collects those that no
/// revision names.
pub(super) struct Prefetch {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) policy_namespaces: Vec<String>,
    pub(super) artefacts: Artefacts,
}

// === impl Prefetch ===

impl ModuleStore for Prefetch {
    fn fetch(&self, module: StoredModule) -> BoxFuture<'static, ()> {
        let access = module_access(&self.client, &self.namespace, None, &self.policy_namespaces);
        let artefacts = self.artefacts.clone();
        Box::pin(async move {
            let sources = (access.sources)(module.server.as_ref());
            let StoredModule { url, digest, .. } = module;
            fetch_again(&artefacts, &url, digest, &sources, access.addresses, None).await;
            artefacts.want([digest]);
        })
    }

    fn collect(&self, named: HashSet<Digest>) -> BoxFuture<'static, ()> {
        let artefacts = self.artefacts.clone();
        Box::pin(async move {
            artefacts.want(named.iter().copied());
            artefacts.collect(named).await;
        })
    }
}
