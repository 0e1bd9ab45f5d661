#![allow(clippy::unwrap_used)]

use std::time::Duration;

use assent_core::{
    Digest, Mode, Policy, PolicyKey,
    fleet::{Counting, Node},
    policy::{Content, Limits},
    rollout::{Input, Stored, Timing},
};
use assent_grpc::{ControlPlane, hub};
use tokio::sync::mpsc;

use super::*;

/// Does everything at once, and stores nothing while `broken`.
#[derive(Default)]
struct Store {
    broken: bool,
    done: Vec<Output>,
}

impl Performer for Store {
    fn perform(&mut self, id: &PolicyId, output: &Output, _: SystemTime) -> Vec<Event> {
        self.done.push(output.clone());
        let input = match output {
            Output::Flip { to, .. } => Input::Flipped(to.revision.clone()),
            Output::Retire(revision) => Input::Retired(revision.clone()),
            Output::Unroute => Input::Unrouted,
            Output::Release | Output::Enforced(_) => return Vec::new(),
        };
        vec![Event::Policy(id.clone(), input)]
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.broken, "the disk is full");
        Ok(())
    }
}

fn mk_drive() -> Drive<Store> {
    let (notices, _) = mpsc::channel(1);
    let hub = Hub::new(hub::Config::default(), ControlPlane::default(), notices);
    let plane = Plane::new(Duration::from_secs(60));
    let mut drive = Drive::new(plane, Store::default(), hub, Metrics::default());
    drive.apply(Event::ServerAdded {
        server: "default".into(),
        counting: Counting::Everyone,
    });
    drive.apply(Event::Synced);
    drive
}

fn mk_policy() -> (PolicyId, Arc<Policy>) {
    let uid = "5f2a9c1e-0000-4000-8000-000000000000";
    let content = Content {
        module_digest: Digest::of(b"module"),
        abi: "wapc".into(),
        settings_json: b"{}".as_slice().into(),
        mode: Mode::Protect,
        mutating: false,
        limits: Limits::default(),
        context_resources: Vec::new(),
        host_capabilities: Vec::new(),
        message: String::new(),
        entrypoint: String::new(),
    };
    let key = PolicyKey::cluster("a");
    let policy = Policy::new(key.clone(), 1, uid, content, 6);
    let id = PolicyId {
        key,
        uid: uid.into(),
    };
    (id, Arc::new(policy))
}

fn observe(drive: &mut Drive<Store>) -> Arc<Policy> {
    let (id, policy) = mk_policy();
    drive.apply(Event::Observed {
        id: id.clone(),
        server: "default".into(),
        generation: 1,
        timing: Timing::for_webhook(Duration::from_secs(600), Duration::from_secs(10)),
        stored: Stored::default(),
    });
    drive.apply(Event::ready(id, policy.clone()));
    policy
}

/// What streams would get, if any.
fn published(drive: &Drive<Store>) -> Option<usize> {
    let gauge = drive.metrics.snapshot_version.get_or_create(&ServerLabel {
        policy_server: "default".into(),
    });
    (gauge.get() != 0).then_some(drive.unpublished.len())
}

#[test]
fn nothing_is_published_that_is_not_durable() {
    let mut drive = mk_drive();
    drive.performer.broken = true;
    observe(&mut drive);
    assert!(!drive.settle());
    assert_eq!(published(&drive), None);
    assert_eq!(drive.unpublished.len(), 1);
    drive.performer.broken = false;
    assert!(drive.settle());
    assert_eq!(published(&drive), Some(0));
}

#[test]
fn the_last_answer_flips_and_the_flip_is_published() {
    let mut drive = mk_drive();
    let policy = observe(&mut drive);
    drive.settle();
    let node = Node {
        id: "r".into(),
        policy_server: "default".into(),
        ..Node::default()
    };
    drive.apply(Event::Opened {
        node,
        identity: String::new(),
        stream: 1,
    });
    drive.settle();
    assert_eq!(drive.performer.done, []);
    let snapshot = drive
        .plane
        .server("default")
        .unwrap()
        .published()
        .unwrap()
        .clone();
    drive.notice(Notice::Reported {
        server: "default".into(),
        replica: "r".into(),
        stream: 1,
        report: assent_core::session::Report {
            taken: Some(assent_core::session::Taken {
                snapshot,
                rejected: Vec::new(),
            }),
            ..Default::default()
        },
    });
    drive.settle();
    let flip = Output::Flip {
        from: None,
        to: policy,
    };
    assert_eq!(drive.performer.done.first(), Some(&flip));
    let (status, _) = drive.status(&mk_policy().0).unwrap();
    assert_eq!(status.condition("Enforced").unwrap().status, Truth::True);
}

#[test]
fn gauges_of_a_removed_server_go() {
    let mut drive = mk_drive();
    let mut registry = prometheus_client::registry::Registry::default();
    drive.metrics.register(&mut registry);
    let told = |drive: &mut Drive<Store>| {
        drive.settle();
        drive.measure();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.contains("policy_server=\"extra\"")
    };
    drive.apply(Event::ServerAdded {
        server: "extra".into(),
        counting: Counting::Everyone,
    });
    assert!(told(&mut drive));
    drive.apply(Event::ServerRemoved("extra".into()));
    assert!(!told(&mut drive));
}
