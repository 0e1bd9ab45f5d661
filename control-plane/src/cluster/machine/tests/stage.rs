//! A machine on a stage: objects and replicas are what a test says, and every deed succeeds at
//! once, unless the test plays the API server itself.

use std::{collections::BTreeMap, time::Duration};

use assent_core::{
    PolicyKey,
    fleet::Node,
    plane::Plane,
    rollout::PolicyId,
    session::{Failure, Refused, Rejection, Report, Taken},
};
use assent_grpc::{ControlPlane, Hub, Notice, hub};
use assent_k8s::{
    index::Kind,
    names,
    status::{Target, Wanted},
    watch::{self, Change, What},
    webhook::{self, Desired},
};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    super::{Hands, Machine, Options, Parts},
    objects::{OWN, mk_module, mk_options, mk_pod, mk_policy, mk_server, mk_set, path, uid},
    words::words,
};
use crate::{
    cluster::{
        announce::{Announcer, Told},
        deed::{Deed, Done, Pointed, Pointing},
    },
    drive::Drive,
    metrics::Metrics,
    vetting::{Failed, Outcome},
};

/// After so long without a change, changes are published.
const QUIET: Duration = Duration::from_millis(100);

/// A machine, and what it looks at.
pub(super) struct Stage {
    pub(super) machine: Machine,
    /// Objects as the API server would have them.
    objects: BTreeMap<(Kind, String), Value>,
    statuses: mpsc::UnboundedReceiver<(Target, Option<Wanted>)>,
    events: mpsc::Receiver<Told>,
    _notices: mpsc::Receiver<Notice>,
    version: u64,
    streams: u64,
}

impl Stage {
    /// Nothing was listed yet.
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same with other options.
    pub(super) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let (notices, _notices) = mpsc::channel(1);
        let (announcer, events) = Announcer::new();
        let (sender, statuses) = mpsc::unbounded_channel();
        let hub = Hub::new(hub::Config::default(), ControlPlane::default(), notices);
        let plane = Plane::new(Duration::from_secs(60));
        let mut options = mk_options();
        change(&mut options);
        let machine = Machine::new(Parts {
            drive: Drive::new(plane, Hands::default(), hub.clone(), Metrics::default()),
            hub,
            options,
            announcer,
            statuses: sender,
            modules: Default::default(),
        });
        Self {
            machine,
            objects: BTreeMap::new(),
            statuses,
            events,
            _notices,
            version: 0,
            streams: 0,
        }
    }

    /// A server `default` with these pods, all ready and with a stream; everything is listed.
    pub(super) fn with_replicas(replicas: &[&str]) -> Self {
        let mut stage = Self::new();
        stage.put(Kind::Servers, mk_server("default"));
        stage.put(Kind::Sets, mk_set("default"));
        for name in replicas {
            stage.put(Kind::Pods, mk_pod(name, true));
        }
        stage.list();
        for name in replicas {
            stage.open(name);
        }
        assert_eq!(stage.go(), Vec::<String>::new());
        stage
    }

    /// The same with a policy `a` whose generations 1 to `n` were all enforced in turn.
    pub(super) fn enforced(replicas: &[&str], n: i64) -> Self {
        let mut stage = Self::with_replicas(replicas);
        stage.apply(Kind::ClusterPolicies, mk_policy("a"));
        stage.go_with(replicas);
        for generation in 2..=n {
            stage.edit_spec("a", |spec| spec["settings"] = json!({ "n": generation }));
            stage.go_with(replicas);
        }
        assert_eq!(stage.condition("a", "Enforced"), "True Enforced");
        stage
    }

    /// Another machine that finds the same objects, and has listed nothing yet.
    pub(super) fn next(self) -> Self {
        Self {
            objects: self.objects,
            version: self.version,
            ..Self::new()
        }
    }

    /// An object is there before anything is listed.
    pub(super) fn put(&mut self, kind: Kind, mut object: Value) -> DynamicObject {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let dynamic = serde_json::from_value(object.clone()).unwrap();
        self.objects.insert((kind, path(&object)), object);
        dynamic
    }

    /// Everything is listed.
    pub(super) fn list(&mut self) {
        for kind in watch::ALL {
            let own = self.objects.iter().filter(|((k, _), _)| *k == kind);
            let own = own.map(|(_, o)| serde_json::from_value(o.clone()).unwrap());
            let what = What::Listed(own.collect());
            self.machine.changed(Change { kind, what });
        }
    }

    /// An object is there, or has changed.
    pub(super) fn apply(&mut self, kind: Kind, object: Value) {
        let object = Box::new(self.put(kind, object));
        let what = What::Applied(object);
        self.machine.changed(Change { kind, what });
    }

    /// The stored object, changed.
    pub(super) fn edit(&mut self, kind: Kind, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(kind, path).expect("the object must be there");
        change(&mut object);
        self.apply(kind, object);
    }

    /// A policy with another spec, and so another generation.
    pub(super) fn edit_spec(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.edit(Kind::ClusterPolicies, name, |object| {
            change(&mut object["spec"]);
            let generation = object["metadata"]["generation"].as_i64().unwrap();
            object["metadata"]["generation"] = (generation + 1).into();
        });
    }

    /// Somebody deletes it: it goes when nothing holds it.
    pub(super) fn delete(&mut self, kind: Kind, path: &str) {
        let held = self.object(kind, path).unwrap()["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|f| !f.is_empty());
        if !held {
            return self.gone(kind, path);
        }
        self.edit(kind, path, |o| {
            o["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        });
    }

    /// It is gone.
    pub(super) fn gone(&mut self, kind: Kind, path: &str) {
        let object = self.objects.remove(&(kind, path.to_owned()));
        let object = object.expect("what goes must have been there");
        let what = What::Deleted(serde_json::from_value(object).unwrap());
        self.machine.changed(Change { kind, what });
    }

    pub(super) fn object(&self, kind: Kind, path: &str) -> Option<Value> {
        self.objects.get(&(kind, path.to_owned())).cloned()
    }

    /// Names of the objects of a kind.
    pub(super) fn names(&self, kind: Kind) -> Vec<&str> {
        let own = self.objects.keys().filter(|(k, _)| *k == kind);
        own.map(|(_, path)| path.as_str()).collect()
    }

    /// The path that a policy's webhook names.
    pub(super) fn webhook_path(&self, kind: Kind, name: &str) -> Option<String> {
        let object = self.object(kind, &format!("assent.cluster.{name}"))?;
        let path = object.pointer("/webhooks/0/clientConfig/service/path")?;
        Some(path.as_str()?.to_owned())
    }

    pub(super) fn id(&self, name: &str) -> PolicyId {
        PolicyId {
            key: PolicyKey::cluster(name),
            uid: uid(name).into(),
        }
    }

    // --- replicas

    pub(super) fn open(&mut self, replica: &str) {
        self.streams += 1;
        self.machine.drive.notice(Notice::Opened {
            server: "default".into(),
            node: Node {
                id: replica.into(),
                policy_server: "default".into(),
                ..Node::default()
            },
            identity: String::new(),
            stream: self.streams,
        });
    }

    pub(super) fn close(&mut self, replica: &str) {
        let stream = self.streams;
        self.machine.drive.notice(Notice::Closed {
            server: "default".into(),
            replica: replica.into(),
            stream,
        });
    }

    /// A replica serves what was published last.
    pub(super) fn ack(&mut self, replica: &str) {
        self.report(replica, |snapshot| Report {
            acked: Some(snapshot.version()),
            sent: Some(snapshot.version()),
            taken: Some(Taken {
                snapshot,
                rejected: Vec::new(),
            }),
            ..Report::default()
        });
    }

    /// A replica does not load the newest revision of a policy.
    pub(super) fn refuse(&mut self, replica: &str, policy: &str, why: &str) {
        let rollout = self.machine.drive.plane.rollout_of(&self.id(policy));
        let revision = rollout
            .unwrap()
            .candidate()
            .unwrap()
            .policy
            .revision
            .clone();
        let failure = Failure {
            message: why.into(),
            ..Failure::default()
        };
        let rejection = Rejection {
            revision,
            stage: assent_core::session::Stage::Compile,
            failure: failure.clone(),
            retryable: false,
        };
        self.report(replica, |snapshot| Report {
            sent: Some(snapshot.version()),
            refused: Some(Refused {
                snapshot: snapshot.clone(),
                whole: false,
                failure: failure.clone(),
            }),
            taken: Some(Taken {
                snapshot,
                rejected: vec![rejection],
            }),
            ..Report::default()
        });
    }

    fn report(
        &mut self,
        replica: &str,
        report: impl FnOnce(std::sync::Arc<assent_core::Snapshot>) -> Report,
    ) {
        let plane = &self.machine.drive.plane;
        let server = plane.server("default").unwrap();
        let stream = match server.fleet.replica(replica).map(|r| r.link) {
            Some(assent_core::fleet::Link::Open { stream, .. }) => stream,
            other => panic!("{replica} must have a stream: {other:?}"),
        };
        let snapshot = server.published().expect("something must be published");
        let report = report(snapshot.clone());
        self.machine.drive.notice(Notice::Reported {
            server: "default".into(),
            replica: replica.into(),
            stream,
            report,
        });
    }

    // --- deeds

    /// What is asked for now; nothing of it is done.
    pub(super) fn asked(&mut self) -> Vec<Deed> {
        self.machine.settle();
        self.machine.drive.clock.advance(QUIET);
        self.machine.settle();
        self.machine.take_deeds()
    }

    /// Does whatever is asked for until nothing more is, and says what that was.
    pub(super) fn go(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            let asked = self.asked();
            if asked.is_empty() {
                return said;
            }
            for deed in asked {
                said.push(words(&deed));
                self.perform(deed);
            }
        }
    }

    /// The same until every replica has acknowledged everything.
    pub(super) fn go_with(&mut self, replicas: &[&str]) -> Vec<String> {
        let mut said = self.go();
        loop {
            for replica in replicas {
                self.ack(replica);
            }
            let more = self.go();
            if more.is_empty() {
                return said;
            }
            said.extend(more);
        }
    }

    /// Does one deed as an API server would that has nothing against it.
    pub(super) fn perform(&mut self, deed: Deed) {
        match deed {
            Deed::Vet(job, ..) => self.vetted(&job.id, job.generation, &job.url),
            Deed::Fetch(_) => {}
            Deed::Store {
                id, policy, object, ..
            } => {
                let mut value = serde_json::to_value(*object).unwrap();
                let name = value["metadata"]["name"].as_str().unwrap().to_owned();
                value["metadata"]["uid"] = uid(&name).into();
                let stored = Box::new(self.put(Kind::Revisions, value));
                self.machine.done(Done::Stored(id, policy, stored));
            }
            Deed::ReadPods { id, to, .. } => {
                let pods = self.objects.iter().filter(|((k, _), _)| *k == Kind::Pods);
                let pods = pods.map(|(_, o)| serde_json::from_value(o.clone()).unwrap());
                let pods = pods.collect();
                self.machine.done(Done::Pods(id, to, pods));
            }
            Deed::Flip(id, to, pointing) => {
                let pointed = self.point(&pointing);
                self.machine.done(Done::Flipped(id, to, pointed));
            }
            Deed::Repair(key, pointing) => {
                let pointed = self.point(&pointing);
                self.machine.done(Done::Repaired(key, pointed));
            }
            Deed::Unroute(id, present) => {
                self.unpoint(&present);
                self.machine.done(Done::Unrouted(id));
            }
            Deed::UnrouteServer(server, present) => {
                self.unpoint(&present);
                self.machine.done(Done::ServerUnrouted(server));
            }
            Deed::RemoveOrphans(present) => self.unpoint(&present),
            Deed::Retire { id, revision, keep } => {
                let path = format!("{OWN}/{}", names::revision(&id.key, revision.short()));
                match keep {
                    true => self.set_phase(&path, "History"),
                    false => self.gone(Kind::Revisions, &path),
                }
                self.machine.done(Done::Retired(id, revision));
            }
            Deed::SetPhase(key, revision, phase) => {
                let path = format!("{OWN}/{}", names::revision(&key, revision.short()));
                self.set_phase(&path, phase);
            }
            Deed::DropRevisions(names) => {
                for (namespace, name) in &names {
                    self.gone(Kind::Revisions, &format!("{namespace}/{name}"));
                }
                self.machine.done(Done::Dropped(names));
            }
            Deed::Hold(kind, meta, true) => self.edit(kind, &meta.name, |object| {
                object["metadata"]["finalizers"] = json!([names::FINALIZER]);
            }),
            Deed::Hold(kind, meta, false) => self.gone(kind, &meta.name),
            Deed::EndServer(meta) => self.gone(Kind::Servers, &meta.name),
            Deed::DeletePod(meta) => self.gone(Kind::Pods, &format!("{OWN}/{}", meta.name)),
            Deed::ApplyServer(server, _) => {
                self.machine.done(Done::ServerApplied(server, Ok(())));
            }
            Deed::RollBack {
                kind, key, target, ..
            } => self.roll_back(kind, key, target),
        }
    }

    /// A module passes vetting.
    pub(super) fn vetted(&mut self, id: &PolicyId, generation: i64, url: &str) {
        self.machine.vetted(Outcome {
            id: id.clone(),
            generation,
            result: Ok(mk_module(url)),
        });
    }

    /// A module does not.
    pub(super) fn not_vetted(&mut self, id: &PolicyId, generation: i64, failed: Failed) {
        self.machine.vetted(Outcome {
            id: id.clone(),
            generation,
            result: Err(failed),
        });
    }

    fn set_phase(&mut self, path: &str, phase: &str) {
        self.edit(Kind::Revisions, path, |object| {
            object["status"] = json!({ "phase": phase });
        });
    }

    fn roll_back(&mut self, kind: Kind, key: PolicyKey, target: Result<(i64, Value), String>) {
        let mut object = self.object(kind, key.name()).unwrap();
        object["metadata"]["annotations"] = Value::Null;
        let result = target.map(|(from, spec)| {
            object["spec"] = spec;
            let generation = object["metadata"]["generation"].as_i64().unwrap();
            object["metadata"]["generation"] = (generation + 1).into();
            from
        });
        let object = self.put(kind, object);
        let result = result.map(|from| (from, Box::new(object.clone())));
        self.machine.done(Done::RolledBack(key, result));
        let what = What::Applied(Box::new(object));
        self.machine.changed(Change { kind, what });
    }

    pub(super) fn point(&mut self, pointing: &Pointing) -> Vec<Pointed> {
        let kind = index_kind(pointing.desired.kind());
        let mut value = match &pointing.desired {
            Desired::Validating(object) => serde_json::to_value(object).unwrap(),
            Desired::Mutating(object) => serde_json::to_value(object).unwrap(),
        };
        let name = value["metadata"]["name"].as_str().unwrap().to_owned();
        value["metadata"]["uid"] = uid(&name).into();
        let object = Box::new(self.put(kind, value));
        let mut pointed = vec![Pointed::At(kind, object)];
        let others = pointing
            .present
            .iter()
            .map(|(kind, o)| (index_kind(*kind), o));
        for (other, object) in others.filter(|(other, _)| *other != kind) {
            self.objects.remove(&(other, name.clone()));
            pointed.push(Pointed::Gone(other, Box::new(object.clone())));
        }
        pointed
    }

    fn unpoint(&mut self, present: &[(webhook::Kind, DynamicObject)]) {
        for (kind, object) in present {
            self.gone(index_kind(*kind), object.metadata.name.as_deref().unwrap());
        }
    }

    // --- what people see

    /// Statuses that were handed over to be written since the last look, the newest of each,
    /// computed anew first.
    pub(super) fn wanted(&mut self) -> BTreeMap<String, Option<Wanted>> {
        self.machine.dirty = true;
        self.machine.next_pass = tokio::time::Instant::now();
        self.machine.pass();
        let mut wanted = BTreeMap::new();
        while let Ok((target, status)) = self.statuses.try_recv() {
            wanted.insert(target.name, status);
        }
        wanted
    }

    /// The same, written.
    pub(super) fn write_statuses(&mut self) -> Vec<String> {
        let wanted = self.wanted();
        let wanted = wanted.into_iter().filter_map(|(name, w)| Some((name, w?)));
        let wanted: Vec<(String, Wanted)> = wanted.collect();
        for (name, wanted) in &wanted {
            let kinds = [Kind::ClusterPolicies, Kind::Servers];
            let kind = kinds.into_iter().find(|kind| {
                let object = self.object(*kind, name);
                object.is_some_and(|o| o["metadata"]["uid"] == wanted.uid.as_str())
            });
            self.edit(kind.unwrap(), name, |o| o["status"] = wanted.status.clone());
        }
        wanted.into_iter().map(|(name, _)| name).collect()
    }

    /// A condition of a policy as it would be written: status and reason.
    pub(super) fn condition(&mut self, policy: &str, kind: &str) -> String {
        let stored = self.object(Kind::ClusterPolicies, policy).unwrap();
        let wanted = self.wanted().remove(policy).flatten();
        let status = wanted.map_or_else(|| stored["status"].clone(), |w| w.status);
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|c| c["type"] == kind).unwrap();
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        format!("{} {}", text("status"), text("reason"))
    }

    /// Reasons of the events that were told.
    pub(super) fn events(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Ok((about, event)) = self.events.try_recv() {
            events.push(format!("{} {}", about.name.unwrap(), event.reason));
        }
        events
    }
}

fn index_kind(kind: webhook::Kind) -> Kind {
    match kind {
        webhook::Kind::Validating => Kind::Validating,
        webhook::Kind::Mutating => Kind::Mutating,
    }
}
