//! One leader's term: from a fresh list of everything to the loss of the Lease.

use std::time::Duration;

use assent_core::plane::Plane;
use assent_grpc::{
    Hub, Notice,
    notice::{self, BATCH},
};
use assent_k8s::{
    lease::Standing,
    status::{self, Written},
    watch::{self, Change},
};
use assent_modules::{store::Store, vet::Vetter};
use kube::Client;
use tokio::{
    sync::{mpsc, watch as channel},
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::{
    announce::{self, Announcer},
    collect,
    deed::Done,
    deeds::{Context, Deeds},
    machine::{Hands, Machine, Options, Parts},
    queries,
};
use crate::{
    control::Query,
    drive::Drive,
    metrics::Metrics,
    vetting::{Outcome, Vetting},
};

/// Changes of objects that may wait; the watches wait then.
const CHANGES: usize = 1_024;

/// How often everything is looked at again, for what no event told of.
const RESYNC_EVERY: Duration = Duration::from_secs(60);

/// What outlives a term.
pub(super) struct Office {
    pub(super) client: Client,
    pub(super) identity: String,
    pub(super) hub: Hub,
    pub(super) metrics: Metrics,
    pub(super) store: Store,
    pub(super) vetter: Vetter,
    pub(super) standing: Standing,
    /// How long a replica that left still counts.
    pub(super) grace: Duration,
    /// Told whenever something may have changed.
    pub(super) changes: channel::Sender<u64>,
    /// The certificate authorities to trust, PEM.
    pub(super) ca_bundle: channel::Receiver<Vec<u8>>,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) queries: mpsc::Receiver<Query>,
    /// 1 while everything is known.
    pub(super) synced: channel::Sender<bool>,
}

/// Everything that comes in during a term.
struct Inbox {
    changes: mpsc::Receiver<Change>,
    outcomes: mpsc::Receiver<Outcome>,
    done: mpsc::UnboundedReceiver<Done>,
    written: mpsc::Receiver<Written>,
    drive: channel::Receiver<u64>,
}

// === impl Office ===

impl Office {
    /// Leads until `over`. Whatever is under way then is cut off: the next leader finds it in
    /// the objects.
    pub(super) async fn lead(&mut self, options: Options, over: CancellationToken) {
        let mut tasks = JoinSet::new();
        // What streams of an earlier term said is void.
        while self.notices.try_recv().is_ok() {}
        let (machine, deeds, inbox) = match self.begin(options, &mut tasks).await {
            Ok(begun) => begun,
            Err(error) => {
                error!("failed to begin to lead: {error:#}");
                time::sleep(Duration::from_secs(1)).await;
                return;
            }
        };
        self.run(machine, deeds, inbox, over).await;
        self.synced.send_replace(false);
    }

    async fn begin(
        &self,
        options: Options,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<(Machine, Deeds, Inbox)> {
        let modules = self.store.list().await?.into_iter().collect();
        let (changes_tx, changes) = mpsc::channel(CHANGES);
        let (outcomes_tx, outcomes) = mpsc::channel(64);
        let (done_tx, done) = mpsc::unbounded_channel();
        let (written_tx, written) = mpsc::channel(64);
        let (statuses, statuses_rx) = mpsc::unbounded_channel();
        let mut watches = watch::spawn(&self.client, &options.namespace, &watch::ALL, &changes_tx);
        tasks.spawn(async move { while watches.join_next().await.is_some() {} });
        tasks.spawn(status::run(self.client.clone(), statuses_rx, written_tx));
        let (announcer, told) = Announcer::new();
        tasks.spawn(announce::write(
            self.client.clone(),
            self.identity.clone(),
            told,
        ));
        let vetting = Vetting::new(
            self.store.clone(),
            self.vetter.clone(),
            self.metrics.clone(),
            outcomes_tx,
        );
        let drive = Drive::new(
            Plane::new(self.grace),
            Hands::default(),
            self.hub.clone(),
            self.metrics.clone(),
        );
        let inbox = Inbox {
            changes,
            outcomes,
            done,
            written,
            drive: drive.changes(),
        };
        let context = Context {
            client: self.client.clone(),
            namespace: options.namespace.clone(),
            standing: self.standing.clone(),
        };
        let machine = Machine::new(Parts {
            drive,
            hub: self.hub.clone(),
            options,
            announcer,
            statuses,
            modules,
        });
        let deeds = Deeds::new(context, vetting, done_tx);
        Ok((machine, deeds, inbox))
    }

    async fn run(
        &mut self,
        mut machine: Machine,
        mut deeds: Deeds,
        mut inbox: Inbox,
        over: CancellationToken,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut resync = time::interval(RESYNC_EVERY);
        let mut collecting = collect::ticks();
        resync.reset();
        loop {
            machine.settle();
            for deed in machine.take_deeds() {
                deeds.perform(deed);
            }
            self.tell(&machine, &mut inbox);
            tokio::select! {
                () = over.cancelled() => break,
                Some(change) = inbox.changes.recv() => {
                    machine.changed(change);
                    // What came in meanwhile is part of the same decision.
                    while let Ok(change) = inbox.changes.try_recv() {
                        machine.changed(change);
                    }
                }
                _ = self.notices.recv_many(&mut batch, BATCH) => {
                    // A thousand acknowledgements of one push are one decision.
                    notice::gather(&mut self.notices, &mut batch).await;
                    debug!(n = batch.len(), "notices");
                    for notice in batch.drain(..) {
                        machine.drive.notice(notice);
                    }
                    machine.touch();
                }
                Some(outcome) = inbox.outcomes.recv() => machine.vetted(outcome),
                Some(done) = inbox.done.recv() => machine.done(done),
                Some(written) = inbox.written.recv() => {
                    self.metrics.count_write(written.result.is_ok());
                    machine.status_written(written);
                }
                Some(query) = self.queries.recv() => queries::answer(&mut machine, query),
                Ok(()) = self.ca_bundle.changed() => {
                    let bundle = self.ca_bundle.borrow_and_update().clone();
                    machine.trust(bundle);
                }
                _ = resync.tick() => machine.resync(),
                _ = collecting.tick() => self.collect(&machine),
                () = sleep_until(machine.wake_at()) => machine.touch(),
            }
        }
        info!("the term is over");
    }

    fn tell(&self, machine: &Machine, inbox: &mut Inbox) {
        if inbox.drive.has_changed().unwrap_or(false) {
            inbox.drive.borrow_and_update();
            self.changes.send_modify(|n| *n += 1);
        }
        let synced = machine.is_restored();
        self.synced
            .send_if_modified(|now| std::mem::replace(now, synced) != synced);
        let uninjected = machine.uninjected();
        self.metrics
            .uninjected_pods
            .set(i64::try_from(uninjected).unwrap_or(i64::MAX));
    }

    /// Removes modules that no stored revision names.
    fn collect(&self, machine: &Machine) {
        if !machine.is_restored() {
            return;
        }
        let (store, named) = (self.store.clone(), machine.index.named_modules());
        tokio::spawn(async move { collect::unnamed(&store, named).await });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
