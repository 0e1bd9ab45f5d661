//! Where pods and their PolicyServers are looked up.

use assent_api::PolicyServer;
use futures::future::BoxFuture;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{Api, Client};

use super::{Error, bounded};
use crate::{admission::AdmissionCache, names};

/// Finds the objects that a token refers to. An implementation that lags behind the cluster
/// refuses a pod that is too new, and the pod retries; it must not return objects that are gone
/// for longer than a watch takes.
pub trait Lookup: Send + Sync + 'static {
    /// A pod.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, Pod>;
    /// The uid of the StatefulSet of a PolicyServer, in the control plane's namespace.
    fn stateful_set<'a>(&'a self, server: &'a str) -> Found<'a, String>;
    /// The namespaces whose pods may have evaluators of a PolicyServer injected.
    fn allowed_namespaces<'a>(&'a self, server: &'a str) -> Found<'a, Vec<String>>;
}

/// The object, or none if it does not exist.
pub type Found<'a, T> = BoxFuture<'a, Result<Option<T>, Error>>;

/// Asks the API server each time.
#[derive(Clone)]
pub struct Live {
    client: Client,
    namespace: String,
}

/// Reads pods from the API server and everything else from watches, so that a new stream costs
/// one request besides its TokenReview.
#[derive(Clone)]
pub struct Watched {
    live: Live,
    cache: AdmissionCache,
}

// === impl Live ===

impl Live {
    /// Looks for StatefulSets in `namespace`, the control plane's own.
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

    fn stateful_set<'a>(&'a self, server: &'a str) -> Found<'a, String> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        Box::pin(async move {
            let set = bounded(api.get_metadata_opt(&names::server(server))).await?;
            Ok(set.and_then(|set| set.metadata.uid))
        })
    }

    fn allowed_namespaces<'a>(&'a self, server: &'a str) -> Found<'a, Vec<String>> {
        let api: Api<PolicyServer> = Api::all(self.client.clone());
        Box::pin(async move {
            let server = bounded(api.get_opt(server)).await?;
            let injection = server.map(|server| server.spec.injection.unwrap_or_default());
            Ok(injection.map(|injection| injection.allowed_namespaces))
        })
    }
}

// === impl Watched ===

impl Watched {
    /// Reads from `cache`, and from the API server until everything was listed once.
    pub fn new(live: Live, cache: AdmissionCache) -> Self {
        Self { live, cache }
    }
}

impl Lookup for Watched {
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, Pod> {
        self.live.pod(namespace, name)
    }

    fn stateful_set<'a>(&'a self, server: &'a str) -> Found<'a, String> {
        match self.cache.stateful_sets() {
            Some(sets) => Box::pin(async move { Ok(sets.get(server).cloned()) }),
            None => self.live.stateful_set(server),
        }
    }

    fn allowed_namespaces<'a>(&'a self, server: &'a str) -> Found<'a, Vec<String>> {
        match crate::admission::State::known(&self.cache) {
            Some(known) => Box::pin(async move {
                let server = known.servers.get(server);
                Ok(server.map(|server| server.allowed_namespaces.clone()))
            }),
            None => self.live.allowed_namespaces(server),
        }
    }
}
