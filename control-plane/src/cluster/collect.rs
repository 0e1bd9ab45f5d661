//! Modules that no revision names are removed from the store.

use std::{collections::HashSet, time::Duration};

use assent_core::Digest;
use assent_modules::store::{Keep, Store};
use tokio::time::{Interval, interval_at};
use tracing::error;

/// How often that is done.
pub(super) const INTERVAL: Duration = Duration::from_secs(600);

/// When it is due.
pub(super) fn ticks() -> Interval {
    interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL)
}

/// Removes all modules except those that stored revisions name.
pub(super) async fn remove_unnamed(store: &Store, named: HashSet<Digest>) {
    let keep = Keep {
        modules: named,
        // A module is stored before its vetting ends and a revision names it.
        younger_than: INTERVAL,
        ..Keep::default()
    };
    if let Err(error) = store.collect(keep).await {
        error!("failed to remove modules that no revision names: {error}");
    }
}
