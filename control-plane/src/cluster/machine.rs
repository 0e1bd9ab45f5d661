//! What a cluster, vetting and replicas bring, turned into events for the plane; and what the
//! plane asks for, turned into deeds.
//!
//! One leader's term has one machine. It starts from a fresh list of everything, so that any
//! control plane decides the same; whatever it was in the middle of is found again in the
//! objects.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, SystemTime},
};

use assent_api::parse;
use assent_core::{
    Digest, PolicyKey,
    plane::Event,
    rollout::{Input, Output, PolicyId},
};
use assent_grpc::Hub;
use assent_k8s::{
    index::{Index, Touched},
    status::{Target, Wanted},
    watch::{self, Change},
    webhook::{Reach, Site},
    workload,
};
use tokio::{sync::mpsc, time::Instant};
use tracing::info;

use super::{
    announce::Announcer,
    deed::{Deed, Done},
};
use crate::{
    drive::{Drive, Performer},
    jobs::Jobs,
    vetting::Outcome,
};

mod flips;
mod history;
mod policies;
mod servers;
mod statuses;
#[cfg(test)]
mod tests;

/// The state of one leader's term.
pub(super) struct Machine {
    pub(super) drive: Drive<Hands>,
    pub(super) hub: Hub,
    pub(super) index: Index,
    pub(super) options: Options,
    pub(super) jobs: Jobs,
    /// What is to be done, in this order.
    deeds: Vec<Deed>,
    announcer: Announcer,
    statuses: mpsc::UnboundedSender<(Target, Option<Wanted>)>,
    /// Modules that the store has.
    pub(super) modules: HashSet<Digest>,
    /// All objects were listed, and what is stored was taken over.
    restored: bool,
    /// Webhook configurations that are being repaired.
    repairing: BTreeSet<PolicyKey>,
    /// Policies whose webhook is being written.
    flipping: BTreeSet<PolicyId>,
    /// Revisions that are being stored, by generation.
    storing: BTreeMap<PolicyId, i64>,
    /// Revisions that are being removed, by namespace and name.
    dropping: BTreeSet<(String, String)>,
    /// Rollbacks that are being written.
    undoing: BTreeMap<PolicyKey, Vec<Undo>>,
    /// Servers whose webhooks are being removed.
    ending: BTreeSet<String>,
    /// What of a server was applied last, and what came of it.
    applied: BTreeMap<String, servers::Applied>,
    /// Pods without their evaluator that were deleted.
    replaced: BTreeSet<String>,
    /// Since when the active revision is active, where this term saw it.
    since: BTreeMap<PolicyId, (String, jiff::Timestamp)>,
    /// What was told of policies by events.
    told: BTreeMap<PolicyId, statuses::Told>,
    dirty: bool,
    next_pass: Instant,
}

/// How a waiting undo is answered.
pub(super) type Undo =
    tokio::sync::oneshot::Sender<Result<(i64, i64), assent_grpc::rollout::Error>>;

/// What does not change in a term.
pub(super) struct Options {
    /// The control plane's namespace.
    pub(super) namespace: String,
    /// How policies are read.
    pub(super) parse: parse::Options,
    /// What all webhooks have in common; its CA bundle follows rotations.
    pub(super) site: Site,
    /// Where evaluators are, in place of their Service.
    pub(super) base_url: Option<String>,
    /// Every drain, where not as long as usual.
    pub(super) drain: Option<Duration>,
    /// How evaluators are run; none where others do that.
    pub(super) workload: Option<workload::Options>,
    /// Whether module URLs may lead to addresses of this machine, for development.
    pub(super) reach: assent_modules::pull::Reach,
}

/// Keeps what the plane asks for until the machine, which knows the objects, gets to it.
#[derive(Default)]
pub(super) struct Hands(Vec<(PolicyId, Output)>);

/// How often statuses are computed at most: one pass looks at every policy.
const PASS_EVERY: Duration = Duration::from_millis(200);

// === impl Machine ===

impl Machine {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            drive,
            hub,
            options,
            announcer,
            statuses,
            modules,
        } = parts;
        Self {
            index: Index::new(options.parse.clone()),
            drive,
            hub,
            options,
            jobs: Jobs::default(),
            deeds: Vec::new(),
            announcer,
            statuses,
            modules,
            restored: false,
            repairing: BTreeSet::new(),
            flipping: BTreeSet::new(),
            storing: BTreeMap::new(),
            dropping: BTreeSet::new(),
            undoing: BTreeMap::new(),
            ending: BTreeSet::new(),
            applied: BTreeMap::new(),
            replaced: BTreeSet::new(),
            since: BTreeMap::new(),
            told: BTreeMap::new(),
            dirty: true,
            next_pass: Instant::now(),
        }
    }

    /// Takes in what happened to objects.
    pub(super) fn changed(&mut self, change: Change) {
        let touched = self.index.take(change);
        if self.restored {
            self.look(touched);
        } else if self.index.is_synced(&watch::ALL) {
            self.restore();
        }
    }

    /// Takes in what became of a deed.
    pub(super) fn done(&mut self, done: Done) {
        self.dirty = true;
        match done {
            Done::Stored(id, policy, object) => self.stored(id, policy, *object),
            Done::NotStored(id, generation, failed) => self.not_stored(&id, generation, failed),
            Done::Pods(id, to, pods) => self.pods_read(id, to, pods),
            Done::Flipped(id, revision, pointed) => self.flipped(id, revision, pointed),
            Done::FlipFailed(id, revision, error) => self.flip_failed(id, &revision, &error),
            Done::Repaired(key, pointed) => self.repaired(&key, pointed),
            Done::Retired(id, revision) => self.retired(id, revision),
            Done::Unrouted(id) => {
                self.drive.apply(Event::Policy(id, Input::Unrouted));
            }
            Done::ServerUnrouted(server) => self.server_unrouted(&server),
            Done::ServerApplied(server, result) => self.server_applied(&server, result),
            Done::RolledBack(key, result) => self.rolled_back(&key, result),
            Done::Dropped(names) => self.dropping.retain(|name| !names.contains(name)),
            Done::Nothing => {}
        }
    }

    /// Takes in what became of a vetting job.
    pub(super) fn vetted(&mut self, outcome: Outcome) {
        self.dirty = true;
        let Outcome {
            id,
            generation,
            result,
        } = outcome;
        self.jobs.ended(&id, generation);
        match result {
            Ok(module) => self.accepted(&id, generation, &module),
            Err(failed) => self.refused(&id, generation, failed),
        }
    }

    /// Decides, asks for deeds, publishes. To be called after whatever was taken in.
    pub(super) fn settle(&mut self) {
        if self.restored {
            self.expect_all();
            self.replace_misfits();
            self.work();
        }
        self.drive.settle();
        self.perform();
        self.pass();
    }

    /// What is to be done since it was asked last.
    pub(super) fn take_deeds(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.deeds)
    }

    /// The plane's wishes, as deeds.
    fn perform(&mut self) {
        loop {
            let asked = std::mem::take(&mut self.drive.performer.0);
            if asked.is_empty() {
                return;
            }
            self.dirty = true;
            for (id, output) in asked {
                match output {
                    Output::Flip { to, .. } => self.flip(id, to),
                    Output::Retire(revision) => self.retire(id, revision),
                    Output::Unroute => self.unroute(id),
                    Output::Release => self.release(&id),
                    Output::Enforced(_) => {}
                }
            }
        }
    }

    /// When something is due that no event brings.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let clock = self.drive.clock;
        let deadline = self.drive.plane.deadline().map(|at| clock.instant(at));
        let pass = self.dirty.then_some(self.next_pass);
        [deadline, self.jobs.next_retry(), pass]
            .into_iter()
            .flatten()
            .min()
    }

    /// Something happened that may change a status.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    /// Pods that asked for an evaluator and have none.
    pub(super) fn uninjected(&self) -> usize {
        let servers = self.index.servers().map(|s| s.meta.name.as_str());
        let pods = servers.flat_map(|server| self.index.pods(server));
        pods.filter(|p| !p.injected && !p.meta.deleting).count()
    }

    /// Whether every object was seen and what is stored was taken over.
    pub(super) fn is_restored(&self) -> bool {
        self.restored
    }

    /// The certificate authority changed: every webhook must trust the new one.
    pub(super) fn trust(&mut self, ca_bundle: Vec<u8>) {
        if self.options.site.ca_bundle == ca_bundle {
            return;
        }
        self.options.site.ca_bundle = ca_bundle;
        self.repair_all();
    }

    /// Looks at everything again: whatever was missed or edited is repaired.
    pub(super) fn resync(&mut self) {
        if !self.restored {
            return;
        }
        self.repair_all();
        let servers: Vec<String> = self.index.servers().map(|s| s.meta.name.clone()).collect();
        for server in servers {
            self.apply_server(&server, true);
        }
        self.dirty = true;
    }

    /// Takes over what is stored, once everything was listed.
    fn restore(&mut self) {
        let servers: Vec<String> = self.index.servers().map(|s| s.meta.name.clone()).collect();
        for server in &servers {
            self.observe_server(server);
        }
        let policies: Vec<PolicyKey> = self.index.policies().map(|p| p.key.clone()).collect();
        for key in &policies {
            self.observe_policy(key);
        }
        self.restored = true;
        info!(
            policies = policies.len(),
            servers = servers.len(),
            "read all objects"
        );
        self.drive.apply(Event::Synced);
        self.remove_orphans();
        self.repair_all();
        self.restore_modules();
    }

    fn look(&mut self, touched: Vec<Touched>) {
        for touched in touched.into_iter().collect::<BTreeSet<_>>() {
            self.dirty = true;
            match touched {
                Touched::Policy(key) => self.observe_policy(&key),
                Touched::Webhook(key) => self.check_webhook(&key),
                Touched::Revision(key) => self.check_revisions(&key),
                Touched::Server(server) => self.observe_server(&server),
                Touched::Workload(server) => self.apply_server(&server, true),
                // Required replicas are computed before anything is decided.
                Touched::Pods(_) => {}
            }
        }
    }

    fn reach(&self, server: &str) -> Reach {
        match &self.options.base_url {
            Some(base) => Reach::Url(base.clone()),
            None => Reach::Service {
                namespace: self.options.namespace.clone(),
                name: assent_k8s::names::server(server),
                port: 443,
            },
        }
    }
}

// === impl Hands ===

impl Performer for Hands {
    fn perform(&mut self, id: &PolicyId, output: &Output, _now: SystemTime) -> Vec<Event> {
        self.0.push((id.clone(), output.clone()));
        Vec::new()
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        // The plane goes on only when a deed is done: whatever it publishes is stored.
        Ok(())
    }
}

/// What a machine is made of.
pub(super) struct Parts {
    pub(super) drive: Drive<Hands>,
    pub(super) hub: Hub,
    pub(super) options: Options,
    pub(super) announcer: Announcer,
    pub(super) statuses: mpsc::UnboundedSender<(Target, Option<Wanted>)>,
    pub(super) modules: HashSet<Digest>,
}
