//! The PolicyServers and policies that admission decisions depend on. Every replica answers
//! the control plane's own webhooks, so every replica watches them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use assent_api::ParsedServer;
use assent_controller::{Kind, Objects, objects::Affected};
use assent_core::{Mode, PolicyKey};
use kube::{Client, core::DynamicObject};
use tokio::sync::{mpsc, watch as channel};

use super::{AdmissionView, ServerView, State, inject};
use crate::{
    convert::Converter,
    watch,
    workload::{self, EvaluatorParts, Place},
};

/// The kinds that admission decisions depend on, and StatefulSets, which tell members of a
/// PolicyServer from other pods.
const KINDS: [Kind; 5] = [
    Kind::ClusterPolicies,
    Kind::Policies,
    Kind::Servers,
    Kind::Sets,
    Kind::Namespaces,
];

/// A snapshot of the cluster for admission decisions; clones share it.
#[derive(Clone, Default)]
pub struct AdmissionCache(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: ArcSwapOption<AdmissionView>,
    /// Uids of StatefulSets by PolicyServer.
    stateful_sets: ArcSwapOption<BTreeMap<String, String>>,
    changes: channel::Sender<u64>,
}

// === impl AdmissionCache ===

impl AdmissionCache {
    /// An empty cache: nothing is known until [`AdmissionCache::follow`] has listed everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notified after every change.
    pub fn changes(&self) -> channel::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Namespaces whose pods may have an evaluator injected.
    pub fn injected_namespaces(&self) -> BTreeSet<String> {
        let state = self.0.state.load_full();
        let servers = state.iter().flat_map(|known| known.servers.values());
        servers
            .flat_map(|server| server.allowed_namespaces.iter().cloned())
            .collect()
    }

    /// Uids of StatefulSets by PolicyServer; none until they were listed.
    pub fn stateful_sets(&self) -> Option<Arc<BTreeMap<String, String>>> {
        self.0.stateful_sets.load_full()
    }

    /// Follows the cluster for as long as it is polled. Calls `listed` whenever a complete
    /// snapshot was stored.
    pub async fn follow(
        self,
        client: Client,
        options: workload::Options,
        parse: assent_api::Options,
        listed: impl Fn(),
    ) {
        let (sender, mut changes) = mpsc::channel(64);
        let _watches = watch::spawn(&client, &options.namespace, &KINDS, &sender);
        let converter = Converter::new(&options.namespace, parse);
        let mut objects = Objects::default();
        while let Some(change) = changes.recv().await {
            let mut affected = Vec::new();
            let mut next = Some(change);
            while let Some(change) = next {
                if let Some(change) = converter.change(change) {
                    affected.extend(objects.apply(change));
                }
                next = changes.try_recv().ok();
            }
            if !objects.is_listed(&KINDS) {
                continue;
            }
            // Statuses of StatefulSets change all the time; policies need not be read for that.
            let is_workload = |a: &Affected| matches!(a, Affected::Workload(_) | Affected::Pods(_));
            let first = self.0.state.load().is_none();
            if first || affected.iter().any(is_workload) {
                self.0
                    .stateful_sets
                    .store(Some(Arc::new(stateful_sets(&objects))));
            }
            if first || !affected.iter().all(is_workload) {
                self.store(known(&objects, &options));
            }
            listed();
        }
    }

    /// Stores StatefulSets as if they had been listed: PolicyServer and uid.
    #[cfg(test)]
    pub(crate) fn set_stateful_sets<const N: usize>(&self, sets: [(&str, &str); N]) {
        let sets = sets.map(|(server, uid)| (server.to_owned(), uid.to_owned()));
        self.0
            .stateful_sets
            .store(Some(Arc::new(BTreeMap::from(sets))));
    }

    /// Stores a state as if it had been listed.
    #[cfg(test)]
    pub(crate) fn set_known(&self, known: AdmissionView) {
        self.store(known);
    }

    fn store(&self, known: AdmissionView) {
        self.0.state.store(Some(Arc::new(known)));
        self.0.changes.send_modify(|n| *n += 1);
    }
}

impl State for AdmissionCache {
    fn known(&self) -> Option<Arc<AdmissionView>> {
        self.0.state.load_full()
    }

    fn observe(&self, outcome: &inject::Outcome) {
        if let inject::Outcome::Left(reason) | inject::Outcome::Refused(reason) = outcome {
            tracing::warn!("a pod that asks for an evaluator got none: {reason}");
        }
    }
}

fn stateful_sets(objects: &Objects<DynamicObject>) -> BTreeMap<String, String> {
    let sets = objects.sets();
    sets.map(|set| (set.server.clone(), set.meta.uid.clone()))
        .collect()
}

fn known(objects: &Objects<DynamicObject>, options: &workload::Options) -> AdmissionView {
    let mut known = AdmissionView::default();
    for object in objects.servers().filter(|s| !s.meta.deleting) {
        if let Some(server) = object.spec() {
            let found = known_server(server, options);
            known.servers.insert(object.meta.name.clone(), found);
        }
    }
    let selects = |server: &ServerView| {
        let allowed = server.policies_from.as_ref();
        allowed.is_some_and(|allowed| allowed.selector.is_some())
    };
    if known.servers.values().any(selects) {
        known.namespaces = objects.all_namespace_labels();
    }
    for object in objects.policies().filter(|p| !p.meta.deleting) {
        if let Some(namespace) = object.key.namespace() {
            *known.policies.entry(namespace.to_owned()).or_default() += 1;
        }
        let protects = object
            .parsed
            .as_ref()
            .is_ok_and(|p| p.mode == Mode::Protect);
        if protects {
            let policies: &mut Vec<PolicyKey> =
                known.protecting.entry(object.server.clone()).or_default();
            policies.push(object.key.clone());
        }
    }
    known
}

fn known_server(server: &ParsedServer, options: &workload::Options) -> ServerView {
    let injection = server.spec.injection.as_ref();
    let parts = |place| {
        Arc::new(parts(&workload::evaluator_container(
            server, options, place,
        )))
    };
    ServerView {
        policies_from: server.spec.allowed_namespaces.clone(),
        allowed_namespaces: injection.map_or_else(Vec::new, |i| i.allowed_namespaces.clone()),
        own: parts(Place::Own),
        beside: parts(Place::Beside),
    }
}

fn parts(parts: &EvaluatorParts) -> inject::Parts {
    let volumes = parts.volumes.iter().map(serde_json::to_value);
    let secrets = parts.pull_secrets.iter();
    inject::Parts {
        container: serde_json::to_value(&parts.container).unwrap_or_default(),
        volumes: volumes.filter_map(Result::ok).collect(),
        hash: parts.hash(),
        pull_secrets: secrets.map(|secret| secret.name.clone()).collect(),
    }
}
