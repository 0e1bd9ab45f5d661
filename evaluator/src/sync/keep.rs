//! Saves the set in place to disk, after the swap: a slow or full disk delays nothing.

use std::{collections::HashSet, sync::Arc, time::Duration};

use assent_core::Digest;
use tokio::sync::watch;

use crate::{
    announced::Routes,
    metrics::Metrics,
    plan::Loaded,
    prepare::{Modules, fetch},
    store::Store,
};

/// A set to keep.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) policies: Loaded,
    pub(crate) routes: Routes,
    pub(crate) whole: bool,
    /// The newest leadership term that was seen.
    pub(crate) lease_transitions: u64,
    /// Where portable modules come from that were loaded as artefacts. Native code is never
    /// kept: anybody who can write to the directory could make the evaluator run it.
    pub(crate) modules: Option<Modules>,
}

/// A disk that is full may have room later.
const AGAIN: Duration = Duration::from_secs(30);

/// Saves the newest set whenever it changes.
pub(crate) async fn run(
    store: Arc<Store>,
    mut sets: watch::Receiver<Option<Kept>>,
    metrics: Metrics,
) {
    let mut failed = false;
    loop {
        let changed = if failed {
            tokio::time::timeout(AGAIN, sets.changed())
                .await
                .unwrap_or(Ok(()))
        } else {
            sets.changed().await
        };
        if changed.is_err() {
            return;
        }
        let Some(kept) = sets.borrow_and_update().clone() else {
            continue;
        };
        failed = !keep(&store, kept).await;
        if failed {
            metrics.state_errors.inc();
        }
    }
}

/// Modules first, so that a set on disk never names one that is not there.
async fn keep(store: &Arc<Store>, kept: Kept) -> bool {
    let needed: HashSet<Digest> = kept
        .policies
        .values()
        .map(|p| p.content.module_digest)
        .collect();
    for module in &needed {
        if store.has_module(module) {
            continue;
        }
        let Some(modules) = &kept.modules else {
            return false;
        };
        match modules.portable(*module).await {
            Ok(bytes) => {
                if !fetch::keep(store.clone(), *module, bytes).await {
                    return false;
                }
            }
            Err(failure) => {
                tracing::warn!(%module, why = failure.message, "failed to fetch a module to keep");
                return false;
            }
        }
    }
    let store = store.clone();
    let saved = tokio::task::spawn_blocking(move || {
        // First: a set of a later term must not be found beside an earlier one.
        store.keep_term(kept.lease_transitions)?;
        store.save(&kept.policies, &kept.routes, kept.whole)?;
        store.sweep(&needed)
    });
    match saved.await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, "failed to save the last good set; serving continues");
            false
        }
        Err(_) => false,
    }
}
