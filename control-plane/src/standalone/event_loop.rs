//! The event loop: everything that happens goes through here, one event after the other.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use assent_controller::{Action, Controller, Now, contexts::ContextEvent};
use assent_core::{Digest, PolicyKey, policy::DEFAULT_SERVER};
use assent_grpc::{
    Hub, StreamEvent,
    events::{self, BATCH},
    rollout,
    status::Page,
};
use assent_local::{LocalApi, LocalBackend, directory::Scan, dispatch::Table};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{endpoints::Endpoints, fleet, http::Readiness, services, view};
use crate::{
    control::Query,
    metrics::Metrics,
    runner::{RollbackAnswer, Runner, client_status, server_names},
    vetting::{self, Artefacts, COLLECT_EVERY},
    view::PolicyObject,
};

/// The delay before a failed write of the state is retried.
const WRITE_RETRY: Duration = Duration::from_secs(1);

const NOT_READ: &str = "the directory of policies has not been read yet";

/// The control plane with its inputs and outputs.
pub(super) struct EventLoop {
    pub(super) controller: Controller<LocalBackend>,
    pub(super) api: LocalApi,
    pub(super) runner: Runner,
    pub(super) metrics: Metrics,
    pub(super) hub: Hub,
    pub(super) artefacts: Artefacts,
    /// Evaluators in this process.
    pub(super) replicas: u16,
    pub(super) endpoints: Endpoints,
    pub(super) routes: watch::Sender<Table>,
    pub(super) readiness: watch::Sender<Readiness>,
    pub(super) scans: mpsc::Receiver<Scan>,
    pub(super) streams: mpsc::Receiver<StreamEvent>,
    pub(super) vetted: mpsc::Receiver<vetting::Report>,
    pub(super) context_events: mpsc::Receiver<ContextEvent>,
    pub(super) queries: mpsc::Receiver<Query>,
    /// What the dispatch table was made of.
    pub(super) routed: Vec<(PolicyKey, String)>,
}

// === impl EventLoop ===

impl EventLoop {
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut collect = time::interval(COLLECT_EVERY);
        let mut durable = self.settle();
        loop {
            let wake = self.wake_at(durable);
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(scan) = self.scans.recv() => self.scanned(&scan),
                // Servers are known once the directory was read; streams are held until then.
                _ = self.streams.recv_many(&mut batch, BATCH), if self.api.is_read() => {
                    // A thousand acknowledgements of one push are one decision.
                    events::gather(&mut self.streams, &mut batch).await;
                    debug!(n = batch.len(), "stream events");
                    let now = self.runner.now();
                    for event in batch.drain(..) {
                        self.controller.stream(now, event);
                    }
                }
                Some(outcome) = self.vetted.recv() => {
                    let outcome = self.runner.vetted(outcome);
                    self.controller.outcome(self.runner.now(), outcome);
                }
                Some(event) = self.context_events.recv() => {
                    self.controller.context(self.runner.now(), event);
                }
                Some(query) = self.queries.recv() => {
                    // A read changes nothing, and must not wake those who wait for changes.
                    if !self.answer(query) {
                        continue;
                    }
                }
                _ = collect.tick() => self.collect(),
                () = sleep_until(wake) => {}
            }
            durable = self.settle();
        }
        Ok(())
    }

    /// Decides, stores, publishes; then points the dispatch at the active revisions. False if
    /// the state could not be written: nothing is published then.
    fn settle(&mut self) -> bool {
        let now = self.runner.now();
        let mut answers = Vec::new();
        for action in self.api.settle(&mut self.controller, now) {
            match action {
                Action::AnswerRollback(..) => answers.push(action),
                action => self.perform(action),
            }
        }
        // Writes are few and small, but they wait for the disk.
        let published = tokio::task::block_in_place(|| self.publish(now));
        let durable = published.is_some();
        for action in answers {
            match action {
                // Only a rollback that is on disk is confirmed.
                Action::AnswerRollback(ticket, Ok(_)) if !durable => {
                    self.runner
                        .reject(ticket, "the state cannot be written; retrying");
                }
                action => self.perform(action),
            }
        }
        for action in published.into_iter().flatten() {
            self.perform(action);
        }
        if durable && self.api.is_read() {
            self.route();
            self.update_readiness();
        }
        self.endpoints.refresh(self.controller.plane());
        self.runner.notify();
        durable
    }

    fn scanned(&mut self, scan: &Scan) {
        let now = self.runner.now();
        let was_read = self.api.is_read();
        for change in self.api.apply_scan(now.date, scan) {
            self.controller.change(now, change);
        }
        if self.api.is_read() && !was_read {
            info!("read the directory of policies");
            let replicas = fleet::names(self.replicas);
            self.controller
                .expect_replicas(now, DEFAULT_SERVER, replicas);
        }
    }

    fn perform(&mut self, action: Action<LocalBackend>) {
        if let Some(action) = self.runner.perform(action) {
            error!(?action, "an action was not performed");
        }
    }

    fn publish(&mut self, now: Now) -> Option<Vec<Action<LocalBackend>>> {
        let writes = self.api.store().has_changes();
        let published = self.api.publish(&mut self.controller, now);
        if writes {
            self.metrics.count_write(published.is_ok());
        }
        if let Err(error) = &published {
            warn!("failed to write the state, nothing is published; retrying: {error}");
        }
        published.ok()
    }

    fn wake_at(&self, durable: bool) -> Option<Instant> {
        let deadline = self.controller.deadline();
        let deadline = deadline.map(|at| self.runner.clock.instant(at));
        let retry = (!durable).then(|| Instant::now() + WRITE_RETRY);
        [deadline, retry].into_iter().flatten().min()
    }

    /// Reports how far the start is. It is called after the dispatch table was replaced, so that
    /// no request is answered without a policy that has just become active.
    fn update_readiness(&self) {
        let readiness = match self.controller.is_ready() {
            _ if self.api.is_all_broken() => Readiness::Broken,
            true => Readiness::Ready,
            false => Readiness::Vetting,
        };
        self.readiness
            .send_if_modified(|before| std::mem::replace(before, readiness) != readiness);
    }

    /// Replaces the dispatch table if a pointer to an active revision changed.
    fn route(&mut self) {
        let routes = self.api.routes();
        if self.routed != routes {
            self.routes.send_replace(self.api.table());
            self.routed = routes;
        }
    }

    /// Answers a query; true if something may have changed. A caller that has left needs no
    /// answer.
    fn answer(&mut self, query: Query) -> bool {
        let now = self.runner.now();
        match query {
            Query::Objects(answer) => {
                let _ = answer.send(self.objects());
            }
            Query::Problems(answer) => {
                let problems = self.api.unnamed_problems().iter();
                let _ = answer.send(problems.map(view::manifest_problem).collect());
            }
            Query::Measure(answer) => {
                self.runner.measure(&self.controller);
                let _ = answer.send(());
            }
            Query::ClientStatus(query, answer) => {
                let unknown = match query.server == DEFAULT_SERVER {
                    true => services::never_valid(&self.api, &query),
                    false => Vec::new(),
                };
                let page = match self.controller.is_restored() {
                    true => client_status(&mut self.controller, now, &query, unknown),
                    // The default server exists whatever the directory holds.
                    false => (query.server == DEFAULT_SERVER).then(|| Page {
                        version: None,
                        replicas: Vec::new(),
                        policies: unknown,
                        next: None,
                        now: now.at,
                        at: now.date.into(),
                    }),
                };
                let _ = answer.send(page);
            }
            Query::Servers(answer) => {
                let mut names = server_names(&self.controller);
                // The default server exists whatever the directory holds.
                if !names.iter().any(|name| name == DEFAULT_SERVER) {
                    names.insert(0, DEFAULT_SERVER.to_owned());
                }
                let _ = answer.send(names);
            }
            Query::Revisions(key, answer) => {
                let record = self.api.store().get(&key);
                let _ = answer.send(record.map(services::revisions));
            }
            Query::Undo(key, to, answer) => {
                self.request_rollback(&key, to, answer);
                return true;
            }
        }
        false
    }

    fn request_rollback(
        &mut self,
        key: &PolicyKey,
        to: assent_api::parse::Rollback,
        answer: RollbackAnswer,
    ) {
        if !self.controller.is_restored() {
            let _ = answer.send(Err(rollout::Error::Unavailable(NOT_READ.into())));
            return;
        }
        let ticket = self.runner.ticket(answer);
        let now = self.runner.now();
        self.controller.request_rollback(now, key, to, Some(ticket));
    }

    /// Every policy as an object, those that never were valid included.
    fn objects(&mut self) -> Vec<PolicyObject> {
        let now = self.runner.now();
        let never = self.api.never_valid();
        let mut objects: BTreeMap<PolicyKey, PolicyObject> = never
            .map(|(key, problem, since)| (key.clone(), view::never_valid(key, problem, since)))
            .collect();
        let live = self.api.store().records().filter(|r| !r.deleting);
        for record in live {
            let id = view::policy_id(record);
            let status = self.controller.policy_status(now, &id);
            let status = status.unwrap_or_else(|| record.stored_status());
            objects.insert(record.key(), view::object(record, status));
        }
        objects.into_values().collect()
    }

    /// Removes modules that no stored revision names, and makes missing artefacts of those that
    /// one does.
    fn collect(&self) {
        let records = self.api.store().records();
        let stored = records
            .flat_map(|r| &r.revisions)
            .filter_map(|r| r.module_digest.parse().ok());
        let mut named: HashSet<Digest> = stored.collect();
        named.extend(self.hub.named_modules());
        let artefacts = self.artefacts.clone();
        artefacts.want(named.iter().copied());
        tokio::spawn(async move { artefacts.collect(named).await });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
