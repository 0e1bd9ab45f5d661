//! Addresses of evaluators, for the local dispatch.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use assent_core::{fleet::Connection, plane::Plane};
use assent_local::dispatch::Environment;

/// Endpoints of connected evaluators, by server. Readers never wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Endpoints(Arc<ArcSwap<BTreeMap<String, Vec<String>>>>);

// === impl Endpoints ===

impl Endpoints {
    /// Replaces the endpoints with those of connected evaluators that have loaded a snapshot.
    pub(super) fn refresh(&self, plane: &Plane) {
        let mut now: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, server) in plane.servers() {
            let serving = server.fleet.replicas().filter(|(_, r)| {
                let open = matches!(r.connection, Connection::Open { .. });
                open && r.applied.is_some() && !r.node.endpoint.is_empty()
            });
            let endpoints = serving.map(|(_, r)| r.node.endpoint.clone()).collect();
            now.insert(name.to_string(), endpoints);
        }
        if **self.0.load() != now {
            self.0.store(Arc::new(now));
        }
    }
}

impl Environment for Endpoints {
    fn endpoints(&self, policy_server: &str) -> Vec<String> {
        self.0
            .load()
            .get(policy_server)
            .cloned()
            .unwrap_or_default()
    }
}
