//! Revisions that are not loaded, or that fail after they were: retried, reported, reported again.

use assent_core::RevisionId;

use super::{Answer, Machine, Output, REJECTIONS, Round};
use crate::{
    failure::{Failure, Stage},
    plan::Failed,
};

/// Rounds of retries before a transient failure stands until the revision is offered again. With their doubling
/// delays they span about ten minutes.
pub(super) const RETRIES: u32 = 10;

impl Machine {
    pub(super) fn plan_retry(&mut self, round: Round, out: &mut Vec<Output>) {
        let transient = round.plan.failed.values().any(|failure| failure.retryable);
        let awaited = match self.stream {
            Some(_) => round.confirms,
            // Until there is a stream, only content that waits because processes died during it: everything that it
            // needs is on disk.
            None => !round.confirms && self.first_attempt(&round.plan) > 0,
        };
        // Objects may take any time to come; what waits for them is tried again when they do.
        let waits = waits_for_context(&round.plan.failed);
        if !transient || (self.attempt >= RETRIES && !waits) || !awaited {
            return;
        }
        out.push(Output::RetryLater {
            attempt: self.attempt,
        });
        self.attempt = (self.attempt + 1).min(RETRIES);
        self.round = Some(round);
    }

    /// Objects that policies read have changed their state.
    pub(super) fn context_changed(&mut self, out: &mut Vec<Output>) {
        let round = self.round.as_ref().filter(|round| !round.running);
        if round.is_some_and(|round| waits_for_context(&round.plan.failed)) {
            self.retry(out);
        }
    }

    pub(super) fn retry(&mut self, out: &mut Vec<Output>) {
        let Some(round) = self.round.as_mut().filter(|round| !round.running) else {
            return;
        };
        let again = round
            .plan
            .failed
            .iter()
            .filter(|(_, failure)| failure.retryable);
        let policies = again.filter_map(|(revision, _)| {
            let offer = round.candidate.offers().get(revision)?;
            offer.body.as_ref().ok().cloned()
        });
        round.plan.prepare = policies.collect();
        round.running = true;
        round.retry = true;
        out.push(Output::Prepare(round.plan.prepare.clone()));
    }

    pub(super) fn runtime_failed(
        &mut self,
        revision: RevisionId,
        why: String,
        out: &mut Vec<Output>,
    ) {
        let counts = self.announced.offers().contains_key(&revision)
            && self.loaded.contains_key(&revision)
            && !self.failed.contains_key(&revision)
            // One more would turn the answer into "nothing of it was applied", which would be wrong.
            && self.failed.len() < REJECTIONS;
        if counts {
            let failure = Failure::permanent(Stage::Runtime, why);
            self.amend(|failed| failed.insert(revision, failure));
            self.answer_again(out);
        }
    }

    pub(super) fn runtime_recovered(&mut self, revision: &RevisionId, out: &mut Vec<Output>) {
        let failed = self.failed.get(revision);
        if failed.is_some_and(|failure| failure.stage == Stage::Runtime) {
            self.amend(|failed| failed.remove(revision));
            self.answer_again(out);
        }
    }

    /// Changes the failures, in the round that waits for its retry too.
    fn amend<T>(&mut self, change: impl FnOnce(&mut Failed) -> T) {
        change(&mut self.failed);
        let failed = &self.failed;
        if let Some(round) = self.round.as_mut()
            && round.candidate.version() == self.announced.version()
        {
            round.plan.failed = failed.clone();
        }
    }

    /// The newest nonce may be answered again, and the last answer wins. Only if it was answered before, and its set
    /// was applied.
    fn answer_again(&mut self, out: &mut Vec<Output>) {
        let busy = self.round.as_ref().is_some_and(|round| {
            let other = round.candidate.version() != self.announced.version();
            other || (round.running && !round.retry)
        });
        let Some(nonce) = self
            .nonce()
            .filter(|_| self.has_applied() && !busy && !self.rejected)
        else {
            return;
        };
        let version = self.announced.version();
        self.whole = match self.failed.is_empty() {
            true => Some(version),
            false => self.whole.filter(|whole| *whole != version),
        };
        out.push(Output::Answer(Answer {
            nonce,
            version: self.whole,
            ..Answer::about(&self.failed)
        }));
    }
}

fn waits_for_context(failed: &Failed) -> bool {
    let mut failures = failed.values();
    failures.any(|failure| failure.stage == Stage::Context)
}
