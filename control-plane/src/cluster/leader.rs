//! The leader's loop: from a complete list of all objects to the loss of the Lease.

use std::{collections::HashSet, sync::Arc, time::Duration};

use assent_controller::{Config, Controller, Outcome, contexts::ContextEvent};
use assent_core::Digest;
use assent_grpc::{
    Hub, StreamEvent,
    events::{self, BATCH},
};
use assent_k8s::{
    Client, Cluster,
    context::Follower,
    convert::Converter,
    events::EventRecorder,
    executor::{self, Executor},
    lease::LeaderCheck,
    status::{StatusWriter, Written},
    watch::{self, Change},
};
use tokio::{
    sync::{mpsc, watch as channel},
    task::JoinSet,
    time::{self, Instant},
};
use tracing::{debug, error};

use super::sources;
use crate::{
    control::Query,
    metrics::Metrics,
    runner::Runner,
    vetting::{self, Artefacts, COLLECT_EVERY, Vetting},
};

/// Changes of objects that may wait; watches pause while the channel is full.
const MAX_CHANGES: usize = 1_024;

/// Outcomes that may wait; tasks pause while the channel is full.
const MAX_OUTCOMES: usize = 256;

/// How often everything is checked again, for what no event reported.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// What outlives a leadership.
pub(super) struct LeaderContext {
    pub(super) client: Client,
    /// The control plane's namespace.
    pub(super) namespace: String,
    /// Namespaces whose ConfigMaps may hold policies.
    pub(super) policy_namespaces: Vec<String>,
    /// The name of this process in the election and in events.
    pub(super) identity: String,
    pub(super) hub: Hub,
    pub(super) metrics: Metrics,
    /// The module store, and what compiles its modules.
    pub(super) artefacts: Artefacts,
    pub(super) leader_check: LeaderCheck,
    /// Notified whenever something may have changed.
    pub(super) changes: channel::Sender<u64>,
    /// The certificate authorities to trust, PEM.
    pub(super) ca_bundle: channel::Receiver<Vec<u8>>,
    pub(super) streams: mpsc::Receiver<StreamEvent>,
    pub(super) queries: mpsc::Receiver<Query>,
    /// True while a leader has read all objects.
    pub(super) synced: channel::Sender<bool>,
    /// Follows objects that policies read, whoever leads.
    pub(super) follower: Follower,
    pub(super) context_events: mpsc::Receiver<ContextEvent>,
}

/// One leadership. Dropped, it cuts off whatever is under way: the next leader finds it in the
/// objects.
pub(super) struct LeaderLoop<'a> {
    context: &'a mut LeaderContext,
    pub(super) controller: Controller<Cluster>,
    pub(super) runner: Runner,
    executor: Executor,
    converter: Arc<Converter>,
    changes: mpsc::Receiver<Change>,
    outcomes: mpsc::Receiver<Outcome<Cluster>>,
    vetted: mpsc::Receiver<vetting::Report>,
    written: mpsc::Receiver<Written>,
    /// Watches, the status writer and the event writer.
    _tasks: JoinSet<()>,
}

// === impl LeaderContext ===

impl LeaderContext {
    /// Leads for as long as it is polled.
    pub(super) async fn lead(&mut self, cluster: Cluster, config: Config) {
        // Events of streams to an earlier leader say nothing about this one.
        while self.streams.try_recv().is_ok() {}
        // What is followed is reported again when this leader asks for it.
        while self.context_events.try_recv().is_ok() {}
        match LeaderLoop::start(self, cluster, config).await {
            Ok(mut leader) => leader.run().await,
            Err(error) => {
                error!("failed to begin to lead: {error:#}");
                time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

// === impl LeaderLoop ===

impl<'a> LeaderLoop<'a> {
    async fn start(
        context: &'a mut LeaderContext,
        cluster: Cluster,
        config: Config,
    ) -> anyhow::Result<Self> {
        let modules = context
            .artefacts
            .store()
            .list()
            .await?
            .into_iter()
            .collect();
        let (changes_tx, changes) = mpsc::channel(MAX_CHANGES);
        let (outcomes_tx, outcomes) = mpsc::channel(MAX_OUTCOMES);
        let (vetted_tx, vetted) = mpsc::channel(64);
        let (written_tx, written) = mpsc::channel(64);
        let (client, namespace) = (context.client.clone(), context.namespace.clone());
        let mut tasks = watch::spawn(&client, &namespace, &config.kinds, &changes_tx);
        let (writer, statuses) = StatusWriter::new(client.clone());
        tasks.spawn(writer.run(written_tx));
        let (recorder, events) = EventRecorder::new();
        tasks.spawn(events.write(client.clone(), context.identity.clone()));
        let vetting = Vetting::new(context.artefacts.clone(), vetted_tx);
        let runner = Runner::new(
            context.hub.clone(),
            context.metrics.clone(),
            vetting,
            sources::module_access(
                &client,
                &namespace,
                config.parse.settings_key.clone(),
                &context.policy_namespaces,
            ),
            Arc::new(context.follower.clone()),
        );
        let converter = Arc::new(Converter::new(&namespace, config.parse.clone()));
        let leader_check = context.leader_check.clone();
        let executor = executor::Context {
            client,
            namespace,
            converter: converter.clone(),
            is_leader: Arc::new(move || leader_check.leads().is_some()),
        };
        Ok(Self {
            context,
            controller: Controller::new(cluster, config, modules),
            runner,
            executor: Executor::new(executor, outcomes_tx, recorder, statuses),
            converter,
            changes,
            outcomes,
            vetted,
            written,
            _tasks: tasks,
        })
    }

    async fn run(&mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut resync = time::interval(RESYNC_INTERVAL);
        let mut collecting = time::interval(COLLECT_EVERY);
        resync.reset();
        collecting.reset();
        loop {
            self.settle();
            // A read changes nothing and must not wake those who wait for changes.
            while !self.next(&mut batch, &mut resync, &mut collecting).await {}
        }
    }

    /// Takes in the next thing that happens; false if it cannot change a decision.
    async fn next(
        &mut self,
        batch: &mut Vec<StreamEvent>,
        resync: &mut time::Interval,
        collecting: &mut time::Interval,
    ) -> bool {
        let deadline = self.controller.deadline();
        let deadline = deadline.map(|at| self.runner.clock.instant(at));
        tokio::select! {
            Some(change) = self.changes.recv() => {
                self.change(change);
                // What came in meanwhile is part of the same decision.
                while let Ok(change) = self.changes.try_recv() {
                    self.change(change);
                }
            }
            _ = self.context.streams.recv_many(batch, BATCH) => {
                // A thousand acknowledgements of one push are one decision.
                events::gather(&mut self.context.streams, batch).await;
                debug!(n = batch.len(), "stream events");
                let now = self.runner.now();
                for event in batch.drain(..) {
                    self.controller.stream(now, event);
                }
            }
            Some(outcome) = self.outcomes.recv() => {
                self.controller.outcome(self.runner.now(), outcome);
            }
            Some(outcome) = self.vetted.recv() => {
                let outcome = self.runner.vetted(outcome);
                self.controller.outcome(self.runner.now(), outcome);
            }
            Some(written) = self.written.recv() => {
                self.context.metrics.count_write(written.result.is_ok());
                let outcome = self.executor.status_written(written);
                self.controller.outcome(self.runner.now(), outcome);
            }
            Some(event) = self.context.context_events.recv() => {
                let now = self.runner.now();
                self.controller.context(now, event);
                while let Ok(event) = self.context.context_events.try_recv() {
                    self.controller.context(now, event);
                }
            }
            Some(query) = self.context.queries.recv() => return self.answer(query),
            Ok(()) = self.context.ca_bundle.changed() => {
                let bundle = self.context.ca_bundle.borrow_and_update().clone();
                self.controller.backend.defaults.ca_bundle = bundle;
                self.controller.check_all_routes(self.runner.now());
            }
            _ = resync.tick() => self.controller.resync(self.runner.now()),
            _ = collecting.tick() => {
                self.collect();
                return false;
            }
            () = sleep_until(deadline) => {}
        }
        true
    }

    /// Decides on everything that came in, and begins what follows from it. The plane advances
    /// only with outcomes, so whatever it publishes is stored.
    fn settle(&mut self) {
        for action in self.controller.settle(self.runner.now()) {
            let other = self.runner.perform(action);
            let other = other.and_then(|action| self.executor.perform(action));
            if let Some(action) = other {
                error!(?action, "an action was not performed");
            }
        }
        self.context.changes.send_modify(|n| *n += 1);
        let synced = self.controller.is_restored();
        let is_synced = &self.context.synced;
        let changed = is_synced.send_if_modified(|now| std::mem::replace(now, synced) != synced);
        if changed && synced {
            // What an earlier leader vetted, this process has never compiled.
            self.context.artefacts.want(self.named_modules());
        }
    }

    fn change(&mut self, change: Change) {
        if let Some(change) = self.converter.change(change) {
            self.controller.change(self.runner.now(), change);
        }
    }

    /// Brings gauges up to date.
    pub(super) fn measure(&mut self) {
        self.runner.measure(&self.controller);
        let uninjected = i64::try_from(self.controller.uninjected_pods());
        let gauge = &self.context.metrics.uninjected_pods;
        gauge.set(uninjected.unwrap_or(i64::MAX));
        let foreign = i64::try_from(self.controller.objects().foreign_revisions());
        let gauge = &self.context.metrics.foreign_revisions;
        gauge.set(foreign.unwrap_or(i64::MAX));
    }

    /// Removes modules that no stored revision names, and makes missing artefacts of those that
    /// one does.
    fn collect(&self) {
        if !self.controller.is_restored() {
            return;
        }
        let named = self.named_modules();
        let artefacts = self.context.artefacts.clone();
        artefacts.want(named.iter().copied());
        tokio::spawn(async move { artefacts.collect(named).await });
    }

    /// The modules of stored revisions, and of those that replicas are still told to serve.
    fn named_modules(&self) -> HashSet<Digest> {
        let mut named = self.controller.objects().named_modules();
        named.extend(self.context.hub.named_modules());
        named
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
