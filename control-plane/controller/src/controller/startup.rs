//! The start of a process: which policies are decided before the first snapshot is published.
//!
//! A snapshot without a policy that is still being vetted looks like one from which the policy
//! was removed, and a route that does not exist yet allows everything. Both are avoided by
//! waiting, and the wait is bounded: a registry that does not answer must not keep policies
//! that are in force from evaluators that reconnect.

use std::collections::BTreeSet;

use assent_core::{
    Millis,
    plane::{Event, Plane},
    rollout::{Acceptance, PolicyId, Rollout},
    status::{ConditionStatus, ConditionType},
};
use tracing::{info, warn};

use super::Controller;
use crate::{backend::Backend, objects::PolicyObject, view::Now};

/// Policies that a new process waits for. Each is looked at until it is decided, and never
/// again: later generations do not take readiness away.
#[derive(Debug, Default)]
pub(super) struct Startup {
    /// Policies without a stored revision that are neither accepted nor rejected yet.
    undecided: BTreeSet<PolicyId>,
    /// Policies without an active revision that may get one in a moment.
    unenforced: BTreeSet<PolicyId>,
    /// When the process stops waiting.
    until: Option<Millis>,
}

// === impl Startup ===

impl Startup {
    /// When time alone ends the wait.
    pub(super) fn deadline(&self) -> Option<Millis> {
        self.until.filter(|_| !self.is_over())
    }

    fn is_over(&self) -> bool {
        self.undecided.is_empty() && self.unenforced.is_empty()
    }
}

impl<B: Backend> Controller<B> {
    /// Whether the first snapshots may be published: every policy was read, and those without a
    /// stored revision were decided once, or the sync deadline has passed.
    pub fn is_synced(&self) -> bool {
        self.plane.is_synced()
    }

    /// Whether admission requests can be answered: synced, and every policy whose first
    /// revision was accepted is enforced, unless a replica rejected it, there is no replica,
    /// or the sync deadline has passed.
    pub fn is_ready(&self) -> bool {
        self.is_synced() && self.startup.is_over()
    }

    /// All objects were listed and observed.
    pub(super) fn begin_startup(&mut self, now: Now) {
        let rollouts = self.plane.rollouts().map(|(_, rollout)| rollout);
        for rollout in rollouts.filter(|r| !r.is_deleting()) {
            let id = rollout.id();
            if self.living(id).is_some_and(was_rejected) {
                continue;
            }
            if is_undecided(rollout) {
                self.startup.undecided.insert(id.clone());
            }
            if rollout.active().is_none() {
                self.startup.unenforced.insert(id.clone());
            }
        }
        self.startup.until = Some(now.at + self.config.sync_deadline);
        let undecided = self.startup.undecided.len();
        if undecided > 0 {
            info!(
                policies = undecided,
                "vetting policies before the first snapshot is published"
            );
        }
    }

    /// Ends the wait for policies that are decided, and for all once the deadline has passed.
    pub(super) fn continue_startup(&mut self, now: Now) {
        if self.startup.until.is_some_and(|until| until <= now.at) {
            if !self.startup.undecided.is_empty() {
                warn!(
                    policies = self.startup.undecided.len(),
                    "the sync deadline has passed; publishing without policies that are still being vetted"
                );
            }
            self.startup = Startup::default();
        }
        let (plane, startup) = (&self.plane, &mut self.startup);
        pop_while(&mut startup.undecided, |id| {
            !plane.rollout_of(id).is_some_and(is_undecided)
        });
        pop_while(&mut startup.unenforced, |id| !is_on_its_way(plane, id));
        if self.startup.undecided.is_empty() && !self.plane.is_synced() {
            self.event(now, Event::Synced);
        }
    }
}

/// Drops the first policies that need no waiting. The others are looked at once they are the
/// first: a start costs two looks per policy, not one per policy and decision.
fn pop_while(ids: &mut BTreeSet<PolicyId>, is_done: impl Fn(&PolicyId) -> bool) {
    while ids.first().is_some_and(&is_done) {
        ids.pop_first();
    }
}

/// Whether an earlier process rejected this generation. It is vetted again, but a registry that
/// is away for long must not delay every process that takes over.
fn was_rejected(object: &PolicyObject) -> bool {
    let conditions = object.status.iter().flat_map(|s| &s.conditions);
    let mut accepted = conditions.filter(|c| c.type_ == ConditionType::Accepted.as_str());
    accepted.any(|c| {
        c.status == ConditionStatus::False.as_str()
            && c.observed_generation == Some(object.meta.generation)
    })
}

fn is_undecided(rollout: &Rollout) -> bool {
    !rollout.is_deleting()
        && *rollout.acceptance() == Acceptance::Pending
        && rollout.entries().next().is_none()
}

/// Whether a policy has no active revision and will have one as soon as its replicas answer.
fn is_on_its_way(plane: &Plane, id: &PolicyId) -> bool {
    let Some(rollout) = plane.rollout_of(id).filter(|r| !r.is_deleting()) else {
        return false;
    };
    if rollout.active().is_some() || rollout.is_held() {
        return false;
    }
    if is_undecided(rollout) {
        return true;
    }
    let candidate = rollout.candidate().map(|c| &c.policy);
    let mut next = candidate.into_iter().chain(rollout.last_good());
    let server = plane.server_of(id).and_then(|name| plane.server(name));
    next.any(|policy| {
        let fold = server.map(|s| s.fleet.fold(&policy.revision));
        fold.is_some_and(|fold| fold.wanted > 0 && fold.rejected == 0)
    })
}
