//! A standalone control plane without IO besides its state directory: time, vetting and
//! replicas are the test's.

use std::{fs, sync::Arc, time::Duration};

use assent_api::{API_VERSION, parse::Module};
use assent_controller::{Action, Config, Failure, Outcome, action::RollbackError};
use assent_core::{
    Digest, Millis, Snapshot,
    fleet::Node,
    plane::StreamEvent,
    rollout::{PolicyId, Refusal},
    session::{AppliedSnapshot, Report},
    status,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{
    backend::KINDS,
    directory::{Document, Error},
    state::PolicyRecord,
};

pub(super) fn policy(name: &str, settings: Value) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"module": "registry://example.com/p:v1", "settings": settings, "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
    })
}

pub(super) fn server(name: &str, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "PolicyServer", "metadata": {"name": name}, "spec": spec})
}

pub(super) struct Harness {
    dir: TempDir,
    api: Option<LocalApi>,
    controller: Controller<LocalBackend>,
    now: Now,
    documents: BTreeMap<String, Document>,
    /// Server and name of connected replicas, with their streams.
    replicas: BTreeMap<(String, String), u64>,
    streams: u64,
    /// What vetting reports; a module without one.
    pub(super) refusal: Option<Refusal>,
    /// Replicas do not answer.
    pub(super) hold_acks: bool,
    pub(super) published: BTreeMap<String, Arc<Snapshot>>,
    /// Vetting jobs so far.
    pub(super) vetted: usize,
    /// Commits of the last [`Harness::settle`] that had something to write.
    pub(super) writes: usize,
    answers: Vec<Result<(i64, i64), RollbackError>>,
}

impl Harness {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut harness = Self {
            api: Some(open(&dir)),
            dir,
            controller: mk_controller(),
            now: Now {
                at: Millis(1_000),
                date: Timestamp::from_second(1_700_000_000).unwrap(),
            },
            documents: BTreeMap::new(),
            replicas: BTreeMap::new(),
            streams: 0,
            refusal: None,
            hold_acks: false,
            published: BTreeMap::new(),
            vetted: 0,
            writes: 0,
            answers: Vec::new(),
        };
        harness.scan();
        harness.connect("r0");
        harness.connect("r1");
        harness
    }

    pub(super) fn api(&self) -> &LocalApi {
        self.api.as_ref().unwrap()
    }

    /// Only what was written is left; the replicas reconnect with what they had.
    pub(super) fn restart(&mut self) {
        let replicas: Vec<_> = self.replicas.keys().cloned().collect();
        self.restart_without_directory();
        self.scan();
        for (server, name) in replicas {
            self.connect_to(&server, &name);
        }
        self.settle();
    }

    pub(super) fn restart_without_directory(&mut self) {
        self.api = None;
        self.api = Some(open(&self.dir));
        self.controller = mk_controller();
        self.published.clear();
        self.replicas.clear();
    }

    pub(super) fn add(&mut self, file: &str, value: Value) {
        let options = parse_options();
        let document = Document {
            file: file.into(),
            number: 1,
            line: 1,
            object: parse::identify(&value, &options),
            result: parse::manifest(&value, &options).map_err(Error::from),
            module: None,
        };
        self.documents.insert(file.into(), document);
    }

    pub(super) fn apply(&mut self, file: &str, value: Value) {
        self.add(file, value);
        self.scan();
    }

    pub(super) fn remove(&mut self, file: &str) {
        self.documents.remove(file);
        self.scan();
    }

    pub(super) fn scan(&mut self) {
        let scan = Scan {
            documents: self.documents.values().cloned().collect(),
            ..Scan::default()
        };
        let api = self.api.as_mut().unwrap();
        for change in api.apply_scan(self.now.date, &scan) {
            self.controller.change(self.now, change);
        }
    }

    pub(super) fn connect(&mut self, name: &str) {
        self.connect_to("default", name);
    }

    pub(super) fn connect_to(&mut self, server: &str, name: &str) {
        self.streams += 1;
        self.replicas
            .insert((server.into(), name.into()), self.streams);
        let node = Node {
            id: name.into(),
            policy_server: server.into(),
            ..Node::default()
        };
        let event = StreamEvent::Opened {
            node,
            identity: String::new(),
            stream: self.streams,
        };
        self.controller.stream(self.now, event);
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    fn pass(&mut self, by: Duration) {
        self.now.at = self.now.at + by;
        self.now.date += by;
    }

    pub(super) fn break_disk(&self) {
        fs::rename(
            self.dir.path().join("objects"),
            self.dir.path().join("aside"),
        )
        .unwrap();
    }

    pub(super) fn repair_disk(&self) {
        fs::rename(
            self.dir.path().join("aside"),
            self.dir.path().join("objects"),
        )
        .unwrap();
    }

    /// Everything that happens within two seconds.
    pub(super) fn settle(&mut self) {
        self.writes = 0;
        for _ in 0..8 {
            self.step();
            self.acknowledge();
            self.pass(Duration::from_millis(250));
        }
    }

    pub(super) fn undo(&mut self, name: &str, to: Rollback) -> Result<(i64, i64), String> {
        let key = PolicyKey::cluster(name);
        self.controller
            .request_rollback(self.now, &key, to, Some(1));
        self.step();
        self.answers.pop().unwrap().map_err(|e| e.to_string())
    }

    pub(super) fn record(&self, name: &str) -> &PolicyRecord {
        self.api().store().get(&PolicyKey::cluster(name)).unwrap()
    }

    pub(super) fn active(&self, name: &str) -> Option<i64> {
        self.record(name).active_revision().map(|r| r.generation)
    }

    pub(super) fn status(&mut self, name: &str) -> status::PolicyStatus {
        let id = self.id(name);
        self.controller.status(self.now, &id).unwrap().0
    }

    pub(super) fn object(&mut self, name: &str) -> PolicyStatus {
        let id = self.id(name);
        self.controller.policy_status(self.now, &id).unwrap()
    }

    /// The policies that the dispatch calls.
    pub(super) fn table(&self) -> Vec<String> {
        let table = self.api().table();
        let targets = table.targets().iter();
        targets.map(|t| t.policy().key.to_string()).collect()
    }

    fn id(&self, name: &str) -> PolicyId {
        objects::policy_id(self.record(name))
    }

    fn step(&mut self) {
        let api = self.api.as_mut().unwrap();
        let mut actions = api.settle(&mut self.controller, self.now);
        self.writes += usize::from(api.store().has_changes());
        actions.extend(
            api.publish(&mut self.controller, self.now)
                .unwrap_or_default(),
        );
        for action in actions {
            match action {
                Action::Vet(job) => {
                    self.vetted += 1;
                    let module = Module {
                        digest: Digest::of(job.url.as_bytes()),
                        size: 3,
                        abi: "wapc".into(),
                        host_capabilities: Vec::new(),
                        signer: None,
                        url: job.url,
                        secret_settings: None,
                    };
                    let failure = |refusal| Failure {
                        refusal,
                        retryable: true,
                    };
                    let outcome = Outcome::Vetted {
                        id: job.id,
                        generation: job.generation,
                        result: self.refusal.clone().map_or(Ok(module), |r| Err(failure(r))),
                    };
                    self.controller.outcome(self.now, outcome);
                }
                Action::Publish(server, snapshot) => {
                    self.published.insert(server.to_string(), snapshot);
                }
                Action::RemoveServer(server) => {
                    self.published.remove(&server);
                    self.replicas.retain(|(s, _), _| *s != server);
                }
                Action::AnswerRollback(_, result) => self.answers.push(result),
                _ => {}
            }
        }
    }

    /// Every replica has loaded what was published for its server.
    pub(super) fn acknowledge(&mut self) {
        if self.hold_acks {
            return;
        }
        for ((server, name), stream) in &self.replicas {
            let Some(snapshot) = self.published.get(server) else {
                continue;
            };
            let version = Some(snapshot.version());
            let event = StreamEvent::Reported {
                server: server.as_str().into(),
                replica: name.as_str().into(),
                stream: *stream,
                report: Report {
                    applied: Some(AppliedSnapshot {
                        snapshot: snapshot.clone(),
                        rejected: Vec::new(),
                    }),
                    sent: version,
                    acked: version,
                    ..Report::default()
                },
            };
            self.controller.stream(self.now, event);
        }
    }
}

fn open(dir: &TempDir) -> LocalApi {
    let (store, damaged) = StateStore::open(dir.path()).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let options = Options {
        parse: parse_options(),
        allow_mass_removal: false,
    };
    LocalApi::new(store, options)
}

fn mk_controller() -> Controller<LocalBackend> {
    let config = Config {
        parse: parse_options(),
        kinds: KINDS.to_vec(),
        drain: None,
        grace: Duration::from_secs(60),
        sync_deadline: Duration::from_secs(30),
        max_policies_per_namespace: None,
        no_context: None,
    };
    let modules = [Digest::of(b"registry://example.com/p:v1")];
    Controller::new(LocalBackend, config, modules.into_iter().collect())
}

fn parse_options() -> parse::Options {
    parse::Options {
        standalone: true,
        ..parse::Options::default()
    }
}
