//! The life of one policy: candidate, applied everywhere, pointed at, drained, retired.
//!
//! The machine asks for things to be done and moves on when it is told that they were: the
//! phase of a revision is stored before a snapshot that follows from it goes out, and the
//! active revision is the one that the webhook names, nothing else.

use std::{sync::Arc, time::Duration};

use crate::{
    condition::Reason,
    fleet::Fold,
    policy::{Policy, PolicyKey, RevisionId},
    snapshot::{Route, RouteState},
    time::Millis,
};

#[cfg(test)]
mod tests;

/// Retired revisions that may drain at once; an older one leaves early.
pub const MAX_DRAINING: usize = 2;

/// One policy's rollout.
#[derive(Clone, Debug)]
pub struct Rollout {
    id: PolicyId,
    timing: Timing,
    generation: i64,
    observed_at: Millis,
    acceptance: Acceptance,
    active: Option<Arc<Policy>>,
    candidate: Option<Candidate>,
    retired: Vec<Retired>,
    /// What the webhook is being pointed at, until it is known how that went.
    flipping: Option<RevisionId>,
    /// Revisions that the webhook may name although the write failed: the API server may have
    /// performed it, and only the response was lost. They are served until a later write
    /// succeeds, after which the webhook names another one.
    unsure: Vec<RevisionId>,
    deletion: Option<Deletion>,
}

/// Names one life of a policy: deleted and created again it has another uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    /// Its name.
    pub key: PolicyKey,
    /// Its uid.
    pub uid: Arc<str>,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A candidate that is not applied everywhere by then is stalled.
    pub progress: Duration,
    /// A retired revision is served for at least this time.
    pub drain: Duration,
    /// It leaves once no request came for this time.
    pub quiet: Duration,
    /// It leaves then in any case.
    pub longest_drain: Duration,
    /// A deleted policy is served for this time after its webhook was removed.
    pub delete_drain: Duration,
}

/// What became of the newest generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// It is being looked at.
    Pending,
    /// It became a revision.
    Accepted,
    /// It will not be distributed.
    Refused(Refusal),
}

/// Why a generation is not distributed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its kind.
    pub reason: RefusalReason,
    /// What was wrong, where, and what to do.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum RefusalReason {
    Invalid,
    PullError,
    SignatureRejected,
    TargetNotFound,
    NotAllowed,
    QuotaExceeded,
    Conflicted,
    ContextUnavailable,
}

/// What happens to a policy.
#[derive(Clone, Debug)]
pub enum Input {
    /// Its object has this generation.
    Observed {
        /// The generation.
        generation: i64,
        /// What its spec says of times.
        timing: Timing,
    },
    /// A generation will not be distributed.
    Refused {
        /// The generation.
        generation: i64,
        /// Why.
        refusal: Refusal,
    },
    /// What stood against the newest generation is gone.
    Reconsidered,
    /// A generation became a revision, stored as candidate.
    Ready(Arc<Policy>),
    /// The webhook names this revision.
    Flipped(RevisionId),
    /// The webhook could not be changed; it is tried again.
    FlipFailed,
    /// The webhook may have been changed or not: there was no response. It is tried again.
    FlipUnknown,
    /// The revision is stored as history.
    Retired(RevisionId),
    /// A request came in on a retired path.
    Request(RevisionId),
    /// The object is being deleted.
    Deleted,
    /// The webhook is gone.
    WebhookRemoved,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Point the webhook at this revision, if it still names `from`.
    Flip {
        /// What it must name now.
        from: Option<RevisionId>,
        /// What it is to name.
        to: Arc<Policy>,
    },
    /// Store the revision as history.
    Retire(RevisionId),
    /// Remove the webhook.
    RemoveWebhook,
    /// Nothing of the policy is left in any snapshot.
    Release,
    /// The newest generation is enforced; the time since it was first seen.
    Enforced(Duration),
}

/// A revision on its way.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The revision.
    pub policy: Arc<Policy>,
    since: Millis,
    /// Not applied everywhere in time.
    pub stalled: bool,
    /// The time is over, applied or not: nothing more to wait for.
    overdue: bool,
}

#[derive(Clone, Debug)]
struct Retired {
    policy: Arc<Policy>,
    since: Millis,
    last_request: Option<Millis>,
    /// Superseded before it was active: there is nobody to drain for.
    never_active: bool,
    requested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    RemovingWebhook,
    Draining(Millis),
    Gone,
}

/// What is stored of a policy when a control plane starts.
#[derive(Clone, Debug, Default)]
pub struct StoredRevisions {
    /// What the webhook names.
    pub active: Option<Arc<Policy>>,
    /// Candidates, oldest first; only the newest goes on.
    pub candidates: Vec<Arc<Policy>>,
    /// Revisions that drain.
    pub draining: Vec<Arc<Policy>>,
}

// === impl RefusalReason ===

impl RefusalReason {
    /// Whether the policy itself is fine, and its namespace may not have it.
    pub fn is_permission(self) -> bool {
        matches!(
            self,
            RefusalReason::NotAllowed | RefusalReason::QuotaExceeded
        )
    }

    /// Whether an active revision of the refused generation is still what the user wants. A
    /// second manifest of the same name does not affect the first one, and a permission that
    /// was withdrawn ends no protection.
    pub fn spares_active(self) -> bool {
        self == RefusalReason::Conflicted || self.is_permission()
    }
}

// === impl Rollout ===

impl Rollout {
    /// A policy that was seen for the first time.
    pub fn new(id: PolicyId, now: Millis, generation: i64, timing: Timing) -> Self {
        Self {
            id,
            timing,
            generation,
            observed_at: now,
            acceptance: Acceptance::Pending,
            active: None,
            candidate: None,
            retired: Vec::new(),
            flipping: None,
            unsure: Vec::new(),
            deletion: None,
        }
    }

    /// Goes on from what is stored. Timers start now: stored times are for people.
    pub fn restore(mut self, now: Millis, stored: StoredRevisions) -> Self {
        let StoredRevisions {
            active,
            mut candidates,
            mut draining,
        } = stored;
        // A phase may not have been stored before the end of the process that requested for it.
        let named = |p: &Arc<Policy>| active.as_ref().is_some_and(|a| a.revision == p.revision);
        candidates.retain(|p| !named(p));
        draining.retain(|p| !named(p));
        let newer = |p: &Arc<Policy>| active.as_ref().is_none_or(|a| a.generation < p.generation);
        let newest = candidates.pop_if(|p| newer(p));
        self.active = active;
        self.retired = draining
            .into_iter()
            .map(|p| Retired::draining(p, now))
            .collect();
        let superseded = candidates.into_iter().map(|p| Retired::superseded(p, now));
        self.retired.extend(superseded);
        self.candidate = newest.map(|policy| Candidate::new(policy, now));
        if self.has_revision_of(self.generation) {
            self.acceptance = Acceptance::Accepted;
        }
        self
    }

    /// Takes in what happened and appends what is to be done.
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

    /// Looks at what time and replicas brought; `fold` is the candidate's.
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

    /// What evaluators must hold of this policy.
    pub fn entries(&self) -> impl Iterator<Item = (&Arc<Policy>, RouteState)> {
        let active = self.active.iter().map(|p| (p, RouteState::Active));
        let candidate = self
            .candidate
            .iter()
            .map(|c| (&c.policy, RouteState::Candidate));
        let retired = self.retired.iter().map(|r| {
            let state = if r.never_active {
                RouteState::Candidate
            } else {
                RouteState::Retired
            };
            (&r.policy, state)
        });
        let all = active.chain(candidate).chain(retired);
        all.filter_map(|(policy, state)| Some((policy, self.route_state(policy, state)?)))
    }

    /// The routes that go with [`Rollout::entries`].
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        self.entries()
            .map(|(policy, state)| Route::of(&policy.revision, state))
    }

    /// Which life of which policy.
    pub fn id(&self) -> &PolicyId {
        &self.id
    }

    /// The newest generation seen.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// What became of it.
    pub fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// What the webhook names.
    pub fn active(&self) -> Option<&Arc<Policy>> {
        self.active.as_ref()
    }

    /// What is on its way.
    pub fn candidate(&self) -> Option<&Candidate> {
        self.candidate.as_ref()
    }

    /// Revisions that no webhook is known to name: the candidate, and those that it superseded.
    pub fn unrouted(&self) -> impl Iterator<Item = &RevisionId> {
        let superseded = self.retired.iter().filter(|r| r.never_active);
        let superseded = superseded.map(|r| &r.policy.revision);
        let candidate = self.candidate.iter().map(|c| &c.policy.revision);
        candidate.chain(superseded)
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

    /// Whether nothing is left of it.
    pub fn is_gone(&self) -> bool {
        self.deletion == Some(Deletion::Gone)
    }

    /// Whether the generation is active or on its way.
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
        if let Some(old) = self.candidate.replace(Candidate::new(policy, now)) {
            self.retired.push(Retired::superseded(old.policy, now));
        }
    }

    fn flipped(&mut self, now: Millis, revision: &RevisionId, out: &mut Vec<Output>) {
        self.flipping.take_if(|r| *r == *revision);
        let Some(policy) = self.take(revision) else {
            return;
        };
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

    /// Takes out the candidate of this name, even if it was superseded while the webhook
    /// was being changed: the webhook names it, so it must be answered.
    fn take(&mut self, revision: &RevisionId) -> Option<Arc<Policy>> {
        if let Some(c) = self.candidate.take_if(|c| c.policy.revision == *revision) {
            return Some(c.policy);
        }
        let superseded = |r: &Retired| r.never_active && r.policy.revision == *revision;
        let at = self.retired.iter().position(superseded)?;
        Some(self.retired.remove(at).policy)
    }

    /// Whether it may be requested to leave: not twice, and not while the webhook may name it
    /// or come to name it.
    fn may_leave(&self, retired: &Retired) -> bool {
        !retired.requested && !self.may_be_routed(&retired.policy.revision)
    }

    /// Whether the webhook may name it without anybody knowing.
    fn may_be_routed(&self, revision: &RevisionId) -> bool {
        self.flipping.as_ref() == Some(revision) || self.unsure.contains(revision)
    }

    fn request(&mut self, now: Millis, revision: &RevisionId) {
        let mut retired = self.retired.iter_mut();
        if let Some(retired) = retired.find(|r| r.policy.revision == *revision) {
            retired.last_request = Some(now);
        }
    }

    /// Asks for those to leave that have drained, or that are too many.
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

// === impl Timing ===

impl Timing {
    /// The default times for a webhook with this timeout: see docs/design/rollout.md.
    pub fn for_webhook(progress: Duration, webhook_timeout: Duration) -> Self {
        Self {
            progress,
            // Twice the timeout: a request that an API server sent just before it saw the
            // new path is answered, its retry too.
            drain: Duration::from_secs(60).max(2 * webhook_timeout),
            quiet: Duration::from_secs(30),
            longest_drain: Duration::from_secs(600),
            delete_drain: Duration::from_secs(10),
        }
    }

    /// The same with every drain as short as `drain`.
    pub fn with_drain(self, drain: Duration) -> Self {
        Self {
            drain,
            quiet: self.quiet.min(drain),
            longest_drain: self.longest_drain.max(drain),
            delete_drain: drain,
            ..self
        }
    }
}

// === impl Candidate ===

impl Candidate {
    fn new(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            policy,
            since,
            stalled: false,
            overdue: false,
        }
    }
}

// === impl Retired ===

impl Retired {
    fn draining(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            policy,
            since,
            last_request: None,
            never_active: false,
            requested: false,
        }
    }

    fn superseded(policy: Arc<Policy>, since: Millis) -> Self {
        Self {
            never_active: true,
            ..Self::draining(policy, since)
        }
    }

    fn leaves_at(&self, timing: &Timing) -> Millis {
        if self.never_active {
            return self.since;
        }
        let quiet = self.last_request.map(|at| at + timing.quiet);
        let drained = (self.since + timing.drain).max(quiet.unwrap_or_default());
        drained.min(self.since + timing.longest_drain)
    }
}

// === impl RefusalReason ===

impl RefusalReason {
    /// The reason of the `Accepted` condition.
    pub fn as_str(self) -> &'static str {
        Reason::from(self).as_str()
    }
}
