//! One collection: its watches, merged, projected and reported.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use assent_context::{CollectionSpec, SyncState};
use assent_controller::contexts::{
    CollectionReport, CollectionState, ContextEvent, largest_fields,
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time,
};
use tracing::warn;

use super::{
    Shared,
    merge::{Found, Merged, Merger},
    scope::Scope,
};

/// How often the size of a collection is reported if it changes: it ends in a status.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Objects that are looked at to say which fields are large.
const SAMPLE: usize = 1_000;

struct Follow {
    shared: Arc<Shared>,
    spec: Arc<CollectionSpec>,
    limit: Arc<AtomicU64>,
    merger: Merger,
    state: SyncState,
    detail: String,
    reported: Option<CollectionReport>,
}

/// Follows a collection until the task is aborted, or until its list was given up.
pub(super) async fn follow(
    shared: Arc<Shared>,
    spec: Arc<CollectionSpec>,
    limit: Arc<AtomicU64>,
    report: Arc<Notify>,
) {
    let (sender, mut found) = mpsc::channel(16);
    let namespaces: Vec<Option<String>> = match spec.namespaces() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let mut follow = Follow {
        merger: Merger::new(namespaces.len()),
        state: SyncState::Syncing,
        detail: String::new(),
        reported: None,
        shared,
        spec,
        limit,
    };
    let mut watches = JoinSet::new();
    for (number, namespace) in namespaces.into_iter().enumerate() {
        let scope = Scope {
            shared: follow.shared.clone(),
            spec: follow.spec.clone(),
            number,
            namespace,
            found: sender.clone(),
        };
        watches.spawn(scope.follow());
    }
    drop(sender);
    follow.run(&mut found, &report).await;
}

// === impl Follow ===

impl Follow {
    async fn run(&mut self, found: &mut mpsc::Receiver<(usize, Found, String)>, asked: &Notify) {
        let mut reports = time::interval(REPORT_INTERVAL);
        loop {
            tokio::select! {
                next = found.recv() => {
                    let Some((scope, found, version)) = next else { return };
                    self.take(scope, found, &version);
                    if self.exceeds_limit() {
                        return self.give_up().await;
                    }
                    let state = self.report().state;
                    if self.reported.as_ref().map(|r| r.state) != Some(state) {
                        self.send_report().await;
                    }
                }
                () = asked.notified() => self.send_report().await,
                _ = reports.tick() => {
                    let report = self.report();
                    if self.reported.as_ref() != Some(&report) {
                        self.send_report().await;
                    }
                }
            }
        }
    }

    fn take(&mut self, scope: usize, found: Found, version: &str) {
        let (id, sink) = (self.spec.id(), &self.shared.sink);
        match self.merger.take(scope, found) {
            Merged::Nothing => {}
            Merged::Apply(changes) => sink.apply(&id, changes, version),
            Merged::Complete(keys, changes) => {
                sink.complete(&id, &keys, changes, version);
                (self.state, self.detail) = (SyncState::Synced, String::new());
            }
            Merged::State(state, detail) => {
                sink.set_state(&id, state, &detail);
                (self.state, self.detail) = (state, detail);
            }
        }
    }

    /// Whether the first list is larger than it may be. What was complete once is never dropped
    /// for its size: a policy may be enforced that needs it.
    fn exceeds_limit(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.state == SyncState::Syncing
            && !self.shared.sink.is_complete(&self.spec.id())
            && self.shared.sink.totals(&self.spec.id()).bytes > limit
    }

    async fn give_up(&mut self) {
        let id = self.spec.id();
        let totals = self.shared.sink.totals(&id);
        let report = CollectionReport {
            state: CollectionState::TooLarge,
            detail: String::new(),
            objects: totals.objects,
            bytes: totals.bytes,
            largest: self.largest(),
        };
        warn!(
            objects = totals.objects,
            bytes = totals.bytes,
            "gave up a list that exceeds its limit"
        );
        self.shared.sink.close(&id);
        let event = ContextEvent::Collection(id, report);
        let _ = self.shared.events.send(event).await;
    }

    fn report(&self) -> CollectionReport {
        let id = self.spec.id();
        let totals = self.shared.sink.totals(&id);
        let complete = self.shared.sink.is_complete(&id);
        let state = match self.state {
            SyncState::Synced | SyncState::Stale if !complete => CollectionState::Syncing,
            SyncState::Syncing => CollectionState::Syncing,
            SyncState::Synced => CollectionState::Synced,
            SyncState::Stale => CollectionState::Stale,
            SyncState::Forbidden => CollectionState::Forbidden,
            SyncState::Absent => CollectionState::Absent,
        };
        CollectionReport {
            state,
            detail: self.detail.clone(),
            objects: totals.objects,
            bytes: totals.bytes,
            largest: Vec::new(),
        }
    }

    async fn send_report(&mut self) {
        let report = self.report();
        let mut sent = report.clone();
        if sent.state == CollectionState::Synced {
            sent.largest = self.largest();
        }
        self.reported = Some(report);
        let event = ContextEvent::Collection(self.spec.id(), sent);
        let _ = self.shared.events.send(event).await;
    }

    fn largest(&self) -> Vec<(String, u64)> {
        let sample = self.shared.sink.sample(&self.spec.id(), SAMPLE);
        largest_fields(&sample, self.shared.sink.totals(&self.spec.id()))
    }
}
