//! The discovery protocol as a pure state machine: events in, actions out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{Digest, Policy, RevisionId, Version};

use super::parts::{Part, Parts};
use crate::{
    announced::{Announced, Error, Offer, Offers, Routes, Update},
    failure::{Failure, Stage},
    plan::{self, Failed, Loaded, Plan, RoutingTable},
    store::Crashed,
};

mod failures;
mod io;
#[cfg(test)]
mod tests;

pub(crate) use io::{Answer, Hello, Input, Output, Results, Swap, Timing};

/// Most rejections that one answer may list; the protocol's bound.
pub(crate) const REJECTIONS: usize = 64;

/// Most revisions that the first message may list; the protocol's bound.
const CLAIMS: usize = 20_000;

/// The first delay of content during which processes died is at most 32 s to 64 s.
const LONGEST_FIRST: u32 = 6;

/// The announced set, the loaded revisions, and the state of the stream.
pub(crate) struct Machine {
    announced: Arc<Announced>,
    loaded: Loaded,
    /// Revisions of the announced set that are not loaded, or that failed at run time.
    failed: Failed,
    /// The version that was loaded whole last.
    whole: Option<Version>,
    /// Modules and contents during which earlier processes died.
    crashed: Crashed,
    lease_transitions: u64,
    /// A response was rejected as a whole, and none was applied since.
    rejected: bool,
    stream: Option<Stream>,
    round: Option<Round>,
    attempt: u32,
}

/// State that ends with the stream.
#[derive(Default)]
struct Stream {
    /// The newest nonce that was answered or is being prepared.
    nonce: Option<String>,
    /// Whether a response was applied: until then `routes` is complete.
    applied: bool,
    /// Whether the first message listed the loaded revisions.
    claimed: bool,
    parts: Parts,
}

/// A set in preparation, or one that waits for a retry.
struct Round {
    candidate: Arc<Announced>,
    plan: Plan,
    /// Whether it is being prepared now.
    running: bool,
    /// A retry: answered only if something changed.
    retry: bool,
    /// Whether it came from the control plane and not from disk.
    confirms: bool,
}

// === impl Machine ===

impl Machine {
    /// Earlier processes died during `crashed`; `lease_transitions` is the newest leadership that they have seen.
    pub(crate) fn new(crashed: Crashed, lease_transitions: u64) -> Self {
        Self {
            announced: Arc::default(),
            loaded: Loaded::new(),
            failed: Failed::new(),
            whole: None,
            crashed,
            lease_transitions,
            rejected: false,
            stream: None,
            round: None,
            attempt: 0,
        }
    }

    /// Whether a response may be processed now: not while one is being prepared. A new response cancels a retry.
    pub(crate) fn reads(&self) -> bool {
        self.round
            .as_ref()
            .is_none_or(|round| !round.running || round.retry)
    }

    /// Whether every revision of the announced set is loaded.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole == Some(self.announced.version()) && self.failed.is_empty()
    }

    /// Whether a response of the open stream was applied.
    pub(crate) fn has_applied(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.applied)
    }

    /// Whether a response was rejected as a whole and none was applied since.
    pub(crate) fn has_rejected(&self) -> bool {
        self.rejected
    }

    pub(crate) fn step(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Restored { set, whole } => self.restored(set, whole, out),
            Input::Connected => self.connected(out),
            Input::Received(part) => self.received(part, out),
            Input::Unreadable { nonce, why } => self.reject(nonce, why, out),
            Input::Prepared { results, timing } => self.prepared(results, timing, out),
            Input::RetryDue => self.retry(out),
            Input::ContextChanged => self.context_changed(out),
            Input::RuntimeFailed { revision, why } => self.runtime_failed(revision, why, out),
            Input::RuntimeRecovered { revision } => self.runtime_recovered(&revision, out),
            Input::Disconnected => self.disconnected(),
        }
    }

    fn restored(&mut self, set: Announced, whole: bool, out: &mut Vec<Output>) {
        let offered = set.offers().keys().cloned().collect();
        if whole {
            // True only if everything of it loads: `apply` resets it otherwise.
            self.whole = Some(set.version());
        }
        self.begin(Arc::new(set), &offered, false, out);
    }

    fn connected(&mut self, out: &mut Vec<Output>) {
        let claims = self.claims();
        let claimed = claims.len() <= CLAIMS;
        let hello = Hello {
            version: self.is_whole().then(|| self.announced.version()),
            revisions: if claimed {
                digests(&claims)
            } else {
                BTreeMap::new()
            },
            lease_transitions: self.lease_transitions,
        };
        // Deltas of this stream are relative to the revisions that the first message lists.
        let offers: Offers = claims
            .values()
            .map(|p| (p.revision.clone(), Offer::known(p)))
            .collect();
        if claimed && offers != *self.announced.offers() {
            self.announced = Arc::new(Announced::new(offers, self.announced.routes().clone()));
        }
        self.stream = Some(Stream {
            claimed,
            ..Stream::default()
        });
        out.push(Output::Open(hello));
    }

    /// The revisions that are loaded and have not failed.
    fn claims(&self) -> Loaded {
        let held = self
            .loaded
            .iter()
            .filter(|(id, _)| !self.failed.contains_key(*id));
        held.map(|(id, policy)| (id.clone(), policy.clone()))
            .collect()
    }

    fn received(&mut self, part: Part, out: &mut Vec<Output>) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let nonce = part.nonce.clone();
        if let Some(transitions) = part.lease_transitions {
            if transitions < self.lease_transitions {
                let seen = self.lease_transitions;
                let why = format!(
                    "failed to accept the set: it comes from leadership term {transitions}, \
                     and this evaluator has seen term {seen}"
                );
                self.answer_rejection(nonce, why, out);
                return out.push(Output::Reconnect);
            }
            self.lease_transitions = transitions;
        }
        match stream.parts.push(part) {
            Ok(None) => {}
            Ok(Some(update)) => self.consider(nonce, &update, out),
            Err(error) => self.reject(nonce, error.to_string(), out),
        }
    }

    /// A response is complete: verify all of it before anything is loaded.
    fn consider(&mut self, nonce: String, update: &Update, out: &mut Vec<Output>) {
        self.drop_retry();
        let Some(stream) = &mut self.stream else {
            return;
        };
        stream.nonce = Some(nonce.clone());
        let (first, claimed) = (!stream.applied, stream.claimed);
        match self.verify(update, first, claimed) {
            Ok(candidate) => self.begin(Arc::new(candidate), &update.offered(), true, out),
            Err(error) => self.reject(nonce, error.to_string(), out),
        }
    }

    /// A client with too many revisions to list may get the whole set, or the difference to the version that it named:
    /// the version of the result decides which.
    fn verify(&self, update: &Update, first: bool, claimed: bool) -> Result<Announced, Error> {
        let result = self.announced.updated(update, first);
        match result {
            Err(Error::Version { .. }) if first && !claimed => {
                Announced::default().updated(update, true).or(result)
            }
            result => result,
        }
    }

    fn begin(
        &mut self,
        candidate: Arc<Announced>,
        offered: &BTreeSet<RevisionId>,
        confirms: bool,
        out: &mut Vec<Output>,
    ) {
        let plan = plan::plan(
            &candidate,
            offered,
            &self.loaded,
            &self.failed,
            &self.crashed.failures,
        );
        self.attempt = self.first_attempt(&plan);
        let prepare = plan.prepare.clone();
        self.round = Some(Round {
            candidate,
            plan,
            running: true,
            retry: false,
            confirms,
        });
        if prepare.is_empty() {
            self.prepared(Results::new(), Timing::default(), out);
        } else {
            out.push(Output::Prepare(prepare));
        }
    }

    /// Content during which processes died waits longer each time until it is tried again.
    fn first_attempt(&self, plan: &Plan) -> u32 {
        let mut crashed = self.crashed.failures.values();
        let waits = crashed.any(|failure| {
            failure.retryable && plan.failed.values().any(|failed| failed == failure)
        });
        if waits {
            self.crashed.in_a_row.min(LONGEST_FIRST)
        } else {
            0
        }
    }

    fn prepared(&mut self, results: Results, timing: Timing, out: &mut Vec<Output>) {
        let Some(mut round) = self.round.take().filter(|round| round.running) else {
            return;
        };
        let before = kinds(&round.plan.failed);
        for policy in std::mem::take(&mut round.plan.prepare) {
            match results.get(&policy.revision) {
                Some(Ok(())) => {
                    round.plan.failed.remove(&policy.revision);
                    let content = &policy.content;
                    for done in [&policy.content_digest, &content.module_digest] {
                        self.crashed.failures.remove(done);
                    }
                    self.loaded.insert(policy.revision.clone(), policy);
                }
                Some(Err(failure)) => {
                    round
                        .plan
                        .failed
                        .insert(policy.revision.clone(), failure.clone());
                }
                None => {
                    let failure = Failure::transient(Stage::Swap, "it was not prepared");
                    round.plan.failed.insert(policy.revision.clone(), failure);
                }
            }
        }
        let (retry, changed) = (round.retry, kinds(&round.plan.failed) != before);
        round.running = false;
        round.retry = false;
        if !retry || changed {
            self.settle(&round, timing, out);
        }
        self.plan_retry(round, out);
    }

    /// Everything that can be loaded is loaded: apply the set, or reject it if too much is missing.
    fn settle(&mut self, round: &Round, timing: Timing, out: &mut Vec<Output>) {
        let too_many = round.plan.failed.len() > REJECTIONS;
        if !(round.confirms && too_many) {
            self.apply(round, out);
        }
        let Some(nonce) = self.nonce().filter(|_| round.confirms) else {
            return;
        };
        let version = if too_many {
            self.whole
        } else {
            self.whole_or(round)
        };
        out.push(Output::Answer(Answer {
            nonce,
            version,
            timing,
            ..Answer::about(&round.plan.failed)
        }));
    }

    fn apply(&mut self, round: &Round, out: &mut Vec<Output>) {
        self.announced = round.candidate.clone();
        self.failed = round.plan.failed.clone();
        let version = self.announced.version();
        if self.failed.is_empty() && (round.confirms || self.whole == Some(version)) {
            self.whole = Some(version);
        } else if !round.confirms {
            self.whole = None;
        }
        if round.confirms {
            self.rejected = false;
            if let Some(stream) = &mut self.stream {
                stream.applied = true;
            }
        }
        let table = RoutingTable::new(&self.announced, &self.loaded, &self.failed);
        self.loaded
            .retain(|revision, _| table.retained.contains(revision));
        out.push(Output::Swap(Box::new(Swap {
            loaded: self.loaded.clone(),
            routes: self.routes_to_keep(&table),
            whole: self.is_whole(),
            confirmed: round.confirms,
            lease_transitions: self.lease_transitions,
            table,
        })));
    }

    /// Announced routes as they are answered, and the paths of last good revisions.
    fn routes_to_keep(&self, table: &RoutingTable) -> Routes {
        let mut routes = table.resolve(self.announced.routes());
        for revision in table
            .retained
            .iter()
            .filter(|r| !self.announced.offers().contains_key(*r))
        {
            let route = assent_core::Route::of(revision, assent_core::RouteState::Retired);
            routes
                .entry(route.path.clone())
                .or_insert_with(|| Arc::new(route));
        }
        routes
    }

    fn whole_or(&self, round: &Round) -> Option<Version> {
        if round.plan.failed.is_empty() {
            Some(round.candidate.version())
        } else {
            self.whole
                .filter(|whole| *whole != round.candidate.version())
        }
    }

    /// Nothing of that response is applied.
    fn reject(&mut self, nonce: String, why: String, out: &mut Vec<Output>) {
        self.rejected = true;
        if let Some(stream) = &mut self.stream {
            stream.nonce = Some(nonce.clone());
        }
        self.answer_rejection(nonce, why, out);
        out.push(Output::ResyncLater);
    }

    fn answer_rejection(&self, nonce: String, why: String, out: &mut Vec<Output>) {
        out.push(Output::Answer(Answer {
            nonce,
            version: self.whole,
            error: Some(crate::failure::cut(why)),
            ..Answer::default()
        }));
    }

    fn nonce(&self) -> Option<String> {
        self.stream.as_ref().and_then(|stream| stream.nonce.clone())
    }

    /// The next response's plan includes the retried revisions, or they are offered again.
    fn drop_retry(&mut self) {
        if self.reads() {
            self.round = None;
        }
    }

    /// A response in preparation is dropped with its stream: the next stream offers it again.
    fn disconnected(&mut self) {
        self.stream = None;
        self.round = None;
    }
}

/// The parts of failures whose change is reported; messages may differ at each attempt.
fn kinds(failed: &Failed) -> BTreeMap<RevisionId, (Stage, bool)> {
    let entry = |(id, failure): (&RevisionId, &Failure)| {
        let Failure {
            stage, retryable, ..
        } = failure;
        (id.clone(), (*stage, *retryable))
    };
    failed.iter().map(entry).collect()
}

fn digests(loaded: &Loaded) -> BTreeMap<RevisionId, Digest> {
    let entry = |(id, policy): (&RevisionId, &Arc<Policy>)| (id.clone(), policy.content_digest);
    loaded.iter().map(entry).collect()
}
