//! The module store as a standby fills it.

use std::collections::HashSet;

use assent_core::Digest;
use assent_k8s::{
    Client,
    standby::{ModuleStore, StoredModule},
};
use assent_modules::store::Store;
use futures::future::BoxFuture;

use super::{collect, sources::module_access};
use crate::vetting::fetch_again;

/// Fetches modules from registries and collects those that no revision names.
pub(super) struct Prefetch {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) store: Store,
}

// === impl Prefetch ===

impl ModuleStore for Prefetch {
    fn fetch(&self, module: StoredModule) -> BoxFuture<'static, ()> {
        let access = module_access(&self.client, &self.namespace);
        let store = self.store.clone();
        Box::pin(async move {
            let sources = (access.sources)(module.server.as_ref());
            let StoredModule { url, digest, .. } = module;
            fetch_again(&store, &url, digest, &sources, access.addresses, None).await;
        })
    }

    fn collect(&self, named: HashSet<Digest>) -> BoxFuture<'static, ()> {
        let store = self.store.clone();
        Box::pin(async move { collect::remove_unnamed(&store, named).await })
    }
}
