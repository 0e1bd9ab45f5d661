//! The plane looks only at what an event concerns. Whatever happens, the result must be the
//! same as if it had looked at everything.

use proptest::prelude::*;

use super::*;
use crate::{fixtures::mk_snapshot, fleet::ReplicaState, rollout::Output, status::PolicyStatus};

const SERVERS: [&str; 2] = ["default", "other"];
const POLICIES: [&str; 4] = ["a", "b", "c", "d"];
const REPLICAS: [&str; 3] = ["x", "y", "z"];

/// What a server's own status is made of.
type ServerView = (
    Option<Version>,
    Vec<(Name, Option<ReplicaState>, Option<Version>)>,
);

/// A plane, what it asked for, and the statuses that were computed when it said so.
struct Model {
    plane: Plane,
    now: Millis,
    streams: u64,
    generations: BTreeMap<usize, i64>,
    asked: Vec<(PolicyId, Output)>,
    policies: BTreeMap<PolicyId, PolicyStatus>,
    servers: BTreeMap<Arc<str>, ServerView>,
}

impl Model {
    fn new() -> Self {
        Self {
            plane: Plane::new(GRACE),
            now: Millis(1_000),
            streams: 0,
            generations: BTreeMap::new(),
            asked: Vec::new(),
            policies: BTreeMap::new(),
            servers: BTreeMap::new(),
        }
    }

    /// Does one thing, which the numbers choose.
    fn act(&mut self, what: u8, which: u8, how: u8) {
        let server: Arc<str> = SERVERS[usize::from(which % 8 == 7)].into();
        let policy = usize::from(which) % POLICIES.len();
        let replica = REPLICAS[usize::from(how) % REPLICAS.len()];
        match what {
            0 => self.apply(Event::ServerAdded {
                server,
                counted: [CountedReplicas::All, CountedReplicas::Expected][usize::from(how % 2)],
            }),
            1 if how.is_multiple_of(8) => self.apply(Event::ServerRemoved(server)),
            1 | 2 => {
                let bits = REPLICAS
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| how >> n & 1 == 1);
                let replicas = bits.map(|(_, name)| Name::from(*name)).collect();
                self.apply(Event::ReplicasExpected { server, replicas });
            }
            3 => self.apply(Event::Synced),
            4 | 5 => self.observe(policy, how),
            6 | 7 => self.ready(policy),
            8 => self.rollout(policy, Input::Reconsidered),
            9 => {
                let generation = self.generation(policy);
                let refusal = Refusal {
                    reason: rollout::RefusalReason::Invalid,
                    message: how.to_string(),
                };
                self.rollout(
                    policy,
                    Input::Refused {
                        generation,
                        refusal,
                    },
                );
            }
            10 if how.is_multiple_of(4) => self.rollout(policy, Input::Deleted),
            10 if how % 16 == 1 => self.apply(Event::PolicyForgotten(mk_id(POLICIES[policy]))),
            10..=12 => self.perform(usize::from(which), how),
            13 => self.open(&server, replica, which.is_multiple_of(2)),
            14 => self.stream(&server, replica, |server, replica, stream| {
                StreamEvent::Closed {
                    server,
                    replica,
                    stream,
                }
            }),
            15..=17 => self.report(&server, replica, which, how),
            18 => self.apply(StreamEvent::Heartbeat {
                server,
                replica: replica.into(),
            }),
            19 => {
                let generation = self.generation(policy);
                self.apply(mk_requests(POLICIES[policy], generation.max(1)));
            }
            20 => self.now = self.now + Duration::from_millis(u64::from(how)),
            _ => self.now = self.now + Duration::from_secs(u64::from(how)),
        }
    }

    fn apply(&mut self, event: impl Into<Event>) {
        let mut out = Vec::new();
        self.plane.apply(self.now, event.into(), &mut out);
        self.keep(out);
    }

    fn keep(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Rollout(id, output) = effect {
                self.asked.push((id, output));
            }
        }
    }

    fn generation(&self, policy: usize) -> i64 {
        self.generations.get(&policy).copied().unwrap_or(0)
    }

    fn observe(&mut self, policy: usize, how: u8) {
        let generation = self.generations.entry(policy).or_default();
        *generation += i64::from(how.is_multiple_of(2) || *generation == 0);
        let name = POLICIES[policy];
        let stored = StoredRevisions {
            active: how.is_multiple_of(3).then(|| mk_policy(name, *generation)),
            ..StoredRevisions::default()
        };
        // Policies keep their server.
        let server = SERVERS[policy % 2];
        let event = mk_observed(mk_id(name), server, *generation, stored);
        self.apply(event);
    }

    fn ready(&mut self, policy: usize) {
        let generation = self.generation(policy);
        if generation > 0 {
            let revision = mk_policy(POLICIES[policy], generation);
            self.rollout(policy, Input::Ready(revision));
        }
    }

    fn rollout(&mut self, policy: usize, input: Input) {
        self.apply(Event::Rollout(mk_id(POLICIES[policy]), input));
    }

    /// Something that was asked for is done, or fails.
    fn perform(&mut self, which: usize, how: u8) {
        if self.asked.is_empty() {
            return;
        }
        let (id, output) = self.asked.swap_remove(which % self.asked.len());
        let input = match output {
            Output::Flip { .. } if how.is_multiple_of(5) => Input::FlipFailed,
            Output::Flip { to, .. } => Input::Flipped(to.revision.clone()),
            Output::Retire(revision) => Input::Retired(revision),
            Output::RemoveWebhook => Input::WebhookRemoved,
            Output::Release | Output::Enforced(_) => return,
        };
        self.apply(Event::Rollout(id, input));
    }

    fn open(&mut self, server: &str, replica: &str, restarted: bool) {
        self.streams += 1;
        let instance = if restarted { "new" } else { "old" };
        let mut node = mk_node(replica, instance);
        node.policy_server = server.into();
        self.apply(StreamEvent::Opened {
            node,
            identity: String::new(),
            stream: self.streams,
        });
    }

    /// An event of the replica's open stream, if it has one.
    fn stream(
        &mut self,
        server: &Arc<str>,
        replica: &str,
        event: impl FnOnce(Arc<str>, Name, u64) -> StreamEvent,
    ) {
        let known = self.plane.server(server);
        let known = known.and_then(|s| s.fleet.replica(replica));
        if let Some(crate::fleet::Connection::Open { stream }) = known.map(|r| r.connection) {
            self.apply(event(server.clone(), replica.into(), stream));
        }
    }

    /// The replica answers: everything, without one revision, or not at all.
    fn report(&mut self, server: &Arc<str>, replica: &str, which: u8, how: u8) {
        let known = self.plane.server(server).and_then(Server::published);
        let snapshot = match which % 4 {
            0 => mk_snapshot(&[("a", 1), ("b", 1)]),
            _ => known.cloned().unwrap_or_default(),
        };
        let report = match how % 4 {
            0 => mk_refused(&snapshot, None),
            1 => {
                let first = snapshot.policies().next();
                let rejected = first.map(|p| crate::session::Rejection {
                    revision: p.revision.clone(),
                    ..mk_rejection("a", 1)
                });
                mk_applied(&snapshot, rejected.as_slice())
            }
            _ => mk_applied(&snapshot, &[]),
        };
        self.stream(server, replica, |server, replica, stream| {
            StreamEvent::Reported {
                server,
                replica,
                stream,
                report,
            }
        });
    }

    fn settle(&mut self) {
        let mut out = Vec::new();
        self.plane.settle(self.now, &mut out);
        self.keep(out);
        self.check_snapshots();
        self.check_rollouts();
    }

    /// Snapshots are what all rollouts of a server make up.
    fn check_snapshots(&self) {
        for (name, server) in self.plane.servers() {
            let own = self.plane.rollouts().filter(|(s, _)| *s == name);
            let own: Vec<&Rollout> = own.map(|(_, r)| r).collect();
            let policies = own.iter().flat_map(|r| r.entries().map(|(p, _)| p.clone()));
            let routes = own.iter().flat_map(|r| r.routes().map(Arc::new));
            let full = Snapshot::new(policies, routes);
            assert_eq!(server.upcoming(), full, "snapshot of {name}");
        }
    }

    /// No rollout has anything left to do, and indexes agree with rollouts.
    fn check_rollouts(&self) {
        let deadlines = self.plane.rollouts().filter_map(|(_, r)| r.deadline());
        assert_eq!(self.plane.index.deadline(), deadlines.min());
        for (name, rollout) in self.plane.rollouts() {
            let fleet = self.plane.server(name).map(|s| &s.fleet);
            let fold = |r: &RevisionId| fleet.map_or_else(Fold::default, |f| f.fold(r));
            let (mut again, mut out) = (rollout.clone(), Vec::new());
            again.settle(self.now, fold, &mut out);
            assert_eq!(out, [], "{:?} was not settled", rollout.id());
            assert_eq!(again.is_stalled(), rollout.is_stalled());
            let own = self.plane.rollouts_of_server(name);
            assert!(own.map(Rollout::id).any(|id| id == rollout.id()));
            assert_eq!(self.plane.server_of(rollout.id()), Some(name));
            let pending = *rollout.acceptance() == rollout::Acceptance::Pending;
            let mut listed = self.plane.pending_rollouts();
            let listed = listed.any(|(_, r)| r.id() == rollout.id());
            assert_eq!(listed, pending && !rollout.is_deleting());
        }
    }

    /// Every status that changed was called dirty.
    fn check_dirty(&mut self) {
        let (policies, servers) = self.plane.take_dirty();
        let ids = self.plane.rollouts().map(|(_, r)| r.id().clone());
        for id in ids.collect::<Vec<_>>() {
            let status = self
                .plane
                .status(&id)
                .expect("a rollout must have a status");
            let clean = self.policies.get(&id) == Some(&status);
            assert!(clean || policies.contains(&id), "{id:?} became {status:?}");
            self.policies.insert(id, status);
        }
        for (name, server) in self.plane.servers() {
            let current = server.version();
            let rows = server.fleet.replicas().map(|(name, replica)| {
                let state = current.map(|v| replica.state(v));
                (name.clone(), state, replica.report.acked)
            });
            let view = (current, rows.collect());
            let clean = self.servers.get(name) == Some(&view);
            assert!(clean || servers.contains(name), "{name} became {view:?}");
            self.servers.insert(name.clone(), view);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn incremental_results_equal_a_full_recomputation(
        acts in prop::collection::vec((0u8..22, any::<u8>(), any::<u8>()), 1..120),
    ) {
        let mut model = Model::new();
        model.act(0, 0, 0);
        for (what, which, how) in acts {
            model.act(what, which, how);
            model.check_dirty();
            if how % 3 > 0 {
                model.settle();
                model.check_dirty();
            }
        }
        model.settle();
        model.check_dirty();
    }
}

#[test]
fn heartbeats_make_nothing_dirty() {
    let mut script = Script::enforced();
    script.plane.take_dirty();
    let event = StreamEvent::Heartbeat {
        server: "default".into(),
        replica: "x".into(),
    };
    script.step(event, &[]).settle(&[]);
    assert_eq!(script.plane.take_dirty(), Default::default());
}

#[test]
fn an_edit_makes_one_policy_dirty() {
    let mut script = Script::enforced();
    script
        .add("q")
        .settle(&["publish p/1 active q/1 candidate"]);
    script.pass(1_000);
    script.plane.take_dirty();
    script.takes("x", 1, &["q: flip none to 1", "applied after 1s"]);
    let (policies, servers) = script.plane.take_dirty();
    assert_eq!(policies, BTreeSet::from([mk_id("q")]));
    assert_eq!(servers, BTreeSet::from(["default".into()]));
}
