//! A controller on a scripted API server: every write succeeds at once and comes back as the
//! stored object.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use assent_api::{
    Parsed, ParsedServer, PolicyStatus,
    parse::{self, Module},
    revision::Phase,
};
use assent_controller::{
    Action, Backend, Change, Config, Controller, Kind, Meta, Now, Object, Outcome, RouteSpec,
    action::{Status, StatusTarget, StatusUpdate},
    objects::{PolicyObject, RevisionObject, RouteObject, ServerObject},
    revision,
};
use assent_core::{
    Digest, Millis, PolicyKey, RevisionId, Snapshot,
    fleet::{CountedReplicas, Node},
    plane::StreamEvent,
    policy::Limits,
    rollout::PolicyId,
};
use serde_json::json;

use super::{
    Cost,
    world::{name, report},
};

const SERVER: &str = "default";

const KINDS: [Kind; 5] = [
    Kind::ClusterPolicies,
    Kind::Servers,
    Kind::Revisions,
    Kind::Validating,
    Kind::Mutating,
];

/// Routes are revisions, and nothing else.
pub(super) struct Memory;

/// A controller and everything around it.
pub(super) struct Cluster {
    controller: Controller<Memory>,
    now: Now,
    replicas: usize,
    version: u64,
    unacknowledged: BTreeMap<Arc<str>, Arc<Snapshot>>,
    pub(super) cost: Cost,
}

// === impl Memory ===

impl Backend for Memory {
    type Existing = ();
    type Desired = RevisionId;
    type Workload = ();

    fn counted_replicas(&self) -> CountedReplicas {
        CountedReplicas::All
    }

    fn check(&self, _: &Parsed) -> Result<(), String> {
        Ok(())
    }

    fn desired(&self, route: &RouteSpec<'_>) -> RevisionId {
        route.revision.clone()
    }

    fn is_current(&self, existing: &[&RouteObject<()>], desired: &RevisionId) -> bool {
        matches!(existing, [only] if only.revision.as_ref() == Some(desired))
    }

    fn selector(&self, _: &str) -> Option<String> {
        None
    }

    fn workload(&self, _: &ParsedServer, _: &str) -> Option<()> {
        None
    }
}

// === impl Cluster ===

impl Cluster {
    /// A controller that has seen nothing.
    pub(super) fn new(replicas: usize) -> anyhow::Result<Self> {
        let config = Config {
            parse: parse::Options::default(),
            kinds: KINDS.to_vec(),
            drain: Some(Duration::ZERO),
            grace: Duration::from_secs(60),
            sync_deadline: Duration::from_secs(30),
            max_policies_per_namespace: None,
            no_context: None,
        };
        let modules = HashSet::from([module().digest]);
        Ok(Self {
            controller: Controller::new(Memory, config, modules),
            now: Now {
                at: Millis(1_000),
                date: "2026-01-02T03:04:05Z"
                    .parse()
                    .context("a date must parse")?,
            },
            replicas,
            version: 0,
            unacknowledged: BTreeMap::new(),
            cost: Cost::default(),
        })
    }

    /// Lists of all kinds, in which every policy is enforced.
    pub(super) fn lists(&mut self, policies: usize) -> anyhow::Result<Vec<Change<()>>> {
        let mut lists: BTreeMap<Kind, Vec<Object<()>>> =
            KINDS.into_iter().map(|kind| (kind, Vec::new())).collect();
        let mut add = |kind: Kind, object| lists.entry(kind).or_default().push(object);
        let server = ServerObject {
            meta: self.meta(SERVER, "server", 1),
            parsed: Ok(None),
            status: None,
        };
        add(Kind::Servers, Object::Server(Box::new(server)));
        for n in 0..policies {
            let policy = self.policy(n, 1)?;
            let (revision, route) = self.enforced(&policy)?;
            add(Kind::ClusterPolicies, Object::Policy(Box::new(policy)));
            add(Kind::Revisions, Object::Revision(Box::new(revision)));
            add(Kind::Validating, Object::Route(Box::new(route)));
        }
        let lists = lists.into_iter();
        Ok(lists
            .map(|(kind, objects)| Change::Listed(kind, objects))
            .collect())
    }

    /// Everything was listed; replicas reconnect, and statuses are written.
    pub(super) fn restore(&mut self, lists: Vec<Change<()>>) -> anyhow::Result<()> {
        for change in lists {
            self.controller.change(self.now, change);
        }
        self.perform_all();
        ensure!(self.controller.is_restored(), "every kind must be listed");
        for replica in 0..self.replicas {
            let node = Node {
                id: name(replica).to_string(),
                policy_server: SERVER.into(),
                ..Node::default()
            };
            let event = StreamEvent::Opened {
                node,
                identity: String::new(),
                stream: 1,
            };
            self.controller.stream(self.now, event);
        }
        self.settle_all();
        let plane = self.controller.plane();
        let active = plane.rollouts().all(|(_, r)| r.active().is_some());
        ensure!(active, "every policy must be active after a restore");
        Ok(())
    }

    /// Everything is looked at again.
    pub(super) fn resync(&mut self) -> anyhow::Result<()> {
        self.controller.resync(self.now);
        self.settle_all();
        Ok(())
    }

    /// One policy gets a new generation, which is enforced in the end.
    pub(super) fn edit(&mut self, n: usize) -> anyhow::Result<()> {
        let key = key(n);
        let old = self.controller.objects().policy(&key);
        let old = old.context("the policy must exist")?.clone();
        let generation = old.meta.generation + 1;
        let mut new = self.policy(n, generation)?;
        new.status = old.status;
        let id = new.id();
        let change = Change::Applied(Object::Policy(Box::new(new)));
        self.controller.change(self.now, change);
        self.settle_all();
        let rollout = self.controller.plane().rollout_of(&id);
        let active = rollout.and_then(|r| r.active()).map(|p| p.generation);
        ensure!(active == Some(generation), "an edit must be enforced");
        Ok(())
    }

    /// Every replica sends one heartbeat.
    pub(super) fn heartbeats(&mut self) -> anyhow::Result<()> {
        for replica in 0..self.replicas {
            let event = StreamEvent::Heartbeat {
                server: SERVER.into(),
                replica: name(replica),
            };
            self.controller.stream(self.now, event);
            self.perform_all();
        }
        Ok(())
    }

    fn settle_all(&mut self) {
        loop {
            self.perform_all();
            for (server, snapshot) in std::mem::take(&mut self.unacknowledged) {
                for replica in 0..self.replicas {
                    let event = StreamEvent::Reported {
                        server: server.clone(),
                        replica: name(replica),
                        stream: 1,
                        report: report(&snapshot),
                    };
                    self.controller.stream(self.now, event);
                }
                self.perform_all();
            }
            // The end of the startup grace is no part of what is measured.
            let soon = self.now.at + Duration::from_secs(1);
            match self.controller.deadline().filter(|at| *at < soon) {
                Some(at) => self.now.at = at.max(self.now.at),
                None if self.unacknowledged.is_empty() => return,
                None => {}
            }
        }
    }

    /// Performs actions until there are none.
    fn perform_all(&mut self) {
        loop {
            let actions = self.controller.settle(self.now);
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.perform(action);
            }
        }
    }

    fn perform(&mut self, action: Action<Memory>) {
        match action {
            Action::Vet(job) => self.outcome(Outcome::Vetted {
                id: job.id,
                generation: job.generation,
                result: Ok(module()),
            }),
            Action::StoreRevision(store) => {
                self.cost.writes += 1;
                let revision = RevisionObject {
                    meta: self.meta(&revision_name(&store.policy.revision), "revision", 1),
                    key: Some(store.id.key.clone()),
                    policy_uid: store.id.uid.to_string(),
                    spec: Some(Arc::new(store.spec)),
                    policy: Ok(store.policy.clone()),
                    phase: Phase::Candidate,
                };
                let object = Box::new(Object::Revision(Box::new(revision)));
                self.outcome(Outcome::Stored(store.id, store.policy, object));
            }
            Action::SetPhase(id, revision, phase) => {
                self.set_phase(&id, &revision, phase);
                self.outcome(Outcome::PhaseSet(id, revision, None));
            }
            Action::RetireRevision { id, revision, .. } => {
                self.set_phase(&id, &revision, Phase::History);
                self.outcome(Outcome::Retired(id, revision));
            }
            Action::DeleteRevisions(id, names) => {
                self.cost.writes += names.len();
                self.outcome(Outcome::RevisionsDeleted(id, names));
            }
            Action::CheckReplicas { id, to, .. } => {
                self.outcome(Outcome::ReplicasChecked(id, to, Vec::new()));
            }
            Action::Flip(id, revision, _) => {
                self.cost.writes += 1;
                let route = Object::Route(Box::new(self.route(&id, &revision)));
                let changes = vec![Change::Applied(route)];
                self.outcome(Outcome::Flipped(id, revision, changes));
            }
            Action::WriteStatus(target, Some(update)) => self.write_status(target, update),
            Action::RecordEvent(_) => self.cost.events += 1,
            Action::Publish(server, snapshot) => {
                self.cost.publications += 1;
                self.cost.hashed += snapshot.hashed_bytes();
                self.unacknowledged.insert(server, snapshot);
            }
            _ => {}
        }
    }

    fn outcome(&mut self, outcome: Outcome<Memory>) {
        self.controller.outcome(self.now, outcome);
    }

    fn set_phase(&mut self, id: &PolicyId, revision: &RevisionId, phase: Phase) {
        self.cost.writes += 1;
        let name = revision_name(revision);
        let mut own = self.controller.objects().revisions(&id.key, &id.uid);
        let Some(found) = own.find(|r| r.meta.name == name) else {
            return;
        };
        let mut object = found.clone();
        drop(own);
        object.phase = phase;
        object.meta.resource_version = self.next_version();
        let change = Change::Applied(Object::Revision(Box::new(object)));
        self.controller.change(self.now, change);
    }

    fn write_status(&mut self, target: StatusTarget, update: StatusUpdate) {
        self.cost.writes += 1;
        self.cost.statuses += 1;
        let version = self.next_version();
        let objects = self.controller.objects();
        let object = match update.status {
            Status::Policy(status) => {
                let policy = objects.policy(&PolicyKey::cluster(&target.name)).cloned();
                policy.map(|mut policy| {
                    policy.status = Some(PolicyStatus::clone(&status));
                    policy.meta.resource_version = version;
                    Object::Policy(Box::new(policy))
                })
            }
            Status::Server(status) => objects.server(&target.name).cloned().map(|mut server| {
                server.status = Some(*status);
                server.meta.resource_version = version;
                Object::Server(Box::new(server))
            }),
        };
        self.outcome(Outcome::StatusWritten(target, object.map(Box::new)));
    }

    fn policy(&mut self, n: usize, generation: i64) -> anyhow::Result<PolicyObject> {
        let key = key(n);
        let spec = json!({
            "module": "registry://example.com/policy:v1",
            "settings": { "generation": generation },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        });
        let parsed = parse::spec(&key, &spec, &parse::Options::default());
        Ok(PolicyObject {
            meta: self.meta(key.name(), &uid(n), generation),
            parsed: Ok(parsed.map_err(|e| anyhow::anyhow!("{e}"))?),
            key,
            server: SERVER.into(),
            rollback: None,
            pinned: None,
            problem: None,
            status: None,
        })
    }

    /// What is stored of a policy whose newest generation is enforced.
    fn enforced(
        &mut self,
        policy: &PolicyObject,
    ) -> anyhow::Result<(RevisionObject, RouteObject<()>)> {
        let parsed = policy.parsed.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
        let (uid, generation) = (&policy.meta.uid, policy.meta.generation);
        let limits = Limits::default();
        let (made, spec) = revision::make(parsed, uid, generation, &module(), limits);
        let revision = RevisionObject {
            meta: self.meta(&revision_name(&made.revision), "revision", 1),
            key: Some(policy.key.clone()),
            policy_uid: uid.clone(),
            spec: Some(Arc::new(spec)),
            phase: Phase::Active,
            policy: Ok(Arc::new(made)),
        };
        let id = policy.id();
        let named = RevisionId::new(&id.key, generation, uid);
        Ok((revision, self.route(&id, &named)))
    }

    fn route(&mut self, id: &PolicyId, revision: &RevisionId) -> RouteObject<()> {
        RouteObject {
            meta: self.meta(id.key.name(), "route", 1),
            kind: Kind::Validating,
            key: id.key.clone(),
            uid: Some(id.uid.to_string()),
            revision: Some(revision.clone()),
            resolved: None,
            confirms: false,
            existing: (),
        }
    }

    fn meta(&mut self, name: &str, uid: &str, generation: i64) -> Meta {
        Meta {
            name: name.into(),
            uid: uid.into(),
            resource_version: self.next_version(),
            generation,
            has_finalizer: true,
            ..Meta::default()
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }
}

fn key(n: usize) -> PolicyKey {
    PolicyKey::cluster(&format!("policy-{n}"))
}

fn uid(n: usize) -> String {
    format!("{n:08x}-0000-4000-8000-000000000000")
}

fn revision_name(revision: &RevisionId) -> String {
    revision.as_str().replace('/', "-")
}

fn module() -> Module {
    Module {
        digest: Digest::of(b"module"),
        size: 65_536,
        abi: "wapc".into(),
        host_capabilities: Vec::new(),
        signer: None,
        url: "registry://example.com/policy@sha256:0".into(),
        secret_settings: None,
    }
}
