//! A plane whose webhooks, stores and replicas do at once what is asked of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::ensure;
use assent_core::{
    Millis, Policy, Snapshot,
    fleet::{CountedReplicas, Name, Node},
    plane::{Effect, Event, Plane, StreamEvent},
    rollout::{Input, Output, PolicyId, StoredRevisions, Timing},
    session::{AppliedSnapshot, Report},
};

use super::Cost;
use crate::server::mk_policy;

/// As in a cluster, but drained at once, so that an edit ends.
const TIMING: Timing = Timing {
    progress: Duration::from_secs(600),
    drain: Duration::from_millis(200),
    quiet: Duration::from_millis(200),
    longest_drain: Duration::from_millis(200),
    delete_drain: Duration::from_millis(200),
};

/// A plane and everything around it.
pub(super) struct World {
    plane: Plane,
    now: Millis,
    servers: usize,
    replicas: usize,
    /// The newest generation of each policy.
    generations: Vec<i64>,
    /// Snapshots that replicas have not acknowledged yet.
    unacknowledged: BTreeMap<Arc<str>, Arc<Snapshot>>,
    pub(super) cost: Cost,
}

// === impl World ===

impl World {
    /// PolicyServers with so many replicas each, and no policies.
    pub(super) fn new(servers: usize, replicas: usize) -> Self {
        Self {
            plane: Plane::new(Duration::from_secs(60)),
            now: Millis(1_000),
            servers,
            replicas,
            generations: Vec::new(),
            unacknowledged: BTreeMap::new(),
            cost: Cost::default(),
        }
    }

    /// Everything is read and restored, then all replicas reconnect and acknowledge.
    pub(super) fn restore(&mut self, policies: usize) -> anyhow::Result<()> {
        for n in 0..self.servers {
            let server = server(n);
            let counted = CountedReplicas::All;
            self.apply(Event::ServerAdded { server, counted });
        }
        self.generations = vec![1; policies];
        for n in 0..policies {
            let stored = StoredRevisions {
                active: Some(mk_policy(n, 1)),
                ..StoredRevisions::default()
            };
            self.observe(n, stored);
        }
        self.apply(Event::Synced);
        self.settle();
        for n in 0..self.servers {
            for replica in 0..self.replicas {
                let node = Node {
                    id: name(replica).to_string(),
                    policy_server: server(n).to_string(),
                    ..Node::default()
                };
                self.apply(StreamEvent::Opened {
                    node,
                    identity: String::new(),
                    stream: 1,
                });
            }
        }
        self.settle_all();
        let programmed = self.plane.rollouts().all(|(_, r)| r.active().is_some());
        ensure!(programmed, "every policy must be active after a restore");
        Ok(())
    }

    /// One policy gets a new generation, which is enforced in the end.
    pub(super) fn edit(&mut self, n: usize) -> anyhow::Result<()> {
        self.generations[n] += 1;
        let generation = self.generations[n];
        self.observe(n, StoredRevisions::default());
        self.settle();
        let policy = mk_policy(n, generation);
        let id = id(&policy);
        self.apply(Event::ready(id.clone(), policy));
        self.settle_all();
        let rollout = self.plane.rollout_of(&id);
        let active = rollout.and_then(|r| r.active()).map(|p| p.generation);
        let entries = rollout.map(|r| r.entries().count());
        ensure!(
            (active, entries) == (Some(generation), Some(1)),
            "an edit must be enforced, and its predecessor retired"
        );
        Ok(())
    }

    /// Every replica of the first server sends one heartbeat.
    pub(super) fn heartbeats(&mut self) -> anyhow::Result<()> {
        for replica in 0..self.replicas {
            self.apply(StreamEvent::Heartbeat {
                server: server(0),
                replica: name(replica),
            });
            self.settle();
        }
        Ok(())
    }

    fn observe(&mut self, n: usize, stored: StoredRevisions) {
        let policy = mk_policy(n, 1);
        self.apply(Event::PolicyObserved {
            id: id(&policy),
            server: server(n % self.servers),
            generation: self.generations[n],
            timing: TIMING,
            stored,
        });
    }

    fn apply(&mut self, event: impl Into<Event>) {
        let mut effects = Vec::new();
        self.plane.apply(self.now, event.into(), &mut effects);
        self.perform(effects);
    }

    /// Settles, performs what follows, and computes the statuses that may have changed.
    fn settle(&mut self) {
        loop {
            let mut effects = Vec::new();
            self.plane.settle(self.now, &mut effects);
            if effects.is_empty() {
                break;
            }
            self.perform(effects);
        }
        for id in self.plane.take_dirty().0 {
            let status = self.plane.status(&id);
            self.cost.statuses += usize::from(std::hint::black_box(status).is_some());
        }
    }

    /// Settles and lets replicas acknowledge until nothing is left to do.
    fn settle_all(&mut self) {
        loop {
            self.settle();
            for (server, snapshot) in std::mem::take(&mut self.unacknowledged) {
                for replica in 0..self.replicas {
                    self.apply(StreamEvent::Reported {
                        server: server.clone(),
                        replica: name(replica),
                        stream: 1,
                        report: report(&snapshot),
                    });
                    self.settle();
                }
            }
            // The end of the startup grace is no part of what is measured.
            let soon = self.now + Duration::from_secs(1);
            match self.plane.deadline().filter(|at| *at < soon) {
                Some(at) => self.now = at,
                None if self.unacknowledged.is_empty() => return,
                None => {}
            }
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish { server, snapshot } => {
                    self.cost.publications += 1;
                    self.cost.hashed += snapshot.hashed_bytes();
                    self.unacknowledged.insert(server, snapshot);
                }
                Effect::Rollout(id, output) => self.perform_output(id, output),
                Effect::AppliedEverywhere { .. } => {}
            }
        }
    }

    fn perform_output(&mut self, id: PolicyId, output: Output) {
        let input = match output {
            Output::Flip { to, .. } => Input::Flipped(to.revision.clone()),
            Output::Retire(revision) => Input::Retired(revision),
            Output::RemoveWebhook => Input::WebhookRemoved,
            Output::Release | Output::Enforced(_) => return,
        };
        self.apply(Event::Rollout(id, input));
    }
}

fn server(n: usize) -> Arc<str> {
    format!("server-{n}").into()
}

pub(super) fn name(replica: usize) -> Name {
    format!("replica-{replica}").into()
}

fn id(policy: &Policy) -> PolicyId {
    PolicyId {
        key: policy.policy.clone(),
        uid: "0123456789abcdef".into(),
    }
}

pub(super) fn report(snapshot: &Arc<Snapshot>) -> Report {
    Report {
        applied: Some(AppliedSnapshot {
            snapshot: snapshot.clone(),
            rejected: Vec::new(),
        }),
        sent: Some(snapshot.version()),
        acked: Some(snapshot.version()),
        ..Report::default()
    }
}
