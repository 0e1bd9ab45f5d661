//! What our own admission webhooks know of the cluster: every replica serves them, so every
//! replica follows policies and PolicyServers.

use std::{collections::BTreeSet, sync::Arc};

use arc_swap::ArcSwapOption;
use assent_api::ParsedServer;
use assent_core::{Mode, PolicyKey};
use assent_k8s::{
    admission::{self, KnownServer, inject},
    index::{Index, Kind},
    watch,
    workload::{self, EvaluatorParts, Place},
};
use kube::Client;
use tokio::sync::{mpsc, watch as channel};

use super::http::Readiness;

/// What webhooks look at.
const KINDS: [Kind; 3] = [Kind::ClusterPolicies, Kind::Policies, Kind::Servers];

/// What is known; clones are the same.
#[derive(Clone)]
pub(super) struct Known(Arc<Inner>);

struct Inner {
    state: ArcSwapOption<admission::Known>,
    changes: channel::Sender<u64>,
    readiness: channel::Sender<Readiness>,
}

// === impl Known ===

impl Known {
    /// Nothing yet.
    pub(super) fn new(readiness: channel::Sender<Readiness>) -> Self {
        Self(Arc::new(Inner {
            state: ArcSwapOption::empty(),
            changes: channel::Sender::new(0),
            readiness,
        }))
    }

    /// Wakes when something changed.
    pub(super) fn changes(&self) -> channel::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Namespaces whose pods may have an evaluator beside them.
    pub(super) fn injected_namespaces(&self) -> BTreeSet<String> {
        let state = self.0.state.load_full();
        let servers = state.iter().flat_map(|known| known.servers.values());
        servers
            .flat_map(|server| server.allowed_namespaces.iter().cloned())
            .collect()
    }

    /// Follows the cluster for as long as it is polled.
    pub(super) async fn follow(self, client: Client, options: workload::Options) {
        let (sender, mut changes) = mpsc::channel(64);
        let _watches = watch::spawn(&client, &options.namespace, &KINDS, &sender);
        let mut index = Index::new(assent_api::Options::default());
        while let Some(change) = changes.recv().await {
            index.take(change);
            while let Ok(change) = changes.try_recv() {
                index.take(change);
            }
            if index.is_synced(&KINDS) {
                self.store(known(&index, &options));
            }
        }
    }

    fn store(&self, known: admission::Known) {
        self.0.state.store(Some(Arc::new(known)));
        self.0.changes.send_modify(|n| *n += 1);
        self.0
            .readiness
            .send_if_modified(|ready| !std::mem::replace(&mut ready.listed, true));
    }
}

impl admission::State for Known {
    fn known(&self) -> Option<Arc<admission::Known>> {
        self.0.state.load_full()
    }

    fn observe(&self, outcome: &inject::Outcome) {
        if let inject::Outcome::Left(reason) | inject::Outcome::Refused(reason) = outcome {
            tracing::warn!("a pod asked for an evaluator and has none: {reason}");
        }
    }
}

fn known(index: &Index, options: &workload::Options) -> admission::Known {
    let mut known = admission::Known::default();
    for entry in index.servers().filter(|s| !s.meta.deleting) {
        if let Ok(server) = &entry.parsed {
            let found = known_server(server, options);
            known.servers.insert(entry.meta.name.clone(), found);
        }
    }
    for entry in index.policies().filter(|p| !p.meta.deleting) {
        let protects = entry.parsed.as_ref().is_ok_and(|p| p.mode == Mode::Protect);
        if protects {
            let policies: &mut Vec<PolicyKey> =
                known.protecting.entry(entry.server.clone()).or_default();
            policies.push(entry.key.clone());
        }
    }
    known
}

fn known_server(server: &ParsedServer, options: &workload::Options) -> KnownServer {
    let injection = server.spec.injection.as_ref();
    let parts = |place| {
        Arc::new(parts(&workload::evaluator_container(
            server, options, place,
        )))
    };
    KnownServer {
        allowed_namespaces: injection.map_or_else(Vec::new, |i| i.allowed_namespaces.clone()),
        own: parts(Place::Own),
        beside: parts(Place::Beside),
    }
}

fn parts(parts: &EvaluatorParts) -> inject::Parts {
    let volumes = parts.volumes.iter().map(serde_json::to_value);
    inject::Parts {
        container: serde_json::to_value(&parts.container).unwrap_or_default(),
        volumes: volumes.filter_map(Result::ok).collect(),
        hash: parts.hash(),
    }
}
