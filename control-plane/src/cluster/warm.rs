//! A standby fetches every module that a revision names, so that it can lead at once.

use std::collections::HashSet;

use assent_core::{Digest, policy::DEFAULT_SERVER};
use assent_k8s::{
    index::{Index, Kind},
    watch,
};
use assent_modules::store::Store;
use kube::Client;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};

use super::{collect, deed::Fetch, sources::References, terms::REACH};

#[cfg(test)]
mod tests;

/// Revisions name modules, and PolicyServers say how those are fetched.
const KINDS: [Kind; 2] = [Kind::Servers, Kind::Revisions];

/// Fetches for as long as it is polled. It never ends by itself.
pub(super) async fn stay(client: &Client, namespace: &str, store: &Store) {
    let (sender, mut changes) = mpsc::channel(64);
    let _watches = watch::spawn(client, namespace, &KINDS, &sender);
    let mut index = Index::default();
    let mut known = HashSet::new();
    let mut fetching = JoinSet::new();
    let mut collecting = collect::ticks();
    loop {
        let change = tokio::select! {
            Some(change) = changes.recv() => change,
            _ = collecting.tick() => {
                if index.is_synced(&KINDS) {
                    collect::unnamed(store, index.named_modules()).await;
                }
                continue;
            }
        };
        index.take(change);
        while let Ok(change) = changes.try_recv() {
            index.take(change);
        }
        for fetch in wanted(&index, &mut known) {
            let (client, store) = (client.clone(), store.clone());
            let namespace = namespace.to_owned();
            fetching.spawn(async move { fetch.run(&client, &namespace, &store).await });
        }
        while fetching.try_join_next().is_some() {}
    }
}

/// Modules that nobody has asked for yet; what is stored already is found by whoever fetches.
fn wanted(index: &Index, known: &mut HashSet<Digest>) -> Vec<Fetch> {
    if !index.is_synced(&KINDS) {
        return Vec::new();
    }
    let objects = index.all_revisions().filter_map(|r| r.object.as_ref());
    objects
        .filter_map(|object| {
            let digest = object.spec.module_digest.parse().ok()?;
            let named = object
                .spec
                .policy
                .get("policyServer")
                .and_then(Value::as_str);
            let named = named.unwrap_or(DEFAULT_SERVER);
            let server = index.server(named).and_then(|s| s.parsed.as_ref().ok());
            known.insert(digest).then(|| Fetch {
                url: object.spec.module_url.clone(),
                digest,
                sources: References::of(server),
                reach: REACH,
            })
        })
        .collect()
}
