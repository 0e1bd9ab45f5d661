//! A controller in a world, with replicas that answer what a test says and time that passes
//! when a test says so.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use assent_api::parse::{Module, Rollback};
use assent_controller::{
    Action, Config, Controller, Failure, Now, Outcome, VetJob,
    action::{EventKind, RollbackError, Status, StatusTarget, StatusUpdate, VerifySignature},
    contexts::{Assignment, FollowedCollection, KindRef},
};
use assent_core::{
    Digest, Millis, Snapshot,
    fleet::{Connection, Node, feature},
    plane::StreamEvent,
    rollout::PolicyId,
    session::{AppliedSnapshot, Failure as LoadFailure, RefusedSnapshot, Rejection, Report, Stage},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    describe::describe,
    world::{Changes, World, policy_key},
};

/// Longer than changes are coalesced and statuses are held back.
const MOMENT: Duration = Duration::from_millis(250);

pub(crate) const MODULE: &str = "registry://example.com/policy:v1";

pub(crate) struct Harness<W: World> {
    pub(crate) world: W,
    pub(crate) controller: Controller<W::Backend>,
    pub(crate) answers: BTreeMap<u64, Result<(i64, i64), RollbackError>>,
    pub(crate) fetched: Vec<String>,
    at: Millis,
    streams: u64,
    statuses: BTreeMap<StatusTarget, Option<StatusUpdate>>,
    events: Vec<String>,
    published: BTreeMap<Arc<str>, Arc<Snapshot>>,
    /// What is followed and assigned.
    pub(crate) kinds: Vec<KindRef>,
    pub(crate) followed: Vec<FollowedCollection>,
    pub(crate) assigned: BTreeMap<String, Assignment>,
}

impl<W: World> Harness<W> {
    /// A controller that has listed everything, and replicas with a stream.
    pub(crate) fn with_replicas(replicas: &[&str]) -> Self {
        Self::listed(Self::unlisted(W::with_replicas(replicas), []), replicas)
    }

    /// The same with a drain that takes time.
    pub(crate) fn with_drain(replicas: &[&str], drain: Duration) -> Self {
        let world = W::with_replicas(replicas);
        let config = Config {
            drain: Some(drain),
            ..world.config()
        };
        Self::listed(Self::configured(world, config, []), replicas)
    }

    /// The same without objects that policies could read.
    pub(crate) fn without_context(why: &'static str) -> Self {
        let world = W::with_replicas(&[]);
        let config = Config {
            no_context: Some(why),
            ..world.config()
        };
        Self::listed(Self::configured(world, config, []), &[])
    }

    fn listed(mut harness: Self, replicas: &[&str]) -> Self {
        harness.list();
        for replica in replicas {
            harness.open(replica);
        }
        assert_eq!(harness.run(), Vec::<String>::new());
        harness
    }

    /// The same with a policy `a` whose generations 1 to `n` were all enforced in turn.
    pub(crate) fn enforced(replicas: &[&str], n: i64) -> Self {
        let mut harness = Self::with_replicas(replicas);
        for generation in 1..=n {
            harness.put_policy("a", |spec| settings(spec, generation));
            harness.run_with(replicas);
            assert_eq!(harness.world.routed("a"), Some(generation));
        }
        assert_eq!(harness.condition("a", "Enforced"), "True Enforced");
        harness
    }

    /// A controller that has listed nothing; `modules` are in the module store.
    pub(crate) fn unlisted(world: W, modules: impl IntoIterator<Item = Digest>) -> Self {
        let config = world.config();
        Self::configured(world, config, modules)
    }

    fn configured(world: W, config: Config, modules: impl IntoIterator<Item = Digest>) -> Self {
        let modules = modules.into_iter().collect::<HashSet<_>>();
        let controller = Controller::new(world.backend(), config, modules);
        Self {
            world,
            controller,
            answers: BTreeMap::new(),
            fetched: Vec::new(),
            at: Millis(1_000),
            streams: 0,
            statuses: BTreeMap::new(),
            events: Vec::new(),
            published: BTreeMap::new(),
            kinds: Vec::new(),
            followed: Vec::new(),
            assigned: BTreeMap::new(),
        }
    }

    /// The next process, which finds what this one stored and has the modules, or not. The
    /// replicas reconnect.
    pub(crate) fn restart(self, has_modules: bool, replicas: &[&str]) -> Self {
        let modules = [MODULE, "registry://example.com/policy:v2"];
        let modules = modules.map(|url| Digest::of(url.as_bytes()));
        let modules = modules.into_iter().filter(|_| has_modules);
        let mut next = Self::unlisted(self.world.restart(), modules);
        // Time goes on: stored times are older.
        next.at = self.at;
        next.list();
        for replica in replicas {
            next.open(replica);
        }
        next
    }

    pub(crate) fn list(&mut self) {
        let changes = self.world.list();
        self.observe(changes);
    }

    pub(crate) fn now(&self) -> Now {
        // Clocks have fractions of a second, and objects do not.
        let millis = 1_700_000_000_123 + i64::try_from(self.at.0).unwrap();
        Now {
            at: self.at,
            date: Timestamp::from_millisecond(millis).unwrap(),
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.at = self.at + time;
    }

    pub(crate) fn observe(&mut self, changes: Changes<W>) {
        for change in changes {
            self.controller.change(self.now(), change);
        }
    }

    // === users

    pub(crate) fn put_policy(&mut self, name: &str, edit: impl Fn(&mut Value)) {
        let changes = self.world.put_policy(name, &edit);
        self.observe(changes);
    }

    pub(crate) fn delete_policy(&mut self, name: &str) {
        let changes = self.world.delete_policy(name);
        self.observe(changes);
    }

    pub(crate) fn put_server(&mut self, name: &str, edit: impl Fn(&mut Value)) {
        let changes = self.world.put_server(name, &edit);
        self.observe(changes);
    }

    pub(crate) fn delete_server(&mut self, name: &str) {
        let changes = self.world.delete_server(name);
        self.observe(changes);
    }

    pub(crate) fn roll_back(&mut self, policy: &str, to: Rollback, ticket: u64) {
        let key = policy_key(policy);
        self.controller
            .request_rollback(self.now(), &key, to, Some(ticket));
    }

    pub(crate) fn id(&self, policy: &str) -> PolicyId {
        PolicyId {
            key: policy_key(policy),
            uid: self.world.uid(policy).into(),
        }
    }

    // === replicas

    pub(crate) fn open(&mut self, replica: &str) {
        self.open_with(replica, &[feature::CONFIRM]);
    }

    /// A replica with these features connects.
    pub(crate) fn open_with(&mut self, replica: &str, features: &[&str]) {
        self.streams += 1;
        let event = StreamEvent::Opened {
            node: Node {
                id: replica.into(),
                policy_server: "default".into(),
                features: features.iter().map(ToString::to_string).collect(),
                ..Node::default()
            },
            identity: String::new(),
            stream: self.streams,
        };
        self.controller.stream(self.now(), event);
    }

    pub(crate) fn close(&mut self, replica: &str) {
        let stream = self.stream_of(replica);
        let event = StreamEvent::Closed {
            server: "default".into(),
            replica: replica.into(),
            stream,
        };
        self.controller.stream(self.now(), event);
    }

    /// A replica serves what was published last.
    pub(crate) fn acknowledge(&mut self, replica: &str) {
        self.report(replica, |snapshot| Report {
            acked: Some(snapshot.version()),
            sent: Some(snapshot.version()),
            applied: Some(AppliedSnapshot {
                snapshot,
                rejected: Vec::new(),
            }),
            ..Report::default()
        });
    }

    /// A replica does not load the candidate of a policy.
    pub(crate) fn reject(&mut self, replica: &str, policy: &str, why: &str) {
        let rollout = self.controller.plane().rollout_of(&self.id(policy));
        let candidate = rollout.unwrap().candidate().unwrap();
        let failure = LoadFailure {
            message: why.into(),
            ..LoadFailure::default()
        };
        let rejection = Rejection {
            revision: candidate.policy.revision.clone(),
            stage: Stage::Compile,
            failure: failure.clone(),
            retryable: false,
        };
        self.report(replica, |snapshot| Report {
            sent: Some(snapshot.version()),
            refused: Some(RefusedSnapshot {
                snapshot: snapshot.clone(),
                whole: false,
                failure,
            }),
            applied: Some(AppliedSnapshot {
                snapshot,
                rejected: vec![rejection],
            }),
            ..Report::default()
        });
    }

    fn report(&mut self, replica: &str, report: impl FnOnce(Arc<Snapshot>) -> Report) {
        let stream = self.stream_of(replica);
        let snapshot = self.published("default").expect("nothing is published");
        let event = StreamEvent::Reported {
            server: "default".into(),
            replica: replica.into(),
            stream,
            report: report(snapshot),
        };
        self.controller.stream(self.now(), event);
    }

    fn stream_of(&self, replica: &str) -> u64 {
        let server = self.controller.plane().server("default").unwrap();
        match server.fleet.replica(replica).map(|r| r.connection) {
            Some(Connection::Open { stream, .. }) => stream,
            other => panic!("{replica} must have a stream: {other:?}"),
        }
    }

    pub(crate) fn published(&self, server: &str) -> Option<Arc<Snapshot>> {
        self.published.get(server).cloned()
    }

    /// Generations and states of the routes that were published last: `1 Active`.
    #[track_caller]
    pub(crate) fn published_routes(&self) -> Vec<String> {
        let snapshot = self.published("default").expect("nothing is published");
        let routes = snapshot.routes().map(|route| {
            let revision = route.path.rsplit('/').next().unwrap();
            let generation = revision.split('-').next().unwrap();
            format!("{generation} {:?}", route.state)
        });
        routes.collect()
    }

    // === actions

    /// What the controller asks for now; nothing of it is performed. What follows from other
    /// actions (statuses, events, streams) is recorded.
    pub(crate) fn actions(&mut self) -> Vec<Action<W::Backend>> {
        let mut actions = self.settle();
        // Statuses are computed a moment after the change.
        self.pass(MOMENT);
        actions.extend(self.settle());
        let mut asked = Vec::new();
        for action in actions {
            if let Some(action) = self.record(action) {
                asked.push(action);
            }
        }
        asked
    }

    fn settle(&mut self) -> Vec<Action<W::Backend>> {
        let now = self.now();
        let mut actions = self.controller.decide(now);
        actions.extend(self.world.publish(&mut self.controller, now));
        actions
    }

    /// The one action that the controller asks for.
    #[track_caller]
    pub(crate) fn only_action(&mut self) -> Action<W::Backend> {
        let actions = self.actions();
        let words: Vec<_> = actions.iter().filter_map(describe).collect();
        let [action] = <[Action<W::Backend>; 1]>::try_from(actions)
            .unwrap_or_else(|_| panic!("one action must be asked for: {words:?}"));
        action
    }

    /// Performs everything until nothing is asked for, and returns it in words.
    pub(crate) fn run(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        // A controller that never comes to rest is a bug that a test must report.
        for _ in 0..100 {
            let actions = self.actions();
            if actions.is_empty() {
                return done;
            }
            for action in actions {
                done.extend(describe(&action));
                self.perform(action);
            }
        }
        panic!("the controller does not come to rest: {done:?}");
    }

    /// The same until every replica has acknowledged everything.
    pub(crate) fn run_with(&mut self, replicas: &[&str]) -> Vec<String> {
        let mut done = self.run();
        for _ in 0..100 {
            for replica in replicas {
                self.acknowledge(replica);
            }
            let more = self.run();
            if more.is_empty() {
                return done;
            }
            done.extend(more);
        }
        panic!("the replicas never have everything: {done:?}");
    }

    pub(crate) fn perform(&mut self, action: Action<W::Backend>) {
        match action {
            Action::Vet(job) => self.vetted(&job, Ok(mk_module(&job.url))),
            Action::CancelVet(_) => {}
            Action::FetchModule(fetch) => self.fetched.push(fetch.url),
            Action::VerifySignature(check) => self.signature_checked(&check, Ok(())),
            action => {
                let now = self.now();
                self.world.perform(&mut self.controller, now, action);
            }
        }
    }

    pub(crate) fn vetted(&mut self, job: &VetJob, result: Result<Module, Failure>) {
        let outcome = Outcome::Vetted {
            id: job.id.clone(),
            generation: job.generation,
            result,
        };
        self.controller.outcome(self.now(), outcome);
    }

    pub(crate) fn signature_checked(
        &mut self,
        check: &VerifySignature,
        result: Result<(), String>,
    ) {
        let outcome = Outcome::SignatureChecked {
            id: check.id.clone(),
            revision: check.revision.clone(),
            keys: check.keys.clone(),
            result,
        };
        self.controller.outcome(self.now(), outcome);
    }

    /// The signature to be checked, which is the only action.
    #[track_caller]
    pub(crate) fn only_signature(&mut self) -> Box<VerifySignature> {
        match self.only_action() {
            Action::VerifySignature(check) => check,
            other => panic!("a signature must be checked: {:?}", describe(&other)),
        }
    }

    /// The vetting job that is the only action.
    #[track_caller]
    pub(crate) fn only_vet(&mut self) -> Box<VetJob> {
        match self.only_action() {
            Action::Vet(job) => job,
            other => panic!("a module must be vetted: {:?}", describe(&other)),
        }
    }

    fn record(&mut self, action: Action<W::Backend>) -> Option<Action<W::Backend>> {
        match action {
            Action::WriteStatus(target, update) => {
                self.statuses.insert(target, update);
            }
            Action::RecordEvent(event) => {
                let reason = match &event.what {
                    EventKind::Condition(condition) => condition.reason.clone(),
                    EventKind::RolledBack { .. } => "RolledBack".into(),
                    EventKind::RollbackRejected(_) => "RollbackRefused".into(),
                    EventKind::SettingsChanged => "SettingsChanged".into(),
                    EventKind::Revision(incident, _) => incident.as_str().into(),
                };
                self.events.push(format!("{} {reason}", event.key.name()));
            }
            Action::AnswerRollback(ticket, result) => {
                self.answers.insert(ticket, result);
            }
            Action::Publish(server, snapshot) => {
                self.published.insert(server, snapshot);
            }
            Action::FollowKinds(kinds) => self.kinds = kinds,
            Action::FollowCollections(followed) => self.followed = followed,
            Action::AssignCollections(assignment) => {
                self.assigned.insert(assignment.server.clone(), *assignment);
            }
            Action::AddServer(_)
            | Action::RemoveServer(_)
            | Action::SetSynced
            | Action::Measure(_) => {}
            action => return Some(action),
        }
        None
    }

    // === what people see

    /// Statuses to be written since the last look, by name, with what else was asked for
    /// meanwhile performed.
    pub(crate) fn statuses(&mut self) -> BTreeMap<String, StatusUpdate> {
        self.pass(MOMENT);
        assert_eq!(self.run(), Vec::<String>::new());
        let statuses = std::mem::take(&mut self.statuses).into_iter();
        statuses
            .filter_map(|(target, update)| Some((target.name, update?)))
            .collect()
    }

    /// The same, written: the names of the objects.
    pub(crate) fn write_statuses(&mut self) -> Vec<String> {
        self.pass(MOMENT);
        assert_eq!(self.run(), Vec::<String>::new());
        let statuses = std::mem::take(&mut self.statuses);
        let statuses = statuses.into_iter().filter(|(_, update)| update.is_some());
        let mut names = Vec::new();
        for (target, update) in statuses {
            names.push(target.name.clone());
            self.perform(Action::WriteStatus(target, update));
        }
        names.sort();
        names
    }

    /// A condition of a policy: status and reason.
    #[track_caller]
    pub(crate) fn condition(&mut self, policy: &str, kind: &str) -> String {
        let id = self.id(policy);
        let status = self.controller.policy_status(self.now(), &id);
        let conditions = status.expect("the policy must be known").conditions;
        let found = conditions.into_iter().find(|c| c.type_ == kind).unwrap();
        format!("{} {}", found.status, found.reason)
    }

    /// The message of a condition of a policy.
    pub(crate) fn message(&mut self, policy: &str, kind: &str) -> String {
        let id = self.id(policy);
        let status = self.controller.policy_status(self.now(), &id).unwrap();
        let mut conditions = status.conditions.into_iter();
        conditions.find(|c| c.type_ == kind).unwrap().message
    }

    /// Reasons of the events since the last look.
    pub(crate) fn events(&mut self) -> Vec<String> {
        self.pass(MOMENT);
        self.run();
        std::mem::take(&mut self.events)
    }
}

/// The status of an update as JSON.
pub(crate) fn to_json(update: &StatusUpdate) -> Value {
    match &update.status {
        Status::Policy(status) => serde_json::to_value(status).unwrap(),
        Status::Server(status) => serde_json::to_value(status).unwrap(),
    }
}

pub(crate) fn mk_module(url: &str) -> Module {
    Module {
        digest: Digest::of(url.as_bytes()),
        size: 7,
        abi: "wapc".into(),
        host_capabilities: Vec::new(),
        signer: None,
        url: url.to_owned(),
        secret_settings: None,
    }
}

/// The spec of a policy.
pub(crate) fn mk_spec() -> Value {
    json!({
        "module": MODULE,
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["pods"],
        }],
    })
}

pub(crate) fn settings(spec: &mut Value, n: i64) {
    spec["settings"] = json!({ "n": n });
}
