#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::fixtures::{mk_id, mk_policy, mk_revision, show_output};

mod drain;
mod props;

/// Short and different from each other, so that a test sees which one was taken.
pub(super) const TIMING: Timing = Timing {
    progress: Duration::from_secs(600),
    drain: Duration::from_secs(60),
    quiet: Duration::from_secs(30),
    longest_drain: Duration::from_secs(300),
    delete_drain: Duration::from_secs(10),
};

struct Script {
    rollout: Rollout,
    now: Millis,
    /// Generations that every replica has.
    complete: BTreeSet<i64>,
}

impl Script {
    fn new(generation: i64) -> Self {
        Self::of(Rollout::new(mk_id("p"), Millis(0), generation, TIMING))
    }

    fn of(rollout: Rollout) -> Self {
        Self {
            rollout,
            now: Millis(0),
            complete: BTreeSet::new(),
        }
    }

    /// Generation 1 is active.
    fn active() -> Self {
        let mut script = Self::new(1);
        script.roll_out(1);
        script
    }

    /// Takes a generation from its object to the webhook.
    #[track_caller]
    fn roll_out(&mut self, generation: i64) -> &mut Self {
        self.observe(generation).ready(generation);
        let from = self
            .rollout
            .active()
            .map_or("none".into(), |p| p.generation.to_string());
        let took = ["enforced after 0ns"];
        self.complete(generation, &[&format!("flip {from} to {generation}")]);
        self.step(Input::Flipped(mk_revision("p", generation)), &took)
    }

    /// Feeds one input and expects exactly these outputs.
    #[track_caller]
    fn step(&mut self, input: Input, expect: &[&str]) -> &mut Self {
        let mut out = Vec::new();
        self.rollout.step(self.now, input, &mut out);
        assert_eq!(out.iter().map(show_output).collect::<Vec<_>>(), expect);
        self
    }

    /// Settles and expects exactly these outputs, and that nothing is left to settle.
    #[track_caller]
    fn settle(&mut self, expect: &[&str]) -> &mut Self {
        let mut out = Vec::new();
        settle(&mut self.rollout, self.now, &self.complete, &mut out);
        assert_eq!(out.iter().map(show_output).collect::<Vec<_>>(), expect);
        settle(&mut self.rollout, self.now, &self.complete, &mut out);
        assert_eq!(out.len(), expect.len());
        let next = self.rollout.deadline();
        assert!(
            next.is_none_or(|at| at > self.now),
            "nothing happens at {next:?}"
        );
        self
    }

    /// Lets time pass up to the very moment, expecting nothing before it.
    #[track_caller]
    fn at(&mut self, seconds: u64, expect: &[&str]) -> &mut Self {
        self.now = Millis(seconds * 1_000 - 1);
        self.settle(&[]);
        assert_eq!(self.rollout.deadline(), Some(Millis(seconds * 1_000)));
        self.now = Millis(seconds * 1_000);
        self.settle(expect)
    }

    fn pass(&mut self, seconds: u64) -> &mut Self {
        self.now = Millis(seconds * 1_000);
        self
    }

    #[track_caller]
    fn observe(&mut self, generation: i64) -> &mut Self {
        let timing = TIMING;
        self.step(Input::Observed { generation, timing }, &[])
    }

    #[track_caller]
    fn ready(&mut self, generation: i64) -> &mut Self {
        self.step(Input::Ready(mk_policy("p", generation)), &[])
    }

    #[track_caller]
    fn complete(&mut self, generation: i64, expect: &[&str]) -> &mut Self {
        self.complete.insert(generation);
        self.settle(expect)
    }

    #[track_caller]
    fn flipped(&mut self, generation: i64, expect: &[&str]) -> &mut Self {
        self.step(Input::Flipped(mk_revision("p", generation)), expect)
    }

    #[track_caller]
    fn retired(&mut self, generation: i64) -> &mut Self {
        self.step(Input::Retired(mk_revision("p", generation)), &[])
    }

    /// Expects exactly these revisions in the snapshot, each with one route.
    #[track_caller]
    fn holds(&mut self, expect: &[(i64, RouteState)]) -> &mut Self {
        let held: Vec<_> = self
            .rollout
            .entries()
            .map(|(p, s)| (p.generation, s))
            .collect();
        assert_eq!(held, expect);
        let paths: Vec<_> = self.rollout.routes().map(|r| r.path.to_string()).collect();
        let names = expect.iter().map(|(g, _)| mk_revision("p", *g).to_string());
        assert_eq!(paths, names.collect::<Vec<_>>());
        self
    }
}

pub(super) fn settle(
    rollout: &mut Rollout,
    now: Millis,
    complete: &BTreeSet<i64>,
    out: &mut Vec<Output>,
) {
    let fold = |revision: &RevisionId| Fold {
        complete: complete.iter().any(|g| mk_revision("p", *g) == *revision),
        ..Fold::default()
    };
    rollout.settle(now, fold, out);
}

fn refusal() -> Refusal {
    Refusal {
        reason: RefusalReason::Invalid,
        message: "settings: unknown field".into(),
    }
}

use RouteState::{Active, Candidate as Next, Retired as Old};

#[test]
fn policy_flips_once_every_replica_has_it() {
    let mut script = Script::new(1);
    script.settle(&[]).holds(&[]);
    script.pass(2).ready(1).settle(&[]).holds(&[(1, Next)]);
    script
        .pass(5)
        .complete(1, &["flip none to 1"])
        .holds(&[(1, Next)]);
    // Until it is told that the webhook changed nothing moves, and nothing is asked twice.
    script.pass(7).settle(&[]);
    script
        .flipped(1, &["enforced after 7s"])
        .holds(&[(1, Active)]);
    script.settle(&[]).flipped(1, &[]).settle(&[]);
}

#[test]
fn r38_only_that_very_revision_counts() {
    let mut script = Script::active();
    script.observe(2).ready(2);
    // Everyone has the old one, and one that is not asked for.
    script.complete(1, &[]).complete(3, &[]);
    script.holds(&[(1, Active), (2, Next)]);
    script.complete(2, &["flip 1 to 2"]);
}

#[test]
fn failed_flip_is_retried() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.step(Input::FlipFailed, &[]);
    script
        .holds(&[(1, Active), (2, Next)])
        .settle(&["flip 1 to 2"]);
    // Not if it no longer holds.
    script.step(Input::FlipFailed, &[]);
    script.complete.clear();
    script.settle(&[]).complete(2, &["flip 1 to 2"]);
}

#[test]
fn superseded_candidate_leaves_at_once() {
    let mut script = Script::active();
    script.observe(2).ready(2).observe(3).ready(3);
    // It stays in the snapshot until that is stored.
    script.holds(&[(1, Active), (3, Next), (2, Next)]);
    script
        .settle(&["retire 2"])
        .holds(&[(1, Active), (3, Next), (2, Next)]);
    script.retired(2).holds(&[(1, Active), (3, Next)]);
}

#[test]
fn superseded_candidate_waits_for_the_outcome_of_its_flip() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.observe(3).ready(3).complete(3, &[]);
    // The webhook may name 2 by now: it is still there, and nothing else is flipped to.
    script.holds(&[(1, Active), (3, Next), (2, Next)]);
    script
        .flipped(2, &[])
        .holds(&[(2, Active), (3, Next), (1, Old)]);
    script.settle(&["flip 2 to 3"]);
    script.flipped(3, &["enforced after 0ns"]);
    script.holds(&[(3, Active), (1, Old), (2, Old)]);
}

#[test]
fn superseded_candidate_leaves_if_its_flip_fails() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.observe(3).ready(3).settle(&[]);
    script.step(Input::FlipFailed, &[]).settle(&["retire 2"]);
    script.retired(2).holds(&[(1, Active), (3, Next)]);
    script.complete(3, &["flip 1 to 3"]);
}

#[test]
fn superseded_revision_that_the_webhook_may_name_is_served_until_the_next_flip() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.observe(3).ready(3).settle(&[]);
    script.step(Input::FlipUnknown, &[]).settle(&[]);
    script.holds(&[(1, Active), (3, Next), (2, Next)]);
    script.complete(3, &["flip 1 to 3"]);
    script.flipped(3, &["enforced after 0ns"]).settle(&[]);
    // Requests may have been sent to it, so it drains like the one before it.
    script.holds(&[(3, Active), (2, Old), (1, Old)]);
    script.pass(60).settle(&["retire 2", "retire 1"]);
}

#[test]
fn superseded_revision_that_the_webhook_names_becomes_active() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.observe(3).ready(3).step(Input::FlipUnknown, &[]);
    script.flipped(2, &[]).settle(&[]);
    script.holds(&[(2, Active), (3, Next), (1, Old)]);
}

#[test]
fn old_generations_are_not_taken_for_new_ones() {
    let mut script = Script::new(3);
    script.ready(3).ready(2).ready(3).observe(2);
    assert_eq!(script.rollout.generation(), 3);
    assert_eq!(*script.rollout.acceptance(), Acceptance::Accepted);
    script.settle(&[]).holds(&[(3, Next)]);
}

#[test]
fn a_refused_generation_leaves_what_is_active() {
    let mut script = Script::active();
    let refuse = |generation| Input::Refused {
        generation,
        refusal: refusal(),
    };
    script.observe(2).step(refuse(2), &[]).settle(&[]);
    assert_eq!(*script.rollout.acceptance(), Acceptance::Refused(refusal()));
    script.holds(&[(1, Active)]);
    // A verdict on an old generation says nothing of the newest.
    script.observe(3).step(refuse(2), &[]);
    assert_eq!(*script.rollout.acceptance(), Acceptance::Pending);
    script.ready(3);
    assert_eq!(*script.rollout.acceptance(), Acceptance::Accepted);
}

#[test]
fn a_candidate_that_takes_too_long_is_stalled_and_may_still_come() {
    let stalled = |script: &Script| script.rollout.candidate().unwrap().stalled;
    let mut script = Script::active();
    script.observe(2).ready(2).at(600, &[]);
    assert!(stalled(&script));
    script.holds(&[(1, Active), (2, Next)]);
    script.pass(700).complete(2, &["flip 1 to 2"]);
    assert!(!stalled(&script));
}

#[test]
fn a_candidate_that_waits_for_its_webhook_only_is_not_stalled() {
    let mut script = Script::active();
    script.observe(2).ready(2).complete(2, &["flip 1 to 2"]);
    script.at(600, &[]);
    assert!(!script.rollout.candidate().unwrap().stalled);
    assert_eq!(script.rollout.deadline(), None);
}

#[test]
fn a_new_candidate_gets_its_own_time() {
    let mut script = Script::active();
    script.observe(2).ready(2).pass(500);
    script.observe(3).ready(3).settle(&["retire 2"]).retired(2);
    script.at(1_100, &[]);
    assert!(script.rollout.candidate().unwrap().stalled);
}

#[track_caller]
fn check_restore(stored: StoredRevisions, expect: &[(i64, RouteState)], then: &[&str]) {
    let rollout = Rollout::new(mk_id("p"), Millis(0), 3, TIMING).restore(Millis(0), stored);
    Script::of(rollout).holds(expect).settle(then);
}

#[test]
fn stored_revisions_continue() {
    let p = |generation| mk_policy("p", generation);
    let stored = StoredRevisions {
        active: Some(p(2)),
        candidates: vec![p(3)],
        draining: vec![p(1)],
        ..StoredRevisions::default()
    };
    check_restore(stored, &[(2, Active), (3, Next), (1, Old)], &[]);
    check_restore(StoredRevisions::default(), &[], &[]);
    // Only the newest candidate goes on.
    let stored = StoredRevisions {
        active: None,
        candidates: vec![p(1), p(2), p(3)],
        ..StoredRevisions::default()
    };
    check_restore(
        stored,
        &[(3, Next), (1, Next), (2, Next)],
        &["retire 1", "retire 2"],
    );
}

#[test]
fn r38_a_crash_between_flip_and_phase_is_repaired() {
    let p = |generation| mk_policy("p", generation);
    // The webhook names 3, which is still stored as candidate; so is 2 that it superseded.
    let stored = StoredRevisions {
        active: Some(p(3)),
        candidates: vec![p(2), p(3)],
        draining: vec![p(1), p(3)],
        ..StoredRevisions::default()
    };
    check_restore(stored, &[(3, Active), (1, Old), (2, Next)], &["retire 2"]);
    let stored = StoredRevisions {
        active: Some(p(3)),
        candidates: vec![p(2)],
        ..StoredRevisions::default()
    };
    check_restore(stored, &[(3, Active), (2, Next)], &["retire 2"]);
}

#[test]
fn a_restored_generation_is_accepted_only_if_it_is_there() {
    let restored = |generation| {
        let stored = StoredRevisions {
            active: Some(mk_policy("p", 2)),
            ..StoredRevisions::default()
        };
        Rollout::new(mk_id("p"), Millis(0), generation, TIMING).restore(Millis(0), stored)
    };
    assert_eq!(*restored(2).acceptance(), Acceptance::Accepted);
    assert_eq!(*restored(3).acceptance(), Acceptance::Pending);
    assert!(restored(3).has_revision_of(2));
    assert!(!restored(3).has_revision_of(3));
}

#[test]
fn drains_start_again_after_a_restart() {
    let stored = StoredRevisions {
        active: Some(mk_policy("p", 2)),
        draining: vec![mk_policy("p", 1)],
        ..StoredRevisions::default()
    };
    let now = Millis(1_000_000);
    let rollout = Rollout::new(mk_id("p"), now, 2, TIMING).restore(now, stored);
    Script::of(rollout).pass(1_000).at(1_060, &["retire 1"]);
}

#[test]
fn times_follow_the_webhook_s_timeout() {
    let seconds = Duration::from_secs;
    let drain = |timeout| Timing::for_webhook(seconds(600), seconds(timeout)).drain;
    assert_eq!(
        (drain(10), drain(30), drain(45)),
        (seconds(60), seconds(60), seconds(90))
    );
    let short = Timing::for_webhook(seconds(600), seconds(10)).with_drain(seconds(1));
    assert_eq!(short.drain, seconds(1));
    assert_eq!(short.quiet, seconds(1));
    assert_eq!(short.delete_drain, seconds(1));
    assert_eq!(short.progress, seconds(600));
}
