//! The one place where decisions become deeds: events go into the plane, and what it says
//! is to be done is done, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use assent_core::{
    Snapshot,
    fleet::State,
    plane::{Effect, Event, Plane},
    rollout::{Output, PolicyId},
    status::{PolicyStatus, Transitions, Truth},
};
use assent_grpc::{Hub, Notice};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::{
    clock::Clock,
    metrics::{Metrics, POLICY_STATES, ServerLabel, StateLabels},
};

#[cfg(test)]
mod tests;

/// Does what rollouts ask for, in a cluster or in a directory.
pub(crate) trait Performer {
    /// Does one thing. What is known to be done at once comes back as events; what takes
    /// longer reports later.
    fn perform(&mut self, id: &PolicyId, output: &Output, now: SystemTime) -> Vec<Event>;

    /// Makes everything performed so far durable; nothing is published before.
    fn commit(&mut self) -> anyhow::Result<()>;
}

/// The plane with its hands.
pub(crate) struct Drive<P> {
    /// Everything that is known.
    pub(crate) plane: Plane,
    /// Where deeds are done.
    pub(crate) performer: P,
    /// The time.
    pub(crate) clock: Clock,
    hub: Hub,
    metrics: Metrics,
    /// Counts changes, for whoever watches the state.
    changes: watch::Sender<u64>,
    transitions: BTreeMap<PolicyId, Transitions>,
    unpublished: BTreeMap<Arc<str>, Arc<Snapshot>>,
    /// PolicyServers that gauges tell of.
    measured: BTreeSet<String>,
}

// === impl Drive ===

impl<P: Performer> Drive<P> {
    /// A plane that knows nothing yet.
    pub(crate) fn new(plane: Plane, performer: P, hub: Hub, metrics: Metrics) -> Self {
        Self {
            plane,
            performer,
            clock: Clock::start(),
            hub,
            metrics,
            changes: watch::Sender::new(0),
            transitions: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            measured: BTreeSet::new(),
        }
    }

    /// Told whenever something may have changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes in one event and does what it asks for at once.
    pub(crate) fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.plane.apply(self.clock.now(), event, &mut effects);
        self.perform(effects);
    }

    /// Takes in what a stream said.
    pub(crate) fn notice(&mut self, notice: Notice) {
        if let Some(event) = event_of(notice) {
            self.apply(event);
        }
    }

    /// Settles everything applied so far: deeds, durable, then published. False where the
    /// deeds could not be made durable; it is to be tried again soon.
    pub(crate) fn settle(&mut self) -> bool {
        // Each round does what the one before made possible; a policy has few steps.
        for _ in 0..16 {
            let mut effects = Vec::new();
            self.plane.decide(self.clock.now(), &mut effects);
            if effects.is_empty() {
                break;
            }
            self.perform(effects);
        }
        let mut effects = Vec::new();
        self.plane.publish(self.clock.now(), &mut effects);
        self.perform(effects);
        let stored = self.performer.commit();
        let durable = stored.is_ok();
        match stored {
            Ok(()) => self.publish(),
            Err(error) => warn!("failed to store revisions, nothing is published: {error:#}"),
        }
        self.changes.send_modify(|n| *n += 1);
        durable
    }

    /// Takes over since when conditions of a policy are what they are, as stored by whoever
    /// decided before.
    pub(crate) fn restore_transitions(
        &mut self,
        id: &PolicyId,
        conditions: impl IntoIterator<Item = (&'static str, Truth, i64)>,
    ) {
        let transitions = self.transitions.entry(id.clone()).or_default();
        for (kind, status, since) in conditions {
            transitions.restore(kind, status, since);
        }
    }

    /// The status of one policy, with the time since when each condition is what it is.
    pub(crate) fn status(&mut self, id: &PolicyId) -> Option<(PolicyStatus, [i64; 4])> {
        let status = self.plane.status(id)?;
        let now = self.clock.timestamp(self.clock.now()).as_second();
        let transitions = self.transitions.entry(id.clone()).or_default();
        let since = status
            .conditions
            .each_ref()
            .map(|c| transitions.note(now, c));
        Some((status, since))
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let mut queue: std::collections::VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            match effect {
                Effect::Publish { server, snapshot } => {
                    self.unpublished.insert(server, snapshot);
                }
                Effect::Applied { server, took } => {
                    debug!(%server, ?took, "applied everywhere");
                    self.metrics.publish_to_applied.observe(took.as_secs_f64());
                }
                Effect::Policy(id, output) => {
                    self.note(&id, &output);
                    let now = self.clock.date(self.clock.now());
                    for event in self.performer.perform(&id, &output, now) {
                        let mut more = Vec::new();
                        self.plane.apply(self.clock.now(), event, &mut more);
                        queue.extend(more);
                    }
                }
            }
        }
    }

    fn note(&mut self, id: &PolicyId, output: &Output) {
        match output {
            Output::Flip { to, .. } => {
                info!(policy = %id.key, revision = %to.revision, "applied everywhere, flipping");
                self.metrics.webhook_flips.inc();
            }
            Output::Enforced(took) => {
                info!(policy = %id.key, ?took, "enforced");
                self.metrics.change_to_enforced.observe(took.as_secs_f64());
            }
            Output::Release => {
                self.transitions.remove(id);
            }
            Output::Retire(revision) => debug!(%revision, "retired"),
            Output::Unroute => info!(policy = %id.key, "deleted, draining"),
        }
    }

    fn publish(&mut self) {
        for (server, snapshot) in std::mem::take(&mut self.unpublished) {
            debug!(%server, version = %snapshot.version(), "published");
            let label = ServerLabel {
                policy_server: server.to_string(),
            };
            let gauge = i64::try_from(snapshot.version().gauge()).unwrap_or_default();
            self.metrics
                .snapshot_version
                .get_or_create(&label)
                .set(gauge);
            self.hub.publish(&server, snapshot, SystemTime::now());
        }
        if self.plane.is_synced() {
            self.hub.set_synced();
        }
    }

    /// Brings gauges up to date. It looks at every replica and policy, so it is done when
    /// somebody reads the metrics, not when something changes.
    pub(crate) fn measure(&mut self) {
        for (name, server) in self.plane.servers() {
            let current = server.version();
            for state in State::ALL {
                let labels = StateLabels {
                    policy_server: name.to_string(),
                    state: state.as_str(),
                };
                let replicas = server.fleet.replicas();
                let is = |(_, r): &(_, &assent_core::fleet::Replica)| {
                    current.is_some_and(|v| r.state(v) == state)
                };
                let count = i64::try_from(replicas.filter(is).count()).unwrap_or(i64::MAX);
                self.metrics.replicas.get_or_create(&labels).set(count);
            }
        }
        let counted = self.measure_policies();
        self.forget_servers(counted);
    }

    /// Drops the gauges of PolicyServers that are gone: they would tell their last value for
    /// ever.
    fn forget_servers(&mut self, counted: BTreeSet<String>) {
        let servers = self.plane.servers().map(|(name, _)| name.to_string());
        let now: BTreeSet<String> = servers.chain(counted).collect();
        for gone in self.measured.difference(&now) {
            self.metrics.forget_server(gone);
        }
        self.measured = now;
    }

    /// Counts policies by state; returns the PolicyServers that they name.
    fn measure_policies(&self) -> BTreeSet<String> {
        let mut counts: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
        for (name, _) in self.plane.servers() {
            for state in POLICY_STATES {
                counts.insert((name.to_string(), state), 0);
            }
        }
        for (server, rollout) in self.plane.rollouts() {
            let state = match self.plane.status(rollout.id()) {
                Some(s)
                    if s.condition("Accepted")
                        .is_some_and(|c| c.status == Truth::False) =>
                {
                    "refused"
                }
                Some(s)
                    if s.condition("Enforced")
                        .is_some_and(|c| c.status == Truth::True) =>
                {
                    "enforced"
                }
                _ => "progressing",
            };
            *counts.entry((server.to_string(), state)).or_default() += 1;
        }
        for ((policy_server, state), count) in &counts {
            let labels = StateLabels {
                policy_server: policy_server.clone(),
                state,
            };
            self.metrics.policies.get_or_create(&labels).set(*count);
        }
        counts.into_keys().map(|(server, _)| server).collect()
    }
}

fn event_of(notice: Notice) -> Option<Event> {
    Some(match notice {
        Notice::Opened {
            node,
            identity,
            stream,
            ..
        } => Event::Opened {
            node,
            identity,
            stream,
        },
        Notice::Reported {
            server,
            replica,
            stream,
            report,
        } => Event::Reported {
            server,
            replica,
            stream,
            report,
        },
        Notice::Closed {
            server,
            replica,
            stream,
        } => Event::Closed {
            server,
            replica,
            stream,
        },
        Notice::Heard { server, replica } => Event::Heard { server, replica },
        Notice::RetiredRequests { path, requests, .. } if requests > 0 => Event::Requests {
            path: assent_core::RevisionId::from_wire(&path),
        },
        Notice::RetiredRequests { .. } => return None,
    })
}
