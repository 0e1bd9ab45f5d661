//! Performs the actions that are the same in a cluster and in standalone mode: modules,
//! streams, metrics, and answers to rollback requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use assent_api::ParsedServer;
use assent_controller::{
    Action, Backend, Controller, Now, Outcome, VetJob,
    action::{FetchModule, Measurement, RollbackError, VerifySignature},
};
use assent_core::{
    Snapshot,
    fleet::ReplicaState,
    rollout::PolicyId,
    status::{ConditionStatus, ConditionType},
};
use assent_grpc::{Hub, rollout};
use assent_oci::AddressPolicy;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    clock::Clock,
    context::{self, ContextSource},
    metrics::{Metrics, POLICY_STATES, ServerLabel, StateLabels},
    vetting::{self, DeclaredSources, Job, SettingsAccess, SignatureJob, Vetting},
};

mod status;
#[cfg(test)]
mod tests;

pub(crate) use status::{client_status, server_names};

/// Where the answer to a rollback request goes: the generation that was copied and the new one.
pub(crate) type RollbackAnswer = oneshot::Sender<Result<(i64, i64), rollout::Error>>;

/// What a PolicyServer declares about the registries that its modules come from.
pub(crate) type SourcesOf = Arc<dyn Fn(Option<&ParsedServer>) -> DeclaredSources + Send + Sync>;

/// How modules are fetched.
#[derive(Clone)]
pub(crate) struct ModuleAccess {
    /// Where relative `file://` URLs start; `None` if files are not allowed.
    pub(crate) files: Option<PathBuf>,
    /// Addresses that may be fetched from, besides declared ones.
    pub(crate) addresses: AddressPolicy,
    /// Declared sources.
    pub(crate) sources: SourcesOf,
    /// Settings that come from Secrets; `None` if there are none.
    pub(crate) settings: Option<SettingsAccess>,
}

/// Performs actions on everything that both modes have.
pub(crate) struct Runner {
    /// The time.
    pub(crate) clock: Clock,
    hub: Hub,
    metrics: Metrics,
    vetting: Vetting,
    access: ModuleAccess,
    /// Follows objects that policies read.
    context: Arc<dyn ContextSource>,
    /// Vetting jobs that run; dropping a guard cancels the job and its process.
    jobs: HashMap<PolicyId, (i64, DropGuard)>,
    /// Cancels what must not outlive this runner.
    _running: DropGuard,
    stopped: CancellationToken,
    rollbacks: HashMap<u64, RollbackAnswer>,
    last_ticket: u64,
    /// Counts changes, for readers that wait for one.
    changes: watch::Sender<u64>,
    /// PolicyServers that have gauges.
    measured: BTreeSet<String>,
}

// === impl Runner ===

impl Runner {
    /// A runner that has performed nothing. `vetting` reports through its own channel;
    /// [`Runner::vetted`] turns its reports into outcomes.
    pub(crate) fn new(
        hub: Hub,
        metrics: Metrics,
        vetting: Vetting,
        access: ModuleAccess,
        context: Arc<dyn ContextSource>,
    ) -> Self {
        let stopped = CancellationToken::new();
        Self {
            clock: Clock::start(),
            hub,
            metrics,
            vetting,
            access,
            context,
            jobs: HashMap::new(),
            _running: stopped.clone().drop_guard(),
            stopped,
            rollbacks: HashMap::new(),
            last_ticket: 0,
            changes: watch::Sender::new(0),
            measured: BTreeSet::new(),
        }
    }

    /// The time of a decision.
    pub(crate) fn now(&self) -> Now {
        let at = self.clock.now();
        Now {
            at,
            date: self.clock.timestamp(at),
        }
    }

    /// Notified whenever something may have changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something may have changed.
    pub(crate) fn notify(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Performs an action, or returns it if it depends on the mode.
    pub(crate) fn perform<B: Backend>(&mut self, action: Action<B>) -> Option<Action<B>> {
        match action {
            Action::Vet(job) => self.vet(*job),
            Action::CancelVet(id) => drop(self.jobs.remove(&id)),
            Action::FetchModule(module) => self.fetch(*module),
            Action::VerifySignature(check) => self.verify(*check),
            Action::CheckSettings(check) => {
                let access = self.access.settings.clone();
                self.vetting
                    .check_settings(*check, access, self.stopped.clone());
            }
            Action::AnswerRollback(ticket, result) => self.answer(ticket, result),
            Action::AddServer(server) => self.hub.add_server(&server),
            Action::RemoveServer(server) => self.hub.remove_server(&server),
            Action::FollowKinds(kinds) => self.context.follow_kinds(kinds),
            Action::FollowCollections(followed) => self.context.follow_collections(followed),
            Action::AssignCollections(assignment) => context::assign(&self.hub, *assignment),
            Action::Publish(server, snapshot) => self.publish(&server, snapshot),
            Action::SetSynced => self.hub.set_synced(),
            Action::Measure(measurement) => self.observe(measurement),
            other => return Some(other),
        }
        None
    }

    /// The outcome of vetting a module, or of checking its signature or its settings.
    pub(crate) fn vetted<B: Backend>(&mut self, report: vetting::Report) -> Outcome<B> {
        let outcome = match report {
            vetting::Report::Vetted(outcome) => outcome,
            vetting::Report::Settings(checked) => {
                return Outcome::SettingsChecked {
                    id: checked.id,
                    generation: checked.generation,
                    result: checked.result,
                };
            }
            vetting::Report::Signature(checked) => {
                return Outcome::SignatureChecked {
                    id: checked.id,
                    revision: checked.revision,
                    keys: checked.keys,
                    result: checked.result,
                };
            }
        };
        let vetting::Outcome {
            id,
            generation,
            result,
        } = outcome;
        // An older job says nothing about the one that replaced it.
        if self.jobs.get(&id).is_some_and(|(g, _)| *g == generation) {
            self.jobs.remove(&id);
        }
        Outcome::Vetted {
            id,
            generation,
            result,
        }
    }

    /// Registers a rollback request; [`Action::AnswerRollback`] names the ticket.
    pub(crate) fn ticket(&mut self, answer: RollbackAnswer) -> u64 {
        self.last_ticket += 1;
        self.rollbacks.insert(self.last_ticket, answer);
        self.last_ticket
    }

    /// Answers a rollback request that could not be made durable.
    pub(crate) fn reject(&mut self, ticket: u64, why: &str) {
        if let Some(answer) = self.rollbacks.remove(&ticket) {
            let _ = answer.send(Err(rollout::Error::Unavailable(why.to_owned())));
        }
    }

    /// Brings gauges up to date. It looks at every replica and policy, so it is done when
    /// somebody reads the metrics, not when something changes.
    pub(crate) fn measure<B: Backend>(&mut self, controller: &Controller<B>) {
        let plane = controller.plane();
        for (name, server) in plane.servers() {
            let current = server.version();
            let mut counts: BTreeMap<&'static str, i64> = BTreeMap::new();
            for (_, replica) in server.fleet.replicas() {
                if let Some(version) = current {
                    *counts.entry(replica.state(version).as_str()).or_default() += 1;
                }
            }
            for state in ReplicaState::ALL.map(ReplicaState::as_str) {
                let labels = StateLabels {
                    policy_server: name.to_string(),
                    state,
                };
                let count = counts.get(state).copied().unwrap_or(0);
                self.metrics.replicas.get_or_create(&labels).set(count);
            }
        }
        self.metrics.measure_context(&self.hub.context().marks());
        let counted = self.measure_policies(controller);
        self.forget_servers(controller, counted);
    }

    fn vet(&mut self, job: VetJob) {
        let cancelled = CancellationToken::new();
        let guard = cancelled.clone().drop_guard();
        // Dropping the guard of an older generation cancels its job.
        self.jobs.insert(job.id.clone(), (job.generation, guard));
        let sources = (self.access.sources)(job.server.as_deref());
        let job = Job {
            id: job.id,
            generation: job.generation,
            url: job.url,
            pinned: job.pinned,
            files: self.access.files.clone(),
            addresses: self.access.addresses,
            verification: job.verification,
            settings: job.settings,
            settings_from: job.settings_from,
            secret_settings: job.secret_settings,
            settings_access: self.access.settings.clone(),
            entrypoint: job.entrypoint,
            mutating: job.mutating,
            check: job.check,
            limits: job.limits,
            granted_capabilities: job.granted_capabilities,
            declares_context: job.declares_context,
        };
        self.vetting.start(job, sources, cancelled);
    }

    fn fetch(&self, module: FetchModule) {
        let sources = (self.access.sources)(module.server.as_deref());
        let artefacts = self.vetting.artefacts().clone();
        let (files, addresses) = (self.access.files.clone(), self.access.addresses);
        let stopped = self.stopped.clone();
        tokio::spawn(async move {
            let fetching = vetting::fetch_again(
                &artefacts,
                &module.url,
                module.digest,
                &sources,
                addresses,
                files.as_deref(),
            );
            if stopped.run_until_cancelled(fetching).await.is_some() {
                artefacts.want([module.digest]);
            }
        });
    }

    fn verify(&self, check: VerifySignature) {
        let sources = (self.access.sources)(check.server.as_deref());
        let job = SignatureJob {
            id: check.id,
            revision: check.revision,
            url: check.url,
            signer: check.signer,
            keys: check.keys,
            files: self.access.files.clone(),
            addresses: self.access.addresses,
        };
        self.vetting
            .check_signature(job, sources, self.stopped.clone());
    }

    fn answer(&mut self, ticket: u64, result: Result<(i64, i64), RollbackError>) {
        let result = result.map_err(|error| match error {
            RollbackError::NotFound(why) => rollout::Error::NotFound(why),
            RollbackError::Rejected(why) => rollout::Error::Refused(why),
        });
        if let Some(answer) = self.rollbacks.remove(&ticket) {
            // A caller that has left needs no answer.
            let _ = answer.send(result);
        }
    }

    fn publish(&self, server: &str, snapshot: Arc<Snapshot>) {
        let label = ServerLabel {
            policy_server: server.to_owned(),
        };
        let gauge = i64::try_from(snapshot.version().gauge()).unwrap_or_default();
        let version = self.metrics.snapshot_version.get_or_create(&label);
        version.set(gauge);
        drop(version);
        self.hub.publish(server, snapshot, SystemTime::now());
    }

    fn observe(&self, measurement: Measurement) {
        let seconds = |took: Duration| took.as_secs_f64();
        match measurement {
            Measurement::Flip => {
                self.metrics.webhook_flips.inc();
            }
            Measurement::PublishToApplied(took) => {
                self.metrics.publish_to_applied.observe(seconds(took));
            }
            Measurement::ChangeToEnforced(took) => {
                self.metrics.change_to_enforced.observe(seconds(took));
            }
        }
    }

    /// Drops the gauges of PolicyServers that are gone: they would keep their last value.
    fn forget_servers<B: Backend>(
        &mut self,
        controller: &Controller<B>,
        counted: BTreeSet<String>,
    ) {
        let servers = controller.plane().servers();
        let servers = servers.map(|(name, _)| name.to_string());
        let now: BTreeSet<String> = servers.chain(counted).collect();
        for gone in self.measured.difference(&now) {
            self.metrics.forget_server(gone);
        }
        self.measured = now;
    }

    /// Counts policies by state; returns the PolicyServers that they name.
    fn measure_policies<B: Backend>(&self, controller: &Controller<B>) -> BTreeSet<String> {
        let plane = controller.plane();
        let mut counts: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
        for (name, _) in plane.servers() {
            for state in POLICY_STATES {
                counts.insert((name.to_string(), state), 0);
            }
        }
        for (server, rollout) in plane.rollouts() {
            let status = plane.status(rollout.id());
            let is = |kind, status_| {
                let status = status.as_ref();
                status.is_some_and(|s| s.condition(kind).status == status_)
            };
            let state = if is(ConditionType::Accepted, ConditionStatus::False) {
                "refused"
            } else if is(ConditionType::Enforced, ConditionStatus::True) {
                "enforced"
            } else {
                "progressing"
            };
            *counts.entry((server.to_string(), state)).or_default() += 1;
        }
        for ((policy_server, state), count) in &counts {
            let labels = StateLabels {
                policy_server: policy_server.clone(),
                state,
            };
            self.metrics.policies.get_or_create(&labels).set(*count);
        }
        counts.into_keys().map(|(server, _)| server).collect()
    }
}
