//! The life of one policy: a revision is a candidate, then active, then retired until it has
//! drained.
//!
//! The machine asks for actions and moves on when it is told that they were done. The phase of a
//! revision is therefore stored before a snapshot that follows from it is published. The active
//! revision is the one that the webhook names, and nothing else decides it.

use std::sync::Arc;

use crate::{
    fleet::Fold,
    policy::{Policy, RevisionId},
    snapshot::{Route, RouteState},
    time::Millis,
};

mod event;
mod revisions;
#[cfg(test)]
mod tests;
mod timing;

pub use event::{Acceptance, Input, Output, PolicyId, Refusal, RefusalReason};
use revisions::Retired;
pub use revisions::{Candidate, StoredRevisions};
pub use timing::Timing;

/// Retired revisions that may drain at the same time; an older one leaves early. It bounds what
/// evaluators hold of a policy that is edited all the time.
pub const MAX_DRAINING: usize = 2;

/// One policy's rollout.
#[derive(Clone, Debug)]
pub struct Rollout {
    id: PolicyId,
    timing: Timing,
    /// The newest generation, and when it was first seen.
    generation: i64,
    observed_at: Millis,
    acceptance: Acceptance,
    active: Option<Arc<Policy>>,
    candidate: Option<Candidate>,
    /// What was active when the webhook was lost, as long as nothing is active again. It returns as soon as every
    /// required replica serves it, unless the candidate comes first: a newer generation that cannot be used
    /// leaves no gap.
    last_good: Option<Arc<Policy>>,
    /// Revisions that were active, and candidates that were superseded.
    retired: Vec<Retired>,
    /// The revision that the webhook is being pointed at, until the outcome is known.
    flipping: Option<RevisionId>,
    /// Revisions that the webhook may name although the write failed: the API server may have
    /// performed it, and only the response was lost. They are served until a later write
    /// succeeds, after which the webhook names another one.
    unsure: Vec<RevisionId>,
    deletion: Option<Deletion>,
}

/// How far the deletion of a policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    /// The webhook may still name a revision.
    RemovingWebhook,
    /// The webhook was removed at this time. Requests may still be on their way.
    Draining(Millis),
    /// No evaluator has to serve the policy.
    Gone,
}

// === impl Rollout ===

impl Rollout {
    /// A policy that is seen for the first time.
    pub fn new(id: PolicyId, now: Millis, generation: i64, timing: Timing) -> Self {
        Self {
            id,
            timing,
            generation,
            observed_at: now,
            acceptance: Acceptance::Pending,
            active: None,
            candidate: None,
            last_good: None,
            retired: Vec::new(),
            flipping: None,
            unsure: Vec::new(),
            deletion: None,
        }
    }

    /// Continues from stored revisions. Timers start now: stored times are for readers, and the
    /// clock of another process may differ.
    pub fn restore(mut self, now: Millis, stored: StoredRevisions) -> Self {
        let StoredRevisions {
            active,
            mut candidates,
            mut draining,
            last_good,
        } = stored;
        // A process may have ended between the flip and the write of the phase.
        let named = |p: &Arc<Policy>| active.as_ref().is_some_and(|a| a.revision == p.revision);
        candidates.retain(|p| !named(p));
        draining.retain(|p| !named(p));
        // Nothing is rolled out that is older than what was active.
        let last = active.as_ref().or(last_good.as_ref());
        let newer = |p: &Arc<Policy>| last.is_none_or(|a| a.generation < p.generation);
        let newest = candidates.pop_if(|p| newer(p));
        let returning = last_good.filter(|_| active.is_none());
        self.active = active;
        self.retired = draining
            .into_iter()
            .map(|p| Retired::draining(p, now))
            .collect();
        let superseded = candidates.into_iter().map(|p| Retired::superseded(p, now));
        self.retired.extend(superseded);
        self.candidate = newest.map(|policy| Candidate::new(policy, now));
        match returning {
            Some(policy) if policy.generation == self.generation => {
                self.candidate = Some(Candidate::returning(policy, now));
            }
            other => self.last_good = other,
        }
        if self.has_revision_of(self.generation) {
            self.acceptance = Acceptance::Accepted;
        }
        self
    }

    /// Applies an input and appends what has to be done.
    pub fn step(&mut self, now: Millis, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Observed { generation, timing } => self.observed(now, generation, timing),
            Input::Refused {
                generation,
                refusal,
            } => {
                if generation == self.generation {
                    self.acceptance = Acceptance::Refused(refusal);
                }
            }
            Input::Reconsidered => {
                self.acceptance = match self.has_revision_of(self.generation) {
                    true => Acceptance::Accepted,
                    false => Acceptance::Pending,
                }
            }
            Input::Ready(policy) => self.ready(now, policy),
            Input::Flipped(revision) => self.flipped(now, &revision, out),
            Input::FlipFailed => self.flipping = None,
            Input::FlipUnknown => self.unsure.extend(self.flipping.take()),
            Input::Retired(revision) => self.retired.retain(|r| r.policy.revision != revision),
            Input::StillRouted(revision) => self.still_routed(now, &revision),
            Input::Request(revision) => self.request(now, &revision),
            Input::Deleted => {
                if self.deletion.is_none() {
                    self.deletion = Some(Deletion::RemovingWebhook);
                    out.push(Output::RemoveWebhook);
                }
            }
            Input::WebhookRemoved => {
                if self.deletion == Some(Deletion::RemovingWebhook) {
                    self.deletion = Some(Deletion::Draining(now));
                }
            }
        }
    }

    /// Decides what follows from the time and from the fold of the candidate.
    pub fn settle(
        &mut self,
        now: Millis,
        fold: impl Fn(&RevisionId) -> Fold,
        out: &mut Vec<Output>,
    ) {
        if let Some(Deletion::Draining(since)) = self.deletion
            && self.released_at(since) <= now
        {
            self.deletion = Some(Deletion::Gone);
            out.push(Output::Release);
        }
        if self.deletion.is_some() {
            return;
        }
        let held = self.is_held();
        if let Some(candidate) = &mut self.candidate {
            let complete = fold(&candidate.policy.revision).complete;
            candidate.overdue = now.since(candidate.since) >= self.timing.progress;
            candidate.stalled = candidate.overdue && !complete;
            if complete && self.flipping.is_none() && !held {
                self.flipping = Some(candidate.policy.revision.clone());
                out.push(Output::Flip {
                    from: self.active.as_ref().map(|a| a.revision.clone()),
                    to: candidate.policy.clone(),
                });
            }
        }
        if let Some(last_good) = &self.last_good
            && self.flipping.is_none()
            && !held
            && fold(&last_good.revision).complete
        {
            self.flipping = Some(last_good.revision.clone());
            out.push(Output::Flip {
                from: None,
                to: last_good.clone(),
            });
        }
        self.retire(now, out);
    }

    /// When time alone changes something next.
    pub fn deadline(&self) -> Option<Millis> {
        let deletion = match self.deletion {
            Some(Deletion::Draining(since)) => return Some(self.released_at(since)),
            Some(_) => return None,
            None => None,
        };
        let stall = self.candidate.as_ref().filter(|c| !c.overdue);
        let stall = stall.map(|c| c.since + self.timing.progress);
        let drains = self.retired.iter().filter(|r| self.may_leave(r));
        let drain = drains.map(|r| r.leaves_at(&self.timing)).min();
        [deletion, stall, drain].into_iter().flatten().min()
    }

    /// The revisions of this policy that evaluators must hold, with the states of their routes.
    pub fn entries(&self) -> impl Iterator<Item = (&Arc<Policy>, RouteState)> {
        let active = self.active.iter().map(|p| (p, RouteState::Active));
        let candidate = self
            .candidate
            .iter()
            .map(|c| (&c.policy, RouteState::Candidate));
        let last_good = self.last_good.iter().map(|p| (p, RouteState::Candidate));
        let retired = self.retired.iter().map(|r| {
            let state = if r.never_active {
                RouteState::Candidate
            } else {
                RouteState::Retired
            };
            (&r.policy, state)
        });
        let all = active.chain(candidate).chain(last_good).chain(retired);
        all.filter_map(|(policy, state)| Some((policy, self.route_state(policy, state)?)))
    }

    /// The routes that go with [`Rollout::entries`].
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.entries()
            .map(|(policy, state)| Route::of(&policy.revision, state))
    }

    /// The policy object.
    pub fn id(&self) -> &PolicyId {
        &self.id
    }

    /// The newest generation that was seen.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Whether the newest generation was accepted.
    pub fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// The revision that the webhook names.
    pub fn active(&self) -> Option<&Arc<Policy>> {
        self.active.as_ref()
    }

    /// The revision that is being rolled out.
    pub fn candidate(&self) -> Option<&Candidate> {
        self.candidate.as_ref()
    }

    /// The revision that was active when the webhook was lost, as long as nothing is active again.
    pub fn last_good(&self) -> Option<&Arc<Policy>> {
        self.last_good.as_ref()
    }

    /// Revisions that no webhook is known to name: the candidate, those that it superseded, and the last good one.
    pub fn unrouted(&self) -> impl Iterator<Item = &RevisionId> {
        let superseded = self.retired.iter().filter(|r| r.never_active);
        let superseded = superseded.map(|r| &r.policy.revision);
        let candidate = self.candidate.iter().map(|c| &c.policy.revision);
        let last_good = self.last_good.iter().map(|p| &p.revision);
        candidate.chain(last_good).chain(superseded)
    }

    /// Whether the candidate missed its progress deadline.
    pub fn is_stalled(&self) -> bool {
        self.candidate.as_ref().is_some_and(|c| c.stalled)
    }

    /// Whether the candidate must not become active: its namespace has lost the permission
    /// since it was accepted.
    pub fn is_held(&self) -> bool {
        matches!(&self.acceptance, Acceptance::Refused(r) if r.reason.is_permission())
    }

    /// Whether the policy is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion.is_some()
    }

    /// Whether the policy was deleted and has drained.
    pub fn is_gone(&self) -> bool {
        self.deletion == Some(Deletion::Gone)
    }

    /// Whether the generation is active or a candidate.
    pub fn has_revision_of(&self, generation: i64) -> bool {
        let candidate = self.candidate.as_ref().map(|c| &c.policy);
        let mut both = self.active.iter().chain(candidate);
        both.any(|p| p.generation == generation)
    }

    /// The state of a route, which depends on how far a deletion is; `None` if it has left.
    fn route_state(&self, policy: &Policy, state: RouteState) -> Option<RouteState> {
        let deletion = match self.deletion {
            None => return Some(state),
            Some(deletion) => deletion,
        };
        let may_be_routed = self.may_be_routed(&policy.revision);
        match (deletion, state) {
            (Deletion::Gone, _) => None,
            // No webhook ever named it, so that no request can be on its way. The exception is
            // a flip whose outcome is not known: the webhook may name it already.
            (_, RouteState::Candidate) if !may_be_routed => None,
            (Deletion::RemovingWebhook, state) => Some(state),
            (Deletion::Draining(_), _) => Some(RouteState::Retired),
        }
    }

    /// When a policy without a webhook has drained; at once if nothing of it is served.
    fn released_at(&self, since: Millis) -> Millis {
        match self.entries().next() {
            Some(_) => since + self.timing.delete_drain,
            None => since,
        }
    }

    fn observed(&mut self, now: Millis, generation: i64, timing: Timing) {
        self.timing = timing;
        if generation > self.generation {
            self.generation = generation;
            self.observed_at = now;
            self.acceptance = Acceptance::Pending;
        }
    }

    fn ready(&mut self, now: Millis, policy: Arc<Policy>) {
        if policy.generation == self.generation {
            self.acceptance = Acceptance::Accepted;
        }
        let known = self
            .active
            .iter()
            .chain(self.candidate.iter().map(|c| &c.policy));
        if known.map(|p| p.generation).max() >= Some(policy.generation) {
            return;
        }
        match self.candidate.replace(Candidate::new(policy, now)) {
            Some(old) if old.was_active && self.active.is_none() => {
                self.last_good = Some(old.policy)
            }
            Some(old) => self.retired.push(Retired::superseded(old.policy, now)),
            None => {}
        }
    }

    fn flipped(&mut self, now: Millis, revision: &RevisionId, out: &mut Vec<Output>) {
        self.flipping.take_if(|r| *r == *revision);
        let Some(policy) = self.take(revision) else {
            return;
        };
        // Something newer came first.
        let passed_over = self.last_good.take();
        self.retired
            .extend(passed_over.map(|p| Retired::superseded(p, now)));
        let unsure = std::mem::take(&mut self.unsure);
        let left = self.retired.iter_mut();
        for left in left.filter(|r| r.never_active && unsure.contains(&r.policy.revision)) {
            // Requests may have been sent to it.
            (left.never_active, left.since) = (false, now);
        }
        if policy.generation == self.generation {
            out.push(Output::Enforced(now.since(self.observed_at)));
        }
        if let Some(old) = self.active.replace(policy) {
            self.retired.push(Retired::draining(old, now));
        }
    }

    /// Removes the candidate of this name, even if it was superseded while the webhook was being
    /// changed: the webhook names it, so that it must be served.
    fn take(&mut self, revision: &RevisionId) -> Option<Arc<Policy>> {
        if let Some(c) = self.candidate.take_if(|c| c.policy.revision == *revision) {
            return Some(c.policy);
        }
        if let Some(policy) = self.last_good.take_if(|p| p.revision == *revision) {
            return Some(policy);
        }
        let superseded = |r: &Retired| r.never_active && r.policy.revision == *revision;
        let at = self.retired.iter().position(superseded)?;
        Some(self.retired.remove(at).policy)
    }

    /// Whether a revision may be asked to leave: not twice, and not while the webhook may name it
    /// or come to name it.
    fn may_leave(&self, retired: &Retired) -> bool {
        !retired.requested && !self.may_be_routed(&retired.policy.revision)
    }

    /// Whether the webhook may name a revision although no outcome says so.
    fn may_be_routed(&self, revision: &RevisionId) -> bool {
        self.flipping.as_ref() == Some(revision) || self.unsure.contains(revision)
    }

    /// A revision was asked to leave although a route names it, which is being repaired: it drains from now on.
    fn still_routed(&mut self, now: Millis, revision: &RevisionId) {
        let mut retired = self.retired.iter_mut();
        if let Some(retired) = retired.find(|r| r.policy.revision == *revision) {
            retired.requested = false;
            retired.since = now;
            if retired.never_active {
                self.unsure.push(revision.clone());
            }
        }
    }

    fn request(&mut self, now: Millis, revision: &RevisionId) {
        let mut retired = self.retired.iter_mut();
        if let Some(retired) = retired.find(|r| r.policy.revision == *revision) {
            retired.last_request = Some(now);
        }
    }

    /// Asks for revisions to leave that have drained, or that exceed [`MAX_DRAINING`].
    fn retire(&mut self, now: Millis, out: &mut Vec<Output>) {
        let draining = self
            .retired
            .iter()
            .filter(|r| !r.never_active && !r.requested);
        let mut excess = draining.count().saturating_sub(MAX_DRAINING);
        for at in 0..self.retired.len() {
            if !self.may_leave(&self.retired[at]) {
                continue;
            }
            let retired = &mut self.retired[at];
            let early = !retired.never_active && excess > 0;
            excess -= usize::from(early);
            if early || retired.leaves_at(&self.timing) <= now {
                retired.requested = true;
                out.push(Output::Retire(retired.policy.revision.clone()));
            }
        }
    }
}
