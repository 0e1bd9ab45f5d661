//! The one event loop: whatever happens goes through here, one after the other.

use std::{collections::HashSet, sync::Arc, time::Duration};

use assent_core::{Digest, PolicyKey};
use assent_grpc::{
    Notice,
    notice::{self, BATCH},
    rollout,
};
use assent_local::{
    directory::Scan,
    dispatch::{Table, Target},
};
use assent_modules::store::{Keep, Store};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::{endpoints::Endpoints, machine::Machine, revisions, services};
use crate::{control::Query, services::client_status, vetting::Outcome};

/// How soon a failed write of the state is tried again.
const WRITE_RETRY: Duration = Duration::from_secs(1);

/// How often modules that nothing names are removed.
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Everything that comes in and everything that goes out.
pub(super) struct EventLoop {
    pub(super) machine: Machine,
    pub(super) store: Store,
    pub(super) endpoints: Endpoints,
    pub(super) routes: watch::Sender<Table>,
    pub(super) synced: watch::Sender<bool>,
    pub(super) scans: mpsc::Receiver<Scan>,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) outcomes: mpsc::Receiver<Outcome>,
    pub(super) queries: mpsc::Receiver<Query>,
}

// === impl EventLoop ===

impl EventLoop {
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut routed: Vec<(PolicyKey, String)> = Vec::new();
        let mut collect = time::interval(COLLECT_EVERY);
        let mut durable = self.settle(&mut routed);
        loop {
            let wake = self.wake_at(durable);
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(scan) = self.scans.recv() => self.machine.scanned(&scan),
                _ = self.notices.recv_many(&mut batch, BATCH) => {
                    // A thousand acknowledgements of one push are one decision.
                    notice::gather(&mut self.notices, &mut batch).await;
                    debug!(n = batch.len(), "notices");
                    for notice in batch.drain(..) {
                        self.machine.drive.notice(notice);
                    }
                }
                Some(outcome) = self.outcomes.recv() => self.machine.vetted(outcome),
                Some(query) = self.queries.recv() => {
                    // Looking changes nothing, and must not wake those who wait for changes.
                    if !self.answer(query, &mut routed) {
                        continue;
                    }
                }
                _ = collect.tick() => self.collect(),
                () = sleep_until(wake) => {}
            }
            durable = self.settle(&mut routed);
        }
        Ok(())
    }

    /// Decides, stores, publishes; then points the dispatch at what is active.
    fn settle(&mut self, routed: &mut Vec<(PolicyKey, String)>) -> bool {
        self.machine.work();
        // Writes are few and small, but they wait for the disk.
        let durable = tokio::task::block_in_place(|| self.machine.drive.settle());
        if durable {
            self.route(routed);
            self.synced.send_if_modified(|synced| {
                let now = self.machine.drive.plane.is_synced();
                std::mem::replace(synced, now) != now
            });
        }
        self.endpoints.refresh(&self.machine.drive.plane);
        durable
    }

    fn wake_at(&self, durable: bool) -> Option<Instant> {
        let clock = self.machine.drive.clock;
        let deadline = self
            .machine
            .drive
            .plane
            .deadline()
            .map(|at| clock.instant(at));
        let retry = (!durable).then(|| Instant::now() + WRITE_RETRY);
        [deadline, self.machine.next_retry(), retry]
            .into_iter()
            .flatten()
            .min()
    }

    /// What the webhook configurations are in a cluster.
    fn route(&mut self, routed: &mut Vec<(PolicyKey, String)>) {
        let records = self.machine.drive.performer.book.records();
        let active = records.filter(|r| !r.deleting);
        let active = active.filter_map(|r| Some((r.key(), r.active_path()?)));
        let now: Vec<(PolicyKey, String)> = active.collect();
        if *routed == now {
            return;
        }
        let targets = now.iter().filter_map(|(key, path)| self.target(key, path));
        let table = Table::new(targets.map(Arc::new));
        self.routes.send_replace(table);
        *routed = now;
    }

    fn target(&self, key: &PolicyKey, path: &str) -> Option<Target> {
        let record = self.machine.drive.performer.book.get(key)?;
        let revision = record.active_revision()?;
        let parsed = revisions::read_spec(key, &revision.spec, &self.machine.options.parse);
        let target = parsed.and_then(|p| Target::new(p, path).map_err(|e| e.to_string()));
        match target {
            Ok(target) => Some(target),
            Err(why) => {
                error!(policy = %key, "the active revision can't be dispatched to: {why}");
                None
            }
        }
    }

    /// Answers; true where something may have changed. Whoever asked and left is not told.
    fn answer(&mut self, query: Query, routed: &mut Vec<(PolicyKey, String)>) -> bool {
        match query {
            Query::Objects(answer) => {
                let _ = answer.send(self.machine.objects());
            }
            Query::Measure(answer) => {
                self.machine.drive.measure();
                let _ = answer.send(());
            }
            Query::ClientStatus(query, answer) => {
                let never_good = self.machine.never_good(&query);
                let page = client_status(&mut self.machine.drive, &query, never_good);
                let _ = answer.send(page);
            }
            Query::Revisions(key, answer) => {
                let record = self.machine.drive.performer.book.get(&key);
                let _ = answer.send(record.map(services::revisions));
            }
            Query::Undo(key, to, answer) => {
                let undone = self.machine.undo(&key, to);
                // Only what is on disk is confirmed.
                let durable = self.settle(routed);
                let lost = "the state can't be written; it is tried again";
                let _ = answer.send(match durable {
                    true => undone,
                    false => Err(rollout::Error::Unavailable(lost.into())),
                });
                return true;
            }
        }
        false
    }

    /// Removes modules that no stored revision names.
    fn collect(&self) {
        let records = self.machine.drive.performer.book.records();
        let named = records
            .flat_map(|r| &r.revisions)
            .filter_map(|r| r.module_digest.parse().ok());
        let modules: HashSet<Digest> = named.collect();
        let store = self.store.clone();
        tokio::spawn(async move {
            let keep = Keep {
                modules,
                // A module is stored before its vetting ends and a revision names it.
                younger_than: COLLECT_EVERY,
                ..Keep::default()
            };
            match store.collect(keep).await {
                Ok(collected) => debug!(?collected, "removed modules that nothing names"),
                Err(error) => error!("failed to remove modules that nothing names: {error}"),
            }
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
