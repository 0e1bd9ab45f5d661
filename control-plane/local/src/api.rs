//! The stand-in for an API server: holds the objects of a directory, and performs what the
//! controller asks for.
//!
//! Everything here is synchronous: a scan becomes [changes](LocalApi::apply_scan) for the
//! controller, [`LocalApi::settle`] decides and performs until nothing is left to do, and
//! [`LocalApi::publish`] writes the state before it publishes.

mod actions;
mod objects;

use std::collections::{BTreeMap, BTreeSet};

use assent_api::{
    Manifest, PolicyStatus,
    parse::{self, Object, Rollback},
};
use assent_controller::{Action, Change, Controller, Now};
use assent_core::{PolicyKey, policy::DEFAULT_SERVER};
use jiff::Timestamp;
use tracing::error;
use uuid::Uuid;

use crate::{
    backend::LocalBackend,
    decide::{self, Decision, Objects, Problem, decide},
    directory::Scan,
    dispatch::{Table, Target},
    state::{self, StateStore},
};

/// The most rounds of one [`LocalApi::settle`]: each does what the one before made possible,
/// and a policy has few steps.
const MAX_ROUNDS: usize = 64;

/// How manifests are read and applied.
#[derive(Clone, Debug)]
pub struct Options {
    /// How manifests are parsed.
    pub parse: parse::Options,
    /// Whether any number of policies may be removed at once.
    pub allow_mass_removal: bool,
}

/// Objects of a directory and their stored state.
#[derive(Debug)]
pub struct LocalApi {
    store: StateStore,
    options: Options,
    /// The last valid state of every manifest.
    manifests: Objects,
    /// What is wrong with policies, and since when.
    problems: BTreeMap<PolicyKey, (Problem, Timestamp)>,
    /// What is wrong with the directory, and with files that name no object.
    unnamed: Vec<Problem>,
    /// Rollbacks that annotations ask for and that were not done yet.
    rollbacks: BTreeMap<PolicyKey, Rollback>,
    statuses: BTreeMap<Uuid, PolicyStatus>,
    /// Whether the directory was read once: before that nothing is known to be absent.
    is_read: bool,
    /// Problems that were logged, so that each is logged once.
    logged: Vec<String>,
}

// === impl LocalApi ===

impl LocalApi {
    /// Continues from what is stored.
    pub fn new(store: StateStore, options: Options) -> Self {
        Self {
            manifests: store.objects(&options.parse),
            store,
            options,
            problems: BTreeMap::new(),
            unnamed: Vec::new(),
            rollbacks: BTreeMap::new(),
            statuses: BTreeMap::new(),
            is_read: false,
            logged: Vec::new(),
        }
    }

    /// Identities, generations and revisions.
    pub fn store(&self) -> &StateStore {
        &self.store
    }

    /// Whether the directory was read.
    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Policies that never had a valid manifest, with what is wrong and since when. They have
    /// no identity yet, so the controller does not know them.
    pub fn never_valid(&self) -> impl Iterator<Item = (&PolicyKey, &Problem, Timestamp)> {
        let problems = self.problems.iter();
        let never = problems.filter(|(key, _)| self.store.get(key).is_none());
        never.map(|(key, (problem, since))| (key, problem, *since))
    }

    /// What is wrong with the directory, and with files whose objects are not known.
    pub fn unnamed_problems(&self) -> &[Problem] {
        &self.unnamed
    }

    /// Whether manifests were found, and not one of them was ever valid. An empty directory is fine: its owner wants no
    /// policies. This one most likely wants some, and would get none.
    pub fn is_all_broken(&self) -> bool {
        let has_problems = !self.unnamed.is_empty() || !self.problems.is_empty();
        has_problems && self.manifests.is_empty()
    }

    /// Applies a scan of the directory. The first one that could read it returns all objects,
    /// later ones what changed.
    pub fn apply_scan(&mut self, now: Timestamp, scan: &Scan) -> Vec<Change<()>> {
        let options = decide::Options {
            allow_mass_removal: self.options.allow_mass_removal,
        };
        let decision = decide(&self.manifests, scan, options);
        self.log(&decision);
        let unnamed = decision.problems.iter().filter(|one| one.object.is_none());
        self.unnamed = unnamed.cloned().collect();
        if !decision.synced {
            return Vec::new();
        }
        let held = decision.held.map(|held| held.policies).unwrap_or_default();
        self.store.set_held(&held);
        self.manifests = decision.objects;
        let mut servers: Vec<String> = Vec::new();
        let mut policies: BTreeSet<PolicyKey> = BTreeSet::new();
        for object in decision.changed {
            match object {
                Object::Server(name) => servers.push(name),
                Object::Policy(key) => {
                    self.observe(now, &key);
                    policies.insert(key);
                }
            }
        }
        let mut removed_servers: Vec<String> = Vec::new();
        let mut removed: Vec<Uuid> = Vec::new();
        for object in decision.removed {
            match object {
                Object::Server(name) => removed_servers.push(name),
                Object::Policy(key) => removed.extend(self.store.delete(&key)),
            }
        }
        policies.extend(self.find_rollbacks());
        policies.extend(self.find_problems(now, decision.problems));
        if !std::mem::replace(&mut self.is_read, true) {
            return self.list();
        }
        // A server exists before its policies, and is gone after them.
        let mut changes: Vec<Change<()>> = Vec::new();
        changes.extend(servers.iter().map(|name| self.server_change(name)));
        changes.extend(policies.iter().filter_map(|key| self.policy_change(key)));
        changes.extend(removed.iter().filter_map(|uid| self.deletion(*uid)));
        changes.extend(removed_servers.iter().map(|name| self.server_change(name)));
        changes
    }

    /// Decides and performs until nothing is left to do. Returns the actions that concern
    /// modules, streams, metrics and requests. [`LocalApi::publish`] makes the decisions
    /// durable; a request must not be answered before that.
    pub fn settle(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
    ) -> Vec<Action<LocalBackend>> {
        let mut left = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let actions = controller.decide(now);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                left.extend(self.perform(controller, now, action));
            }
            self.forget_replaced(controller, now);
        }
        left
    }

    /// Writes what changed, then publishes what was decided. Nothing is published if the state
    /// cannot be written: a replica must not hold a revision that a restart would not know.
    /// Nothing is published before the directory was read either: an empty snapshot would
    /// remove every policy from evaluators that still serve.
    pub fn publish(
        &mut self,
        controller: &mut Controller<LocalBackend>,
        now: Now,
    ) -> Result<Vec<Action<LocalBackend>>, state::Error> {
        self.store.commit()?;
        if !self.is_read {
            return Ok(Vec::new());
        }
        let mut actions = controller.publish(now);
        // Only the statuses of servers follow publishing, and nothing shows them here.
        actions.retain(|action| !matches!(action, Action::WriteStatus(..)));
        Ok(actions)
    }

    /// The policies that the dispatch calls, with the paths of their active revisions. Those for requests at Envoy are
    /// not among them: evaluators find them by the state of their routes.
    pub fn routes(&self) -> Vec<(PolicyKey, String)> {
        let active = self.store.records().filter(|r| !r.deleting);
        let active = active.filter_map(|r| Some((r.key(), r.active_path()?)));
        active.filter(|(key, _)| !key.is_for_requests()).collect()
    }

    /// The dispatch table for [`LocalApi::routes`].
    pub fn table(&self) -> Table {
        let targets = self.routes().into_iter().filter_map(|(key, path)| {
            match self.target(&key, path) {
                Ok(target) => Some(target.into()),
                Err(why) => {
                    error!(policy = %key, "the dispatch cannot call the active revision: {why}");
                    None
                }
            }
        });
        Table::new(targets)
    }

    fn target(&self, key: &PolicyKey, path: String) -> Result<Target, String> {
        let record = self.store.get(key).ok_or("there is no such policy")?;
        let revision = record.active_revision().ok_or("it has none")?;
        let parsed = revision.parsed(key, &self.options.parse)?;
        Target::new(parsed, path).map_err(|e| e.to_string())
    }

    /// Records the present content of a policy's manifest.
    fn observe(&mut self, now: Timestamp, key: &PolicyKey) {
        let entry = self.manifests.get(&Object::Policy(key.clone()));
        if let Some(entry) = entry
            && let Manifest::Policy(parsed) = &entry.manifest
        {
            self.store
                .observe(&entry.file, parsed, entry.module.as_ref(), now);
        }
    }

    /// Looks for rollbacks that annotations ask for; returns the policies. One that is
    /// rejected is tried again with the next change of the directory: the revision may exist
    /// by then.
    fn find_rollbacks(&mut self) -> Vec<PolicyKey> {
        let manifests = self.manifests.values();
        let wanted = manifests.filter_map(|entry| match &entry.manifest {
            Manifest::Policy(parsed) => Some((parsed.key.clone(), parsed.rollback)),
            Manifest::Server(_) => None,
        });
        let wanted: Vec<(PolicyKey, Option<Rollback>)> = wanted.collect();
        self.rollbacks.clear();
        for (key, wanted) in wanted {
            match self.store.new_rollback(&key, wanted) {
                Some(to) => drop(self.rollbacks.insert(key, to)),
                None => self.store.set_rollback_done(&key, wanted),
            }
        }
        self.rollbacks.keys().cloned().collect()
    }

    /// Replaces the problems of policies; returns the policies whose problem changed.
    fn find_problems(&mut self, now: Timestamp, problems: Vec<Problem>) -> Vec<PolicyKey> {
        let mut found: BTreeMap<PolicyKey, Problem> = BTreeMap::new();
        for problem in problems {
            if let Some(Object::Policy(key)) = &problem.object {
                found.entry(key.clone()).or_insert(problem);
            }
        }
        let before = std::mem::take(&mut self.problems);
        let solved = before.keys().filter(|key| !found.contains_key(*key));
        let mut changed: Vec<PolicyKey> = solved.cloned().collect();
        for (key, problem) in found {
            let known = before.get(&key);
            if known.is_none_or(|(known, _)| *known != problem) {
                changed.push(key.clone());
            }
            let since = known.map_or(now, |(_, since)| *since);
            self.problems.insert(key, (problem, since));
        }
        changed
    }

    fn log(&mut self, decision: &Decision) {
        let problems = decision.problems.iter().map(|p| p.message.clone());
        let held = decision.held.as_ref().map(ToString::to_string);
        let now: Vec<String> = problems.chain(held).collect();
        for message in now.iter().filter(|m| !self.logged.contains(m)) {
            error!("{message}");
        }
        self.logged = now;
    }

    /// The names of all servers; `default` needs no manifest.
    fn servers(&self) -> BTreeSet<String> {
        let manifests = self.manifests.keys().filter_map(|object| match object {
            Object::Server(name) => Some(name.clone()),
            Object::Policy(_) => None,
        });
        manifests.chain([DEFAULT_SERVER.to_owned()]).collect()
    }
}

#[cfg(test)]
mod tests;
