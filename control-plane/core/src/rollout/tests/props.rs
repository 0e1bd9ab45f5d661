//! One rollout under random schedules, with a webhook and a store that answer late, fail,
//! and survive restarts.

use std::collections::VecDeque;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::snapshot::Snapshot;

#[derive(Clone, Debug)]
enum Step {
    Edit,
    Refuse,
    Ready,
    /// What every replica has; as bits of generations.
    Complete(u16),
    /// The oldest thing that was asked for is done, or fails.
    Perform {
        fails: bool,
    },
    Request(i64),
    Pass(u64),
    Restart,
    Delete,
}

/// What is outside: the object, the webhook and stored revisions.
struct World {
    rollout: Rollout,
    now: Millis,
    generation: i64,
    accepted: BTreeSet<i64>,
    refused: BTreeSet<i64>,
    complete: BTreeSet<i64>,
    webhook: Option<i64>,
    /// StoredRevisions and not history.
    stored: BTreeSet<i64>,
    flipped_away: BTreeSet<i64>,
    todo: VecDeque<Output>,
    deleted: bool,
    routed: bool,
    released: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Edit),
        1 => Just(Step::Refuse),
        5 => Just(Step::Ready),
        6 => any::<u16>().prop_map(Step::Complete),
        8 => prop::bool::weighted(0.2).prop_map(|fails| Step::Perform { fails }),
        1 => (1i64..9).prop_map(Step::Request),
        4 => (0u64..90_000).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => prop::bool::weighted(0.2).prop_map(|d| if d { Step::Delete } else { Step::Edit }),
    ];
    vec(step, 0..120)
}

impl World {
    fn new() -> Self {
        Self {
            rollout: Rollout::new(mk_id("p"), Millis(0), 1, TIMING),
            now: Millis(0),
            generation: 1,
            accepted: BTreeSet::new(),
            refused: BTreeSet::new(),
            complete: BTreeSet::new(),
            webhook: None,
            stored: BTreeSet::new(),
            flipped_away: BTreeSet::new(),
            todo: VecDeque::new(),
            deleted: false,
            routed: true,
            released: false,
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Edit if !self.deleted && self.generation < 15 => {
                self.generation += 1;
                let generation = self.generation;
                let timing = TIMING;
                self.feed(Input::Observed { generation, timing });
            }
            Step::Refuse if !self.accepted.contains(&self.generation) => {
                let generation = self.generation;
                self.refused.insert(generation);
                let refusal = refusal();
                self.feed(Input::Refused {
                    generation,
                    refusal,
                });
            }
            Step::Ready => self.vet(),
            Step::Complete(bits) => {
                // Nobody can have what was never stored.
                let has = |g: &i64| bits & (1 << *g) != 0 && self.stored.contains(g);
                self.complete = (1..16).filter(has).collect();
            }
            Step::Perform { fails } => self.perform(fails),
            Step::Request(generation) => self.feed(Input::Request(mk_revision("p", generation))),
            Step::Pass(millis) => self.now = self.now + Duration::from_millis(millis),
            Step::Restart => self.restart(),
            Step::Delete => {
                self.deleted = true;
                self.feed(Input::Deleted);
            }
            Step::Edit | Step::Refuse => {}
        }
        self.settle();
    }

    fn vet(&mut self) {
        if self.deleted || self.refused.contains(&self.generation) {
            return;
        }
        if self.accepted.insert(self.generation) {
            self.stored.insert(self.generation);
            self.feed(Input::Ready(mk_policy("p", self.generation)));
        }
    }

    fn feed(&mut self, input: Input) {
        let mut out = Vec::new();
        self.rollout.step(self.now, input, &mut out);
        self.todo.extend(out);
    }

    fn settle(&mut self) {
        let mut out = Vec::new();
        settle(&mut self.rollout, self.now, &self.complete, &mut out);
        for output in &out {
            if let Output::Flip { from, to } = output {
                assert!(
                    self.complete.contains(&to.generation),
                    "flips to what someone lacks"
                );
                let named = self.webhook.map(|g| mk_revision("p", g));
                assert_eq!(*from, named, "flips from what the webhook does not name");
                assert!(!self.deleted, "flips a deleted policy");
            }
        }
        self.todo.extend(out);
        let next = self.rollout.deadline();
        assert!(next.is_none_or(|at| at > self.now), "waits for the past");
    }

    fn perform(&mut self, fails: bool) {
        match self.todo.pop_front() {
            Some(Output::Flip { .. }) if fails => self.feed(Input::FlipFailed),
            Some(Output::Flip { to, .. }) => {
                assert!(self.webhook < Some(to.generation), "goes back");
                self.flipped_away.extend(self.webhook);
                self.webhook = Some(to.generation);
                self.feed(Input::Flipped(to.revision.clone()));
            }
            Some(Output::Retire(revision)) => {
                let named = self.webhook.map(|g| mk_revision("p", g));
                assert_ne!(
                    Some(&revision),
                    named.as_ref(),
                    "retires what the webhook names"
                );
                self.stored.retain(|g| mk_revision("p", *g) != revision);
                self.feed(Input::Retired(revision));
            }
            Some(Output::RemoveWebhook) => {
                self.routed = false;
                self.webhook = None;
                self.feed(Input::WebhookRemoved);
            }
            Some(Output::Release) => {
                assert!(self.deleted && !self.routed, "released with its webhook");
                self.released = true;
            }
            Some(Output::Enforced(_)) | None => {}
        }
    }

    fn restart(&mut self) {
        if self.released {
            return;
        }
        let before = self.version();
        self.rollout = self.restored();
        self.todo.clear();
        if self.routed && !self.rollout.is_gone() && !self.deleted {
            assert_eq!(self.version(), before, "a restart makes another version");
        }
        if let Some(generation) = self.refused.get(&self.generation).copied() {
            let refusal = refusal();
            self.feed(Input::Refused {
                generation,
                refusal,
            });
        }
        if self.deleted {
            self.feed(Input::Deleted);
        }
    }

    /// What a new process reads: the webhook decides, phases follow.
    fn restored(&self) -> Rollout {
        let stored = self.stored.iter().copied();
        let drains =
            |g: &i64| self.flipped_away.contains(g) || (!self.routed && self.webhook.is_none());
        let (draining, candidates): (Vec<i64>, Vec<i64>) = stored
            .filter(|g| Some(*g) != self.webhook)
            .partition(drains);
        let policies = |all: Vec<i64>| all.into_iter().map(|g| mk_policy("p", g)).collect();
        let stored = StoredRevisions {
            active: self.webhook.map(|g| mk_policy("p", g)),
            candidates: policies(candidates),
            draining: policies(draining),
            ..StoredRevisions::default()
        };
        Rollout::new(mk_id("p"), self.now, self.generation, TIMING).restore(self.now, stored)
    }

    fn version(&self) -> crate::Version {
        let policies = self.rollout.entries().map(|(p, _)| p.clone());
        Snapshot::new(policies, self.rollout.routes().map(Arc::new)).version()
    }

    /// What must be true after every step.
    fn check(&self) {
        let held: Vec<i64> = self.rollout.entries().map(|(p, _)| p.generation).collect();
        let distinct: BTreeSet<i64> = held.iter().copied().collect();
        assert_eq!(distinct.len(), held.len(), "a revision twice: {held:?}");
        if self.rollout.is_gone() {
            assert!(held.is_empty());
            return;
        }
        match self.deleted {
            // Candidates of a deleted policy leave before they are removed from the store.
            true => assert!(distinct.is_subset(&self.stored), "{distinct:?}"),
            false => assert_eq!(distinct, self.stored, "the snapshot is what is stored"),
        }
        if let Some(named) = self.webhook {
            assert!(
                distinct.contains(&named),
                "the webhook names what nobody holds"
            );
        }
        let asked = self.rollout.retired.iter().filter(|r| r.requested).count();
        let active = usize::from(self.rollout.active.is_some());
        let held_back = usize::from(self.rollout.flipping.is_some());
        let bound = MAX_DRAINING + active + 1 + asked + held_back;
        assert!(self.deleted || held.len() <= bound, "{held:?}");
    }

    /// Everything answers and works from here on.
    fn heal(&mut self) {
        for _ in 0..40 {
            self.vet();
            self.complete = self.stored.clone();
            self.settle();
            while !self.todo.is_empty() {
                self.perform(false);
                self.settle();
            }
            self.now = self.now + TIMING.longest_drain;
            self.settle();
            self.check();
        }
        if self.deleted {
            assert!(self.released, "a delete was lost");
            return;
        }
        let newest = self.accepted.iter().max().copied();
        assert_eq!(self.webhook, newest, "an update was lost");
        assert_eq!(
            self.stored,
            newest.into_iter().collect(),
            "something never leaves"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_the_webhook_names_what_everyone_has(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
            world.check();
        }
        world.heal();
    }
}
