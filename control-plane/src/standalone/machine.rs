//! What a directory, vetting and replicas bring, turned into events for the plane.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use assent_api::{
    Manifest, Parsed, ParsedServer,
    parse::{self, Module, Object},
};
use assent_core::{
    PolicyKey,
    fleet::Counting,
    plane::Event,
    policy::DEFAULT_SERVER,
    rollout::{Acceptance, Input, PolicyId, Refusal, RefusalReason, Stored, Timing},
};
use assent_grpc::{
    Hub, rollout,
    status::{PolicyRow, Query as StatusQuery},
};
use assent_local::{
    decide::decide,
    decide::{self, Objects, Problem, Reason},
    directory::Scan,
    dispatch::check_conditions,
    objects::{self, Record},
};
use assent_modules::pull::Reach;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::{keeper::Keeper, revisions, services::refused_row, view};
use crate::{
    drive::Drive,
    jobs::Jobs,
    servers::{allowed_capabilities, limits, sources, target_not_found, verification},
    vetting::{DeclaredSources, Failed, Job, Outcome, Vetting},
    view::PolicyObject,
};

/// The state of a standalone control plane.
pub(super) struct Machine {
    pub(super) drive: Drive<Keeper>,
    pub(super) hub: Hub,
    pub(super) options: Options,
    vetting: Vetting,
    jobs: Jobs,
    objects: Objects,
    /// Servers by name; `default` is always there.
    servers: BTreeMap<String, Option<ParsedServer>>,
    /// What is wrong with policies, by name.
    problems: BTreeMap<PolicyKey, (Problem, Timestamp)>,
    synced: bool,
    /// Problems that were told, so that each is told once.
    told: Vec<String>,
}

/// What the command line says.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Where manifests are, and relative modules.
    pub(super) policies: PathBuf,
    /// Every drain, where not as long as usual.
    pub(super) drain: Option<Duration>,
    /// Removes any number of policies at once.
    pub(super) allow_mass_removal: bool,
    /// How manifests are read.
    pub(super) parse: parse::Options,
}

// === impl Machine ===

impl Machine {
    pub(super) fn new(drive: Drive<Keeper>, hub: Hub, vetting: Vetting, options: Options) -> Self {
        Self {
            drive,
            hub,
            options,
            vetting,
            jobs: Jobs::default(),
            objects: Objects::new(),
            servers: BTreeMap::new(),
            problems: BTreeMap::new(),
            synced: false,
            told: Vec::new(),
        }
    }

    /// Goes on from what is stored.
    pub(super) fn restore(&mut self) {
        self.add_server(DEFAULT_SERVER, None);
        self.objects = self.drive.performer.book.objects(&self.options.parse);
        let records: Vec<Record> = self.drive.performer.book.records().cloned().collect();
        for record in &records {
            let stored = revisions::stored(record, &self.options.parse);
            self.observe(record, stored);
            if record.deleting {
                self.drive
                    .apply(Event::Policy(id_of(record), Input::Deleted));
            }
        }
    }

    /// Takes in a look at the directory.
    pub(super) fn scanned(&mut self, scan: &Scan) {
        let options = decide::Options {
            allow_mass_removal: self.options.allow_mass_removal,
        };
        let decision = decide(&self.objects, scan, options);
        self.tell(&decision.problems, decision.held.as_ref());
        if !decision.synced {
            return;
        }
        let held = decision.held.map(|held| held.policies).unwrap_or_default();
        self.drive.performer.book.set_held(&held);
        self.objects = decision.objects;
        let (servers, policies): (Vec<Object>, Vec<Object>) = decision
            .changed
            .into_iter()
            .partition(|o| matches!(o, Object::Server(_)));
        for object in servers.iter().chain(&policies) {
            self.changed(object);
        }
        for object in &decision.removed {
            self.removed(object);
        }
        self.rollbacks();
        self.judge(decision.problems);
        if !self.synced {
            self.synced = true;
            info!(
                policies = self.policies().count(),
                "read the directory of policies"
            );
            self.drive.apply(Event::Synced);
        }
    }

    /// Takes in what became of a vetting job.
    pub(super) fn vetted(&mut self, outcome: Outcome) {
        let Outcome {
            id,
            generation,
            result,
        } = outcome;
        self.jobs.ended(&id, generation);
        let Some(record) = self.record(&id).cloned() else {
            return;
        };
        if record.generation != generation || record.deleting {
            return;
        }
        match result {
            Ok(module) => self.accepted(&id, &record, &module),
            Err(failed) => self.refused(&id, generation, failed),
        }
    }

    /// Starts what is due: vetting of new generations, and another try of failed ones.
    pub(super) fn work(&mut self) {
        for id in self.jobs.due() {
            // It stays refused, in its own words, until the next try has an end.
            self.start(&id);
        }
        let pending: Vec<PolicyId> = self
            .policies()
            .filter(|r| *r.acceptance() == Acceptance::Pending)
            .map(|r| r.id().clone())
            .collect();
        for id in pending {
            self.start(&id);
        }
    }

    /// When [`Machine::work`] has something to do next.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.jobs.next_retry()
    }

    /// Makes a new generation out of an earlier one.
    pub(super) fn undo(
        &mut self,
        key: &PolicyKey,
        to: parse::Rollback,
    ) -> Result<(i64, i64), rollout::Error> {
        let book = &mut self.drive.performer.book;
        let generation = book.rollback(key, to).map_err(|error| match error {
            objects::Error::NoPolicy(_) => rollout::Error::NotFound(error.to_string()),
            _ => rollout::Error::Refused(error.to_string()),
        })?;
        let gone = || rollout::Error::NotFound(format!("there is no policy {key}"));
        let record = book.get(key).cloned().ok_or_else(gone)?;
        let from = record.overridden.as_ref().map_or(0, |o| o.from_generation);
        info!(policy = %key, from, generation, "rolling back");
        self.observe(&record, Stored::default());
        Ok((from, generation))
    }

    /// Every policy as an object, those that were never good included.
    pub(super) fn objects(&mut self) -> Vec<PolicyObject> {
        let ids: Vec<PolicyId> = self.policies().map(|r| r.id().clone()).collect();
        let mut objects: Vec<(PolicyKey, PolicyObject)> = self.refused_objects();
        for id in ids {
            if let Some(object) = view::object(&mut self.drive, &id) {
                objects.push((id.key, object));
            }
        }
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        objects.into_iter().map(|(_, object)| object).collect()
    }

    /// Rows of policies that were never good. Which server they are for is not known, so
    /// they are told where most people look.
    pub(super) fn never_good(&self, query: &StatusQuery) -> Vec<PolicyRow> {
        if query.server != DEFAULT_SERVER {
            return Vec::new();
        }
        let objects = self.refused_objects().into_iter();
        let wanted = objects.filter(|(key, _)| query.wants_policy(key.as_str()));
        wanted
            .map(|(key, object)| refused_row(&key, &object))
            .collect()
    }

    fn refused_objects(&self) -> Vec<(PolicyKey, PolicyObject)> {
        let problems = self.problems.iter();
        let never = problems.filter(|(key, _)| self.drive.plane.rollout(key).is_none());
        let object = |(key, (problem, since)): (&PolicyKey, &(Problem, Timestamp))| {
            let reason = reason(problem.reason).as_str();
            (
                key.clone(),
                view::refused(key, reason, &problem.message, *since),
            )
        };
        never.map(object).collect()
    }

    /// The living policies.
    fn policies(&self) -> impl Iterator<Item = &assent_core::rollout::Rollout> {
        let all = self.drive.plane.rollouts().map(|(_, r)| r);
        all.filter(|r| !r.is_ending())
    }

    fn record(&self, id: &PolicyId) -> Option<&Record> {
        self.drive.performer.book.by_uid(id.uid.parse().ok()?)
    }

    fn add_server(&mut self, name: &str, server: Option<ParsedServer>) {
        match self.servers.insert(name.to_owned(), server.clone()) {
            None => {
                self.hub.add_server(name);
                self.drive.apply(Event::ServerAdded {
                    server: name.into(),
                    counting: Counting::Everyone,
                });
                self.reconsider(name, &[RefusalReason::TargetNotFound]);
            }
            Some(before) if before == server => {}
            // It may say now where modules come from, or who signs them.
            Some(_) => self.reconsider(
                name,
                &[RefusalReason::PullError, RefusalReason::SignatureRejected],
            ),
        }
    }

    /// What the policies of a server were refused for may no longer be so.
    fn reconsider(&mut self, server: &str, reasons: &[RefusalReason]) {
        let rollouts = self.drive.plane.rollouts();
        let own = rollouts.filter(|(name, r)| {
            let settled = |refusal: &Refusal| reasons.contains(&refusal.reason);
            &***name == server && matches!(r.acceptance(), Acceptance::Refused(x) if settled(x))
        });
        let own: Vec<PolicyId> = own.map(|(_, r)| r.id().clone()).collect();
        for id in own {
            self.drive.apply(Event::Policy(id, Input::Reconsidered));
        }
    }

    /// Its policies stay and say so: nothing that a user wrote is destroyed.
    fn remove_server(&mut self, name: &str) {
        self.servers.remove(name);
        self.hub.remove_server(name);
        self.drive.apply(Event::ServerRemoved(name.into()));
        let rollouts = self.drive.plane.rollouts();
        let own = rollouts.filter(|(server, r)| &***server == name && !r.is_ending());
        let own: Vec<(PolicyId, i64)> =
            own.map(|(_, r)| (r.id().clone(), r.generation())).collect();
        for (id, generation) in own {
            self.drive
                .apply(Event::refused(id, generation, target_not_found(name)));
        }
    }

    fn changed(&mut self, object: &Object) {
        let Some(entry) = self.objects.get(object).cloned() else {
            return;
        };
        match entry.manifest {
            Manifest::Server(server) => {
                let name = server.name.clone();
                self.add_server(&name, Some(*server));
            }
            Manifest::Policy(parsed) => {
                let now = Timestamp::now();
                let book = &mut self.drive.performer.book;
                book.observe(&entry.file, &parsed, entry.module.as_ref(), now);
                if let Some(record) = book.get(&parsed.key).cloned() {
                    self.observe(&record, Stored::default());
                }
            }
        }
    }

    fn removed(&mut self, object: &Object) {
        match object {
            Object::Server(name) if name == DEFAULT_SERVER => {
                self.servers.insert(name.clone(), None);
            }
            Object::Server(name) => self.remove_server(name),
            Object::Policy(key) => {
                self.problems.remove(key);
                let Some(uid) = self.drive.performer.book.delete(key) else {
                    return;
                };
                let id = PolicyId {
                    key: key.clone(),
                    uid: uid.to_string().into(),
                };
                self.jobs.cancel(&id);
                self.drive.apply(Event::Policy(id, Input::Deleted));
            }
        }
    }

    /// Tells the plane of a record's generation.
    fn observe(&mut self, record: &Record, stored: Stored) {
        let parsed = record.effective(&self.options.parse);
        let server = parsed
            .as_ref()
            .map_or(DEFAULT_SERVER, |p| p.server.as_str());
        let event = Event::Observed {
            id: id_of(record),
            server: server.into(),
            generation: record.generation,
            timing: self.timing(parsed.as_ref()),
            stored,
        };
        self.drive.apply(event);
    }

    fn timing(&self, parsed: Option<&Parsed>) -> Timing {
        let progress = parsed.map_or(600, |p| p.progress_deadline_seconds);
        let timeout = parsed.map_or(10, |p| p.timeout_seconds);
        let timing = Timing::for_webhook(
            Duration::from_secs(progress.into()),
            Duration::from_secs(timeout.into()),
        );
        match self.options.drain {
            Some(drain) => timing.with_drain(drain),
            None => timing,
        }
    }

    /// Does the rollbacks that manifests ask for, each once.
    fn rollbacks(&mut self) {
        let policies = self
            .objects
            .values()
            .filter_map(|entry| match &entry.manifest {
                Manifest::Policy(parsed) => Some((parsed.key.clone(), parsed.rollback)),
                Manifest::Server(_) => None,
            });
        let policies: Vec<_> = policies.collect();
        for (key, wanted) in policies {
            let new = self.drive.performer.book.new_rollback(&key, wanted);
            match new.map(|to| self.undo(&key, to)) {
                // It is tried again with the next change: the revision may exist by then.
                Some(Err(why)) => warn!(policy = %key, "can't roll back: {why}"),
                Some(Ok(_)) | None => self.drive.performer.book.rollback_seen(&key, wanted),
            }
        }
    }

    /// Puts what is wrong at the objects that it is wrong with, and takes away what is no
    /// longer wrong.
    fn judge(&mut self, problems: Vec<Problem>) {
        let mut now: BTreeMap<PolicyKey, Problem> = BTreeMap::new();
        for problem in problems {
            if let Some(Object::Policy(key)) = &problem.object {
                now.entry(key.clone()).or_insert(problem);
            }
        }
        let before = std::mem::take(&mut self.problems);
        for key in before.keys().filter(|key| !now.contains_key(*key)) {
            if let Some(rollout) = self.drive.plane.rollout(key) {
                let id = rollout.id().clone();
                self.drive.apply(Event::Policy(id, Input::Reconsidered));
            }
        }
        for (key, problem) in now {
            let since = before
                .get(&key)
                .map_or_else(Timestamp::now, |(_, since)| *since);
            self.problems.insert(key.clone(), (problem, since));
            self.blame(&key);
        }
    }

    /// Refuses the newest generation of a policy for what is wrong with its manifest.
    fn blame(&mut self, key: &PolicyKey) {
        let Some((problem, _)) = self.problems.get(key) else {
            return;
        };
        let Some(rollout) = self.drive.plane.rollout(key) else {
            return;
        };
        let (id, generation) = (rollout.id().clone(), rollout.generation());
        let has = rollout.has_revision_of(generation);
        // A module's file that is gone matters only before it was read, and a second
        // manifest must not keep the first from being vetted.
        let passes = match problem.reason {
            Reason::PullError => has,
            Reason::Duplicate => !has,
            Reason::Unreadable | Reason::Invalid => false,
        };
        if passes {
            return;
        }
        let refusal = Refusal {
            reason: reason(problem.reason),
            message: problem.message.clone(),
        };
        self.drive.apply(Event::refused(id, generation, refusal));
    }

    /// Says loudly what is wrong, once.
    fn tell(&mut self, problems: &[Problem], held: Option<&decide::Held>) {
        let mut now: Vec<String> = problems.iter().map(|p| p.message.clone()).collect();
        now.extend(held.map(ToString::to_string));
        for message in now.iter().filter(|m| !self.told.contains(m)) {
            error!("{message}");
        }
        self.told = now;
    }

    fn start(&mut self, id: &PolicyId) {
        let Some(record) = self.record(id).cloned() else {
            return;
        };
        if self.jobs.is_running(id, record.generation) {
            return;
        }
        let Some(parsed) = record.effective(&self.options.parse) else {
            return;
        };
        let Some(server) = self.servers.get(&parsed.server) else {
            let refusal = target_not_found(&parsed.server);
            return self
                .drive
                .apply(Event::refused(id.clone(), record.generation, refusal));
        };
        if let Err(error) = check_conditions(&parsed) {
            let refusal = Refusal {
                reason: RefusalReason::Invalid,
                message: error.to_string(),
            };
            return self
                .drive
                .apply(Event::refused(id.clone(), record.generation, refusal));
        }
        let job = Job {
            id: id.clone(),
            generation: record.generation,
            url: parsed.module.clone(),
            pinned: record.pinned_digest().and_then(|d| d.parse().ok()),
            files: Some(self.options.policies.clone()),
            reach: Reach::LOCAL,
            verification: verification(server.as_ref()),
            settings: parsed.settings.clone(),
            entrypoint: parsed.entrypoint.clone(),
            mutating: parsed.mutating,
            limits: limits(server.as_ref(), &parsed),
            allowed_capabilities: allowed_capabilities(server.as_ref(), &parsed),
        };
        let sources = DeclaredSources::Given(Box::new(sources(server.as_ref())));
        let cancelled = self.jobs.begin(id.clone(), record.generation);
        self.vetting.start(job, sources, cancelled);
    }

    fn accepted(&mut self, id: &PolicyId, record: &Record, module: &Module) {
        self.jobs.accepted(id);
        let Some(parsed) = record.effective(&self.options.parse) else {
            return;
        };
        let server = self.servers.get(&parsed.server).and_then(Option::as_ref);
        let limits = limits(server, &parsed);
        let (policy, revision) = revisions::make(record, &parsed, module, limits, Timestamp::now());
        info!(policy = %id.key, revision = %revision.name, "accepted");
        self.drive.performer.book.add_revision(record.uid, revision);
        self.drive.apply(Event::ready(id.clone(), policy.into()));
        // What is wrong with the manifest is still wrong.
        self.blame(&id.key);
    }

    fn refused(&mut self, id: &PolicyId, generation: i64, failed: Failed) {
        let refusal = self.jobs.refused(id, generation, failed);
        self.drive
            .apply(Event::refused(id.clone(), generation, refusal));
    }
}

/// Which life of a policy a record is of.
pub(super) fn id_of(record: &Record) -> PolicyId {
    PolicyId {
        key: record.key(),
        uid: record.uid.to_string().into(),
    }
}

fn reason(reason: Reason) -> RefusalReason {
    match reason {
        Reason::Unreadable | Reason::Invalid => RefusalReason::Invalid,
        Reason::Duplicate => RefusalReason::Conflicted,
        Reason::PullError => RefusalReason::PullError,
    }
}
