//! Where pods and their servers are looked up.

use assent_api::PolicyServer;
use futures::future::BoxFuture;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{Api, Client};

use super::{Error, bounded};

/// Finds what a token speaks of: by asking the API server, or in an index of it. One that
/// lags refuses a pod that is too new, and the pod comes again; it must not show pods that
/// are gone for longer than watches take.
pub trait Lookup: Send + Sync + 'static {
    /// A pod.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, Pod>;
    /// A StatefulSet in our own namespace.
    fn stateful_set<'a>(&'a self, name: &'a str) -> Found<'a, StatefulSet>;
    /// A PolicyServer.
    fn policy_server<'a>(&'a self, name: &'a str) -> Found<'a, PolicyServer>;
}

/// What is there, or that it is not.
type Found<'a, T> = BoxFuture<'a, Result<Option<T>, Error>>;

/// Asks the API server each time.
#[derive(Clone)]
pub struct Live {
    client: Client,
    namespace: String,
}

// === impl Live ===

impl Live {
    /// Looks for StatefulSets in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { client, namespace }
    }
}

impl Lookup for Live {
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        Box::pin(async move { bounded(api.get_opt(name)).await })
    }

    fn stateful_set<'a>(&'a self, name: &'a str) -> Found<'a, StatefulSet> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        Box::pin(async move { bounded(api.get_opt(name)).await })
    }

    fn policy_server<'a>(&'a self, name: &'a str) -> Found<'a, PolicyServer> {
        let api: Api<PolicyServer> = Api::all(self.client.clone());
        Box::pin(async move { bounded(api.get_opt(name)).await })
    }
}
