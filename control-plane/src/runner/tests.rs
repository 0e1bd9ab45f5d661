#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use assent_api::parse;
use assent_controller::{
    Change, Config, Kind, Meta, Object,
    objects::{ObjectRef, ServerObject},
};
use assent_grpc::{ControlPlane, hub};
use assent_local::{KINDS, LocalBackend};
use assent_modules::{store::Store, vet::Vetter};
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::vetting::{Artefacts, Compiler};

struct Harness {
    runner: Runner,
    controller: Controller<LocalBackend>,
    registry: Registry,
    _dir: TempDir,
}

impl Harness {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (events, _) = mpsc::channel(1);
        let hub = Hub::new(hub::Config::default(), ControlPlane::default(), events);
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let store = Store::open(dir.path()).unwrap();
        let (outcomes, _) = mpsc::channel(1);
        let vetter = Vetter::new("/nonexistent".into(), Vec::new());
        let compiler = Compiler::open(dir.path(), store, vetter, metrics.clone()).unwrap();
        let vetting = Vetting::new(Artefacts::new(compiler), outcomes);
        let access = ModuleAccess {
            files: None,
            addresses: AddressPolicy::LOCAL,
            settings: None,
            sources: Arc::new(|_: Option<&ParsedServer>| DeclaredSources::Given(Box::default())),
        };
        let config = Config {
            parse: parse::Options::default(),
            kinds: KINDS.to_vec(),
            drain: None,
            grace: Duration::from_secs(60),
            sync_deadline: Duration::from_secs(30),
            max_policies_per_namespace: None,
            no_context: None,
        };
        let mut harness = Self {
            runner: Runner::new(hub, metrics, vetting, access, Arc::new(context::NoContext)),
            controller: Controller::new(LocalBackend, config, HashSet::new()),
            registry,
            _dir: dir,
        };
        for kind in KINDS {
            harness.change(Change::Listed(kind, Vec::new()));
        }
        harness
    }

    fn change(&mut self, change: Change<()>) {
        self.controller.change(self.runner.now(), change);
        self.settle();
    }

    /// Performs everything; removing the routes of a server takes effect at once.
    fn settle(&mut self) {
        let actions = self.controller.settle(self.runner.now());
        for action in actions {
            if let Some(Action::RemoveServerRoutes(server, _)) = self.runner.perform(action) {
                let outcome = Outcome::ServerRoutesRemoved(server, Vec::new());
                self.controller.outcome(self.runner.now(), outcome);
                self.settle();
            }
        }
    }

    fn has_gauges_of(&mut self, server: &str) -> bool {
        self.runner.measure(&self.controller);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.contains(&format!("policy_server=\"{server}\""))
    }
}

fn mk_server(name: &str) -> Object<()> {
    Object::Server(Box::new(ServerObject {
        meta: Meta {
            name: name.into(),
            uid: name.into(),
            generation: 1,
            has_finalizer: true,
            ..Meta::default()
        },
        parsed: Ok(None),
        status: None,
    }))
}

#[test]
fn gauges_of_a_removed_server_are_dropped() {
    let mut harness = Harness::new();
    harness.change(Change::Applied(mk_server("extra")));
    assert!(harness.has_gauges_of("extra"));
    harness.change(Change::Deleted(ObjectRef {
        kind: Kind::Servers,
        namespace: String::new(),
        name: "extra".into(),
        uid: String::new(),
    }));
    assert!(!harness.has_gauges_of("extra"));
}

#[test]
fn a_rollback_request_gets_its_own_answer() {
    let mut runner = Harness::new().runner;
    let (first, mut first_answer) = oneshot::channel();
    let (second, mut second_answer) = oneshot::channel();
    let (first, second) = (runner.ticket(first), runner.ticket(second));
    let answer = Action::<LocalBackend>::AnswerRollback(second, Ok((1, 3)));
    assert!(runner.perform(answer).is_none());
    assert_eq!(second_answer.try_recv().unwrap().unwrap(), (1, 3));
    runner.reject(first, "the disk is full");
    let rejected = first_answer.try_recv().unwrap().unwrap_err();
    assert!(matches!(rejected, rollout::Error::Unavailable(_)));
}
