//! Observations in, actions out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use assent_api::{
    PolicyRevisionSpec,
    parse::{self, Module},
};
use assent_core::{
    Digest, Millis, PolicyKey, RevisionId,
    plane::{Event, Plane, StreamEvent},
    rollout::{Input, PolicyId},
    status::{PolicyStatus, Transitions},
};
use jiff::Timestamp;

use crate::{
    action::{Action, Outcome, RevisionIncident},
    backend::Backend,
    contexts::Contexts,
    jobs::Jobs,
    objects::{Affected, Change, Kind, Objects},
    view::Now,
};

mod contexts;
mod effects;
mod features;
mod in_flight;
mod policies;
mod recovery;
mod replicas;
mod resync;
mod revisions;
mod rollback;
mod routes;
mod servers;
mod settings;
mod signatures;
mod startup;
mod statuses;
mod tenancy;

use in_flight::InFlight;
use signatures::SignatureCheck;

/// The least time between two status passes: a rollout changes many statuses within
/// milliseconds, and only the last of them is worth computing.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// The life of all policies and PolicyServers, for as long as one process leads.
pub struct Controller<B: Backend> {
    /// What differs between a cluster and a directory.
    pub backend: B,
    config: Config,
    plane: Plane,
    objects: Objects<B::Existing>,
    jobs: Jobs,
    /// Modules that the module store has, or is fetching.
    modules: HashSet<Digest>,
    /// All objects were listed, and decisions continue from them.
    restored: bool,
    /// Policies that the first snapshot waits for.
    startup: startup::Startup,
    /// Writes that have not reported yet, one entry per policy object.
    in_flight: BTreeMap<PolicyId, InFlight>,
    /// What is stored of the revisions that evaluators hold. Their objects can be made again
    /// from it, whatever happens to them.
    specs: BTreeMap<PolicyId, BTreeMap<RevisionId, Arc<PolicyRevisionSpec>>>,
    /// Revisions that routes name and of which nothing else is known.
    unknown: BTreeMap<PolicyId, RevisionId>,
    /// What was reported about revisions.
    reported: BTreeSet<(RevisionId, RevisionIncident)>,
    /// Rollbacks that have not reported yet, with the requests that wait for them.
    rollbacks: BTreeMap<PolicyKey, Vec<u64>>,
    /// Servers whose routes are being removed.
    ending: BTreeSet<String>,
    /// What was applied for each server, and with which result.
    applied: BTreeMap<String, servers::Applied>,
    /// Pods that were deleted because their evaluator is missing or outdated.
    replaced_pods: BTreeSet<String>,
    /// The active revision of a policy, and since when it is active.
    active_since: BTreeMap<PolicyId, (String, Timestamp)>,
    /// Since when conditions have their status.
    transitions: BTreeMap<PolicyId, Transitions>,
    /// Signatures of distributed revisions; empty for servers that require none.
    signatures: HashMap<RevisionId, SignatureCheck>,
    /// Generations whose Secrets cannot be read now, and why.
    unavailable_settings: BTreeMap<PolicyId, (i64, String)>,
    /// What events reported last.
    recorded: BTreeMap<PolicyId, statuses::Recorded>,
    /// Policies whose newest generation may have to be vetted.
    pending: BTreeSet<PolicyId>,
    /// Policies whose newest generation was rejected before its module was looked at.
    rejected_unvetted: BTreeSet<PolicyId>,
    /// Namespaces that have more policies than they may have.
    over_quota: BTreeSet<String>,
    /// What the evaluators of each server can do.
    confirming: BTreeMap<String, features::Confirming>,
    /// Objects of the cluster that policies read.
    contexts: Contexts,
    /// Vetted generations that wait for objects that they read.
    awaiting_context: BTreeMap<PolicyId, (i64, Module)>,
    dirty: Dirty,
    next_status: Millis,
    /// Statuses of servers are computed with the next publishing.
    server_statuses_due: bool,
    actions: Vec<Action<B>>,
    synced: bool,
}

/// What does not change while a process leads.
#[derive(Clone, Debug)]
pub struct Config {
    /// How policies are parsed.
    pub parse: parse::Options,
    /// The kinds that must be listed before anything is decided.
    pub kinds: Vec<Kind>,
    /// Overrides every drain time.
    pub drain: Option<Duration>,
    /// How long a replica counts after it left.
    pub grace: Duration,
    /// How long the first snapshot waits for policies that have no revision yet.
    pub sync_deadline: Duration,
    /// Policies that a namespace may have, the oldest first; `None` for any number.
    pub max_policies_per_namespace: Option<usize>,
    /// Why there are no Kubernetes objects that policies could read, and what to do; `None` if
    /// there are.
    pub no_context: Option<&'static str>,
}

/// What has to be computed again.
#[derive(Debug, Default)]
struct Dirty {
    /// Policies whose status may have changed.
    policies: BTreeSet<PolicyKey>,
    /// Servers whose status may have changed.
    servers: BTreeSet<String>,
    /// Servers whose required replicas may have changed.
    replicas: BTreeSet<String>,
    /// Policies that may need other collections.
    contexts: BTreeSet<PolicyKey>,
    /// Policies whose route may have to be another one.
    routes: BTreeSet<PolicyKey>,
}

// === impl Controller ===

impl<B: Backend> Controller<B> {
    /// A controller that has seen no object; `modules` are those in the module store.
    pub fn new(backend: B, config: Config, modules: HashSet<Digest>) -> Self {
        Self {
            backend,
            plane: Plane::new(config.grace),
            config,
            objects: Objects::default(),
            jobs: Jobs::default(),
            modules,
            restored: false,
            startup: startup::Startup::default(),
            in_flight: BTreeMap::new(),
            specs: BTreeMap::new(),
            unknown: BTreeMap::new(),
            reported: BTreeSet::new(),
            rollbacks: BTreeMap::new(),
            ending: BTreeSet::new(),
            applied: BTreeMap::new(),
            replaced_pods: BTreeSet::new(),
            active_since: BTreeMap::new(),
            transitions: BTreeMap::new(),
            signatures: HashMap::new(),
            unavailable_settings: BTreeMap::new(),
            recorded: BTreeMap::new(),
            pending: BTreeSet::new(),
            rejected_unvetted: BTreeSet::new(),
            over_quota: BTreeSet::new(),
            confirming: BTreeMap::new(),
            contexts: Contexts::default(),
            awaiting_context: BTreeMap::new(),
            dirty: Dirty::default(),
            next_status: Millis::default(),
            server_statuses_due: false,
            actions: Vec::new(),
            synced: false,
        }
    }

    /// The mirror of all objects.
    pub fn objects(&self) -> &Objects<B::Existing> {
        &self.objects
    }

    /// Rollouts, servers and replicas.
    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    /// Whether all objects were listed and decisions continue from them.
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// Objects changed.
    pub fn change(&mut self, now: Now, change: Change<B::Existing>) {
        self.release_foreign(&change);
        let affected = self.objects.apply(change);
        if self.restored {
            self.handle(now, affected);
        } else if self.objects.is_listed(&self.config.kinds) {
            self.restore(now);
        }
    }

    /// A replica's stream opened, reported or closed.
    pub fn stream(&mut self, now: Now, event: StreamEvent) {
        match &event {
            StreamEvent::Opened { node, .. } => self.touch_replicas(&node.policy_server),
            StreamEvent::Closed { server, .. } => self.touch_replicas(server),
            // A report may change what counts, which the plane tracks; a heartbeat does not.
            _ => {}
        }
        self.event(now, event.into());
    }

    /// An action has an outcome.
    pub fn outcome(&mut self, now: Now, outcome: Outcome<B>) {
        match outcome {
            Outcome::Vetted {
                id,
                generation,
                result,
            } => self.vetted(now, &id, generation, result),
            Outcome::SignatureChecked {
                id,
                revision,
                keys,
                result,
            } => self.signature_checked(&id, &revision, &keys, result),
            Outcome::SettingsChecked {
                id,
                generation,
                result,
            } => self.settings_checked(&id, generation, result),
            Outcome::Stored(id, policy, object) => self.stored(now, id, policy, *object),
            Outcome::NotStored(id, generation, failure) => {
                self.not_stored(now, &id, generation, failure);
            }
            Outcome::Restored(id, revision, object) => {
                self.revision_restored(now, &id, &revision, object);
            }
            Outcome::PhaseSet(id, revision, object) => self.phase_set(&id, &revision, object),
            Outcome::ReplicasChecked(id, to, pods) => self.replicas_checked(now, id, to, pods),
            Outcome::Flipped(id, revision, changes) => self.flipped(now, id, revision, changes),
            Outcome::FlipFailed(id, revision, error) => {
                self.flip_failed(now, id, &revision, &error);
            }
            Outcome::Repaired(id, changes) => self.repaired(now, &id, changes),
            Outcome::Retired(id, revision) => self.retired(now, id, revision),
            Outcome::RevisionsDeleted(id, names) => self.revisions_deleted(&id, &names),
            Outcome::RoutesRemoved(id, routes) => {
                self.forget_routes(&routes);
                if self.unknown.remove(&id).is_some() {
                    self.update_withheld(now, &self.server_of(&id));
                }
                self.event(now, Event::Rollout(id, Input::WebhookRemoved));
            }
            Outcome::ServerRoutesRemoved(server, routes) => {
                self.forget_routes(&routes);
                self.server_unrouted(now, &server);
            }
            Outcome::OrphansRemoved(routes) => self.forget_routes(&routes),
            Outcome::ServerApplied(server, result) => self.server_applied(&server, result),
            Outcome::RolledBack(key, result) => self.rolled_back(now, &key, result),
            Outcome::StatusWritten(target, object) => self.status_written(&target, object),
        }
    }

    /// Decides and publishes. Call it after everything that came in was applied.
    pub fn settle(&mut self, now: Now) -> Vec<Action<B>> {
        self.decide_into(now);
        self.publish_into(now);
        std::mem::take(&mut self.actions)
    }

    /// Decides without publishing. A backend whose actions take effect at once repeats this
    /// until nothing is left to do, so that no snapshot goes out that is already outdated.
    pub fn decide(&mut self, now: Now) -> Vec<Action<B>> {
        self.decide_into(now);
        std::mem::take(&mut self.actions)
    }

    /// Publishes what was decided.
    pub fn publish(&mut self, now: Now) -> Vec<Action<B>> {
        self.publish_into(now);
        std::mem::take(&mut self.actions)
    }

    /// When time alone changes something next.
    pub fn deadline(&self) -> Option<Millis> {
        let statuses = self.has_dirty_statuses().then_some(self.next_status);
        let deadlines = [
            self.plane.deadline(),
            self.jobs.next_retry(),
            self.startup.deadline(),
            self.contexts.deadline(),
            statuses,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Sets the replicas of a server whose replicas are not pods.
    pub fn expect_replicas(
        &mut self,
        now: Now,
        server: &str,
        names: Vec<assent_core::fleet::Name>,
    ) {
        self.event(
            now,
            Event::ReplicasExpected {
                server: server.into(),
                replicas: names,
            },
        );
    }

    /// The status of one policy, with the time since when each condition has its status.
    pub fn status(&mut self, now: Now, id: &PolicyId) -> Option<(PolicyStatus, [i64; 4])> {
        let mut status = self.plane.status(id)?;
        self.report_signature(id, &mut status);
        self.report_settings(id, &mut status);
        let seconds = now.date.as_second();
        let transitions = self.transitions.entry(id.clone()).or_default();
        let since = status
            .conditions
            .each_ref()
            .map(|c| transitions.note(seconds, c));
        Some((status, since))
    }

    /// Pods that ask for an evaluator and have none.
    pub fn uninjected_pods(&self) -> usize {
        let servers = self.objects.servers().map(|s| s.meta.name.as_str());
        let pods = servers.flat_map(|server| self.objects.pods(server));
        pods.filter(|p| !p.injected && !p.meta.deleting).count()
    }

    fn handle(&mut self, now: Now, affected: Vec<Affected>) {
        for affected in affected.into_iter().collect::<BTreeSet<_>>() {
            match affected {
                Affected::Policy(key) => {
                    self.dirty.policies.insert(key.clone());
                    self.observe_policy(now, &key);
                    if let Some(namespace) = key.namespace() {
                        self.recheck_quota(now, namespace);
                    }
                }
                Affected::Namespace(name) => self.recheck_namespace(now, &name),
                Affected::Route(key) => {
                    self.look_for_unknown(now, &key);
                    self.check_route(now, &key);
                }
                Affected::Revision(key) => {
                    self.look_for_unknown(now, &key);
                    self.check_revisions(&key);
                    self.trim_history(&key);
                }
                Affected::Server(server) => {
                    self.touch_replicas(&server);
                    self.observe_server(now, &server);
                }
                Affected::Workload(server) => {
                    self.dirty.servers.insert(server.clone());
                    self.apply_server(&server, true);
                }
                Affected::Pods(server) => self.touch_replicas(&server),
            }
        }
    }

    fn decide_into(&mut self, now: Now) {
        if self.restored {
            self.expect_dirty(now);
            self.check_dirty_routes(now);
            self.replace_pods();
            self.vet_pending(now);
            self.continue_startup(now);
        }
        let mut effects = Vec::new();
        self.plane.decide(now.at, &mut effects);
        self.perform(now, effects);
        // Before publishing: a collection starts before its policy is announced (C6).
        self.settle_contexts(now);
        self.update_policy_statuses(now);
    }

    fn publish_into(&mut self, now: Now) {
        let mut effects = Vec::new();
        self.plane.publish(now.at, &mut effects);
        self.perform(now, effects);
        if self.plane.is_synced() && !std::mem::replace(&mut self.synced, true) {
            self.actions.push(Action::SetSynced);
        }
        self.update_server_statuses(now);
    }

    fn touch_replicas(&mut self, server: &str) {
        self.dirty.replicas.insert(server.to_owned());
        self.dirty.servers.insert(server.to_owned());
    }
}
