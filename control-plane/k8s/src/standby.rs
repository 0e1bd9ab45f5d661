//! A standby fetches every module that a stored revision names, so that it can lead without
//! delay.

use std::{collections::HashSet, time::Duration};

use assent_api::{ParsedServer, parse};
use assent_controller::{
    Kind, Objects,
    contexts::{ContextEvent, WarmContexts},
};
use assent_core::{Digest, policy::DEFAULT_SERVER};
use futures::future::BoxFuture;
use kube::{Client, core::DynamicObject};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet, time};

use crate::{context::Follower, convert::Converter, watch};

#[cfg(test)]
mod tests;

/// Revisions name modules, and PolicyServers declare how to fetch them.
const KINDS: [Kind; 2] = [Kind::Servers, Kind::Revisions];

/// The module store that a standby fills.
pub trait ModuleStore: Send + Sync {
    /// Fetches a module into the store; done already if it is there. Retries on its own.
    fn fetch(&self, module: StoredModule) -> BoxFuture<'static, ()>;

    /// Removes every module but these.
    fn collect(&self, named: HashSet<Digest>) -> BoxFuture<'static, ()>;
}

/// A module that a stored revision names.
#[derive(Clone, Debug)]
pub struct StoredModule {
    /// Where it was pulled from.
    pub url: String,
    /// Its content.
    pub digest: Digest,
    /// The PolicyServer that declares how it is pulled, if it exists and is valid.
    pub server: Option<ParsedServer>,
}

/// Fetches modules for as long as it is polled, and collects unused ones every
/// `collect_every`. It never returns.
pub async fn prefetch(
    client: &Client,
    namespace: &str,
    options: parse::Options,
    store: &dyn ModuleStore,
    collect_every: Duration,
    (follower, events): (&Follower, &mut mpsc::Receiver<ContextEvent>),
) {
    let (sender, mut changes) = mpsc::channel(64);
    let _watches = watch::spawn(client, namespace, &KINDS, &sender);
    let converter = Converter::new(namespace, options);
    let mut objects = Objects::default();
    let mut requested = HashSet::new();
    let mut fetching = JoinSet::new();
    let mut collecting = time::interval_at(time::Instant::now() + collect_every, collect_every);
    let mut warm = WarmContexts::default();
    loop {
        follow(follower, &mut warm);
        let change = tokio::select! {
            Some(change) = changes.recv() => change,
            Some(event) = events.recv() => {
                warm.observe(event);
                continue;
            }
            _ = collecting.tick() => {
                if objects.is_listed(&KINDS) {
                    let named = objects.named_modules();
                    // A module that is collected now is fetched again if it is named again.
                    requested.retain(|digest| named.contains(digest));
                    store.collect(named).await;
                }
                continue;
            }
        };
        let mut next = Some(change);
        while let Some(change) = next {
            if let Some(change) = converter.change(change) {
                objects.apply(change);
            }
            next = changes.try_recv().ok();
        }
        if objects.is_listed(&KINDS) {
            warm.set_revisions(objects.all_revisions());
        }
        for module in wanted(&objects, &mut requested) {
            fetching.spawn(store.fetch(module));
        }
        while fetching.try_join_next().is_some() {}
    }
}

/// Follows the collections of stored revisions: a process that leads has their objects already.
fn follow(follower: &Follower, warm: &mut WarmContexts) {
    let (kinds, collections) = warm.settle();
    if let Some(kinds) = kinds {
        follower.follow_kinds(kinds);
    }
    if let Some(collections) = collections {
        follower.follow_collections(collections);
    }
}

/// Modules that were not requested yet; the store skips those that it has.
fn wanted(objects: &Objects<DynamicObject>, requested: &mut HashSet<Digest>) -> Vec<StoredModule> {
    if !objects.is_listed(&KINDS) {
        return Vec::new();
    }
    let specs = objects.all_revisions().filter_map(|r| r.spec.as_ref());
    specs
        .filter_map(|spec| {
            let digest = spec.module_digest.parse().ok()?;
            if !requested.insert(digest) {
                return None;
            }
            let server = spec.policy.get("policyServer").and_then(Value::as_str);
            let server = objects.server(server.unwrap_or(DEFAULT_SERVER));
            Some(StoredModule {
                url: spec.module_url.clone(),
                digest,
                server: server.and_then(|s| s.spec().cloned()),
            })
        })
        .collect()
}
