#![allow(clippy::unwrap_used)]
use assent_core::RouteState::{Active, Candidate};

use super::*;
use crate::announced::tests::{mk_full, mk_policy, mk_set};

mod failures;

/// A state machine, and its outputs that were not checked yet.
struct Script {
    machine: Machine,
    out: Vec<Output>,
}

impl Script {
    fn new() -> Self {
        Self {
            machine: Machine::new(Crashed::default(), 0),
            out: Vec::new(),
        }
    }

    /// With an open stream on which `set` was taken whole, under nonce "n0".
    #[track_caller]
    fn holding(set: &Announced) -> Self {
        let mut script = Self::new();
        script.connect();
        script.receive("n0", mk_full(set));
        if !set.offers().is_empty() {
            script.prepare_all();
        }
        script.swapped();
        script.acked("n0", set);
        script
    }

    fn step(&mut self, input: Input) {
        self.machine.step(input, &mut self.out);
    }

    #[track_caller]
    fn connect(&mut self) -> Hello {
        self.step(Input::Connected);
        match self.next() {
            Output::Open(hello) => hello,
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, nonce: &str, update: Update) {
        self.receive_from(nonce, update, None);
    }

    fn receive_from(&mut self, nonce: &str, update: Update, lease_transitions: Option<u64>) {
        self.step(Input::Received(Part {
            nonce: nonce.into(),
            lease_transitions,
            update,
            ..Part::default()
        }));
    }

    #[track_caller]
    fn prepare_all(&mut self) {
        self.prepare(&[]);
    }

    /// All requested revisions load, except those in `bad`.
    #[track_caller]
    fn prepare(&mut self, bad: &[(&Arc<Policy>, Failure)]) {
        let Output::Prepare(policies) = self.next() else {
            panic!("nothing to prepare");
        };
        let results = policies.iter().map(|policy| {
            let failure = bad.iter().find(|(p, _)| p.revision == policy.revision);
            (
                policy.revision.clone(),
                failure.map_or(Ok(()), |(_, f)| Err(f.clone())),
            )
        });
        let results = results.collect();
        self.step(Input::Prepared {
            results,
            timing: Timing::default(),
        });
    }

    #[track_caller]
    fn next(&mut self) -> Output {
        assert!(!self.out.is_empty(), "it said nothing");
        self.out.remove(0)
    }

    #[track_caller]
    fn swapped(&mut self) -> Swap {
        match self.next() {
            Output::Swap(swap) => *swap,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn answered(&mut self, nonce: &str) -> Answer {
        match self.next() {
            Output::Answer(answer) => {
                assert_eq!(answer.nonce, nonce);
                answer
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn acked(&mut self, nonce: &str, set: &Announced) {
        let answer = self.answered(nonce);
        assert_eq!((answer.error, answer.version), (None, Some(set.version())));
        assert!(answer.rejected.is_empty() && !answer.truncated);
        self.quiet();
    }

    #[track_caller]
    fn nacked(&mut self, nonce: &str, rejected: &[&Arc<Policy>]) -> Answer {
        let answer = self.answered(nonce);
        assert!(answer.error.is_some());
        let names: Vec<_> = answer.rejected.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(
            names,
            rejected
                .iter()
                .map(|p| p.revision.clone())
                .collect::<Vec<_>>()
        );
        answer
    }

    #[track_caller]
    fn quiet(&mut self) {
        assert_eq!(self.out, [], "it said more");
    }
}

fn bad() -> Failure {
    Failure::permanent(Stage::Compile, "not wasm")
}

fn away() -> Failure {
    Failure::transient(Stage::Fetch, "unavailable")
}

fn confirm(set: &Announced) -> Update {
    Update {
        version: set.version().to_string(),
        no_change: true,
        ..Update::default()
    }
}

/// The response that leads from one set to the next.
fn delta(from: &Announced, to: &Announced) -> Update {
    let gone = |id: &&RevisionId| !to.offers().contains_key(*id);
    let new = |offer: &&Arc<Offer>| from.offers().get(&offer.revision) != Some(*offer);
    let changed = |route: &&Arc<assent_core::Route>| from.routes().get(&route.path) != Some(*route);
    let left = |path: &&Arc<str>| !to.routes().contains_key(*path);
    Update {
        version: to.version().to_string(),
        offers: to.offers().values().filter(new).cloned().collect(),
        removed_revisions: from.offers().keys().filter(gone).cloned().collect(),
        routes: to.routes().values().filter(changed).cloned().collect(),
        removed_routes: from.routes().keys().filter(left).cloned().collect(),
        no_change: false,
    }
}

#[test]
fn an_ack_means_swapped_in() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    assert_eq!(script.connect(), Hello::default());
    script.receive("n", mk_full(&set));
    assert!(!script.machine.reads(), "one response at a time");
    script.prepare_all();
    let swap = script.swapped();
    assert!(swap.confirmed && swap.whole && swap.table.active_complete);
    script.acked("n", &set);
    assert!(script.machine.reads() && script.machine.has_applied());
}

#[test]
fn an_empty_set_is_an_answer() {
    let set = Announced::default();
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    assert!(script.swapped().table.active_complete);
    script.acked("n", &set);
}

#[test]
fn adding_and_removing_is_one_swap() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let (one, two) = (mk_set(&[(&a, Active)]), mk_set(&[(&b, Active)]));
    let mut script = Script::holding(&one);
    script.receive("n1", delta(&one, &two));
    script.prepare_all();
    let swap = script.swapped();
    assert_eq!(swap.table.retained, [b.revision.clone()].into());
    script.acked("n1", &two);
}

#[test]
fn a_wrong_version_takes_nothing() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let (one, two) = (
        mk_set(&[(&a, Active)]),
        mk_set(&[(&a, Active), (&b, Active)]),
    );
    let mut script = Script::holding(&one);
    let mut wrong = delta(&one, &two);
    wrong.version = one.version().to_string();
    script.receive("n1", wrong);
    let answer = script.nacked("n1", &[]);
    assert_eq!(answer.version, Some(one.version()));
    assert_eq!(script.next(), Output::ResyncLater);
    script.quiet();
    // The announced set is still the one before: the next delta is against it.
    script.receive("n2", delta(&one, &two));
    script.prepare_all();
    script.swapped();
    script.acked("n2", &two);
    assert!(!script.machine.has_rejected());
}

#[test]
fn duplicates_take_nothing() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    script.connect();
    let mut twice = mk_full(&set);
    twice.offers.push(Offer::known(&a));
    script.receive("n", twice);
    assert!(script.nacked("n", &[]).error.unwrap().contains("twice"));
    assert_eq!(script.next(), Output::ResyncLater);
    script.quiet();
}

#[test]
fn after_a_refusal_of_everything_the_next_stream_claims_what_is_loaded() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::holding(&set);
    script.step(Input::Unreadable {
        nonce: "n1".into(),
        why: "garbage".into(),
    });
    script.nacked("n1", &[]);
    assert_eq!(script.next(), Output::ResyncLater);
    script.step(Input::Disconnected);
    let hello = script.connect();
    assert_eq!(
        (hello.version, hello.revisions.len()),
        (Some(set.version()), 1)
    );
    assert!(script.machine.has_rejected());
    // The content is held: nothing is prepared again.
    script.receive("m0", mk_full(&set));
    assert!(script.swapped().whole);
    script.acked("m0", &set);
    script.step(Input::Disconnected);
    assert_eq!(script.connect().version, Some(set.version()));
}

#[test]
fn one_bad_policy_does_not_hold_back_the_others() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    script.prepare(&[(&a, bad())]);
    let swap = script.swapped();
    assert_eq!(swap.table.retained, [b.revision.clone()].into());
    assert!(!swap.table.active_complete && !swap.whole);
    let answer = script.nacked("n", &[&a]);
    assert_eq!((answer.version, answer.truncated), (None, false));
    script.quiet();
}

#[test]
fn every_answer_lists_what_was_refused_earlier() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let one = mk_set(&[(&a, Active)]);
    let two = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&one));
    script.prepare(&[(&a, bad())]);
    script.swapped();
    script.nacked("n", &[&a]);
    // The refused revision is not sent again on this stream; the set is announced with it.
    script.receive("n1", delta(&one, &two));
    script.prepare_all();
    script.swapped();
    script.nacked("n1", &[&a]);
    script.quiet();
    // A confirmation is answered with it too.
    script.receive("n2", confirm(&two));
    script.swapped();
    script.nacked("n2", &[&a]);
}

#[test]
fn a_reconnect_claims_what_is_loaded_and_never_what_was_refused() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    script.prepare(&[(&a, bad())]);
    script.swapped();
    script.nacked("n", &[&a]);
    script.step(Input::Disconnected);
    let hello = script.connect();
    assert_eq!(hello.version, None);
    assert_eq!(
        hello.revisions,
        [(b.revision.clone(), b.content_digest)].into()
    );
    // It is offered once more, as a difference to the claim, with all routes.
    let offer = Update {
        offers: vec![Offer::known(&a)],
        ..mk_full(&set)
    };
    script.receive("m", offer);
    script.prepare_all();
    script.swapped();
    script.acked("m", &set);
}

#[test]
fn a_current_client_is_confirmed_without_resources() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::holding(&set);
    script.step(Input::Disconnected);
    let hello = script.connect();
    assert_eq!(hello.version, Some(set.version()));
    assert_eq!(
        hello.revisions,
        [(a.revision.clone(), a.content_digest)].into()
    );
    script.receive("m", confirm(&set));
    assert!(script.swapped().confirmed);
    script.acked("m", &set);
}

#[test]
fn the_last_good_revision_is_claimed_and_goes_when_told() {
    let (one, two) = (mk_policy("a", 1, "x"), mk_policy("a", 2, "y"));
    let (before, after) = (mk_set(&[(&one, Active)]), mk_set(&[(&two, Active)]));
    let mut script = Script::holding(&before);
    script.receive("n1", delta(&before, &after));
    script.prepare(&[(&two, bad())]);
    let swap = script.swapped();
    assert_eq!(swap.table.retained, [one.revision.clone()].into());
    assert!(swap.routes.contains_key(one.revision.as_str()));
    // The saved routes name the revisions that answer: a restart does not know the rejected one.
    let kept = &swap.routes[two.revision.as_str()];
    assert_eq!(kept.revisions, std::slice::from_ref(&one.revision));
    assert_eq!(script.nacked("n1", &[&two]).version, Some(before.version()));
    script.step(Input::Disconnected);
    let hello = script.connect();
    assert_eq!((hello.version, hello.revisions.len()), (None, 1));
    let offer = Update {
        removed_revisions: vec![one.revision.clone()],
        ..mk_full(&after)
    };
    script.receive("m", offer);
    script.prepare_all();
    assert_eq!(
        script.swapped().table.retained,
        [two.revision.clone()].into()
    );
    script.acked("m", &after);
}

#[test]
fn a_lower_term_is_refused_and_the_client_leaves() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive_from("n", mk_full(&set), Some(5));
    script.prepare_all();
    script.swapped();
    script.acked("n", &set);
    script.receive_from("n1", mk_full(&Announced::default()), Some(4));
    script.nacked("n1", &[]);
    assert_eq!(script.next(), Output::Reconnect);
    script.quiet();
    script.step(Input::Disconnected);
    // What it holds did not change.
    assert_eq!(script.connect().version, Some(set.version()));
    script.receive_from("m", confirm(&set), Some(5));
    script.swapped();
    script.acked("m", &set);
}

#[test]
fn a_lower_term_is_refused_after_a_restart_too() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive_from("n", mk_full(&set), Some(5));
    script.prepare_all();
    let term = script.swapped().lease_transitions;
    let mut script = Script {
        machine: Machine::new(Crashed::default(), term),
        out: Vec::new(),
    };
    script.connect();
    script.receive_from("n", mk_full(&set), Some(4));
    script.nacked("n", &[]);
    assert_eq!(script.next(), Output::Reconnect);
    script.quiet();
}
