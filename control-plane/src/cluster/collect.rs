//! Modules that nothing names are removed from the store.

use std::{collections::HashSet, time::Duration};

use assent_core::Digest;
use assent_modules::store::{Keep, Store};
use tokio::time::{Interval, interval_at};
use tracing::error;

/// How often that is done.
const EVERY: Duration = Duration::from_secs(600);

/// When it is to be done.
pub(super) fn ticks() -> Interval {
    interval_at(tokio::time::Instant::now() + EVERY, EVERY)
}

/// Removes all but those that stored revisions name.
pub(super) async fn unnamed(store: &Store, named: HashSet<Digest>) {
    let keep = Keep {
        modules: named,
        // A module is stored before its vetting ends and a revision names it.
        younger_than: EVERY,
        ..Keep::default()
    };
    if let Err(error) = store.collect(keep).await {
        error!("failed to remove modules that nothing names: {error}");
    }
}
