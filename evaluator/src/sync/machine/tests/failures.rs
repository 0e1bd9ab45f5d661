use super::*;
use crate::sync::machine::failures::RETRIES;

#[test]
fn a_transient_failure_is_retried_and_answers_the_same_nonce() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    script.prepare(&[(&a, away())]);
    script.swapped();
    assert!(script.nacked("n", &[&a]).rejected[0].1.retryable);
    assert_eq!(script.next(), Output::RetryLater { attempt: 0 });
    script.step(Input::RetryDue);
    assert!(script.machine.reads(), "news come before a retry");
    script.prepare(&[(&a, away())]);
    // Nothing changed: no answer.
    assert_eq!(script.next(), Output::RetryLater { attempt: 1 });
    script.step(Input::RetryDue);
    script.prepare_all();
    script.swapped();
    script.acked("n", &set);
}

#[test]
fn a_retry_that_fails_otherwise_is_answered() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    script.prepare(&[(&a, away())]);
    script.swapped();
    script.nacked("n", &[&a]);
    script.next();
    script.step(Input::RetryDue);
    script.prepare(&[(&a, bad())]);
    script.swapped();
    let answer = script.nacked("n", &[&a]);
    assert_eq!(answer.rejected[0].1, bad());
    script.quiet();
}

#[test]
fn retries_end() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&set));
    script.prepare(&[(&a, away())]);
    script.swapped();
    script.nacked("n", &[&a]);
    for attempt in 0..RETRIES {
        assert_eq!(script.next(), Output::RetryLater { attempt });
        script.step(Input::RetryDue);
        script.prepare(&[(&a, away())]);
    }
    script.quiet();
}

#[test]
fn news_end_a_retry_and_keep_listing_it() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let (one, two) = (
        mk_set(&[(&a, Active)]),
        mk_set(&[(&a, Active), (&b, Active)]),
    );
    let mut script = Script::new();
    script.connect();
    script.receive("n", mk_full(&one));
    script.prepare(&[(&a, away())]);
    script.swapped();
    script.nacked("n", &[&a]);
    script.next();
    script.step(Input::RetryDue);
    script.next();
    script.receive("n1", delta(&one, &two));
    script.prepare_all();
    script.swapped();
    script.nacked("n1", &[&a]);
    // And goes on trying, for the new nonce.
    assert_eq!(script.next(), Output::RetryLater { attempt: 0 });
    script.step(Input::RetryDue);
    script.prepare_all();
    script.swapped();
    script.acked("n1", &two);
}

#[test]
fn more_refusals_than_fit_take_nothing() {
    let many: Vec<_> = (0..=REJECTIONS)
        .map(|i| mk_policy(&format!("p{i:03}"), 1, &i.to_string()))
        .collect();
    let good = mk_policy("good", 1, "x");
    let before = mk_set(&[(&good, Active)]);
    let mut all: Vec<_> = many.iter().map(|p| (p, Active)).collect();
    all.push((&good, Active));
    let after = mk_set(&all);
    let mut script = Script::holding(&before);
    script.receive("n1", delta(&before, &after));
    let failures: Vec<_> = many.iter().map(|p| (p, away())).collect();
    script.prepare(&failures);
    let answer = script.answered("n1");
    assert!(answer.truncated && answer.rejected.len() == REJECTIONS);
    assert_eq!(answer.version, Some(before.version()));
    assert_eq!(script.next(), Output::RetryLater { attempt: 0 });
    // One of them loads: now it fits, and the set is taken.
    script.step(Input::RetryDue);
    script.prepare(&failures[1..]);
    script.swapped();
    let answer = script.answered("n1");
    assert!(!answer.truncated && answer.rejected.len() == REJECTIONS);
    script.next();
    script.quiet();
    script.step(Input::Disconnected);
    assert_eq!(script.connect().revisions.len(), 2);
}

#[test]
fn after_a_truncated_answer_deltas_are_against_the_set_before() {
    let many: Vec<_> = (0..=REJECTIONS)
        .map(|i| mk_policy(&format!("p{i:03}"), 1, &i.to_string()))
        .collect();
    let good = mk_policy("good", 1, "x");
    let before = mk_set(&[(&good, Active)]);
    let mut all: Vec<_> = many.iter().map(|p| (p, Active)).collect();
    all.push((&good, Active));
    let after = mk_set(&all);
    let next = mk_set(&[(&good, Candidate)]);
    let mut script = Script::holding(&before);
    script.receive("n1", delta(&before, &after));
    let failures: Vec<_> = many.iter().map(|p| (p, bad())).collect();
    script.prepare(&failures);
    assert!(script.answered("n1").truncated);
    script.quiet();
    script.receive("n2", delta(&before, &next));
    script.swapped();
    script.acked("n2", &next);
}

#[test]
fn a_failure_after_the_swap_is_a_late_nack_and_a_recovery_takes_it_back() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::holding(&set);
    let failed = || Input::RuntimeFailed {
        revision: a.revision.clone(),
        why: "the policy crashed".into(),
    };
    script.step(failed());
    let answer = script.nacked("n0", &[&a]);
    assert_eq!(
        (answer.rejected[0].1.stage, answer.version),
        (Stage::Runtime, None)
    );
    script.step(failed());
    script.quiet();
    script.step(Input::RuntimeRecovered {
        revision: a.revision.clone(),
    });
    script.acked("n0", &set);
    script.step(Input::RuntimeRecovered {
        revision: b.revision.clone(),
    });
    script.quiet();
}

#[test]
fn a_revision_that_failed_at_run_time_is_offered_again_after_a_reconnect() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, Active)]);
    let mut script = Script::holding(&set);
    script.step(Input::RuntimeFailed {
        revision: a.revision.clone(),
        why: "trap".into(),
    });
    script.nacked("n0", &[&a]);
    script.step(Input::Disconnected);
    assert_eq!(script.connect(), Hello::default());
    script.receive("m", mk_full(&set));
    // Loaded with equal content, but it failed: a fresh one shows whether it does again.
    script.prepare_all();
    script.swapped();
    script.acked("m", &set);
}

#[test]
fn a_stream_that_breaks_takes_its_response_along() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let (one, two) = (mk_set(&[(&a, Active)]), mk_set(&[(&b, Active)]));
    let mut script = Script::holding(&one);
    script.receive("n1", delta(&one, &two));
    script.next();
    script.step(Input::Disconnected);
    script.step(Input::Prepared {
        results: [(b.revision.clone(), Ok(()))].into(),
        timing: Timing::default(),
    });
    script.quiet();
    assert_eq!(script.connect().version, Some(one.version()));
}

#[test]
fn a_set_from_disk_is_served_and_claimed_but_confirms_nothing() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    let restored = || Input::Restored {
        set: set.clone(),
        whole: true,
    };
    script.step(restored());
    script.prepare_all();
    let swap = script.swapped();
    assert!(!swap.confirmed && swap.whole && swap.table.active_complete);
    script.quiet();
    let hello = script.connect();
    assert_eq!(
        (hello.version, hello.revisions.len()),
        (Some(set.version()), 2)
    );

    // What does not load is not claimed, and the version is not either.
    let mut script = Script::new();
    script.step(restored());
    script.prepare(&[(&a, away())]);
    assert!(!script.swapped().table.active_complete);
    script.quiet();
    let hello = script.connect();
    assert_eq!((hello.version, hello.revisions.len()), (None, 1));
}

fn mk_crashed(policy: &Policy, failure: Failure, in_a_row: u32) -> Crashed {
    Crashed {
        failures: [(policy.content_digest, failure)].into(),
        in_a_row,
    }
}

#[test]
fn content_that_was_served_waits_and_is_tried_again_without_a_control_plane() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let crashed = Failure::transient(Stage::Compile, "went down 3 times");
    let mut script = Script {
        machine: Machine::new(mk_crashed(&a, crashed, 3), 0),
        out: Vec::new(),
    };
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    script.step(Input::Restored { set, whole: true });
    // The other policy does not wait.
    script.prepare_all();
    assert!(!script.swapped().table.active_complete);
    assert_eq!(script.next(), Output::RetryLater { attempt: 3 });
    script.step(Input::RetryDue);
    script.prepare_all();
    assert!(script.swapped().table.active_complete);
    script.quiet();
}

#[test]
fn poisoned_content_is_refused_until_it_changes() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("a", 2, "y"));
    let crashed = Failure::permanent(Stage::SelfTest, "brought the evaluator down");
    let mut script = Script {
        machine: Machine::new(mk_crashed(&a, crashed, 0), 0),
        out: Vec::new(),
    };
    let one = mk_set(&[(&a, Candidate)]);
    script.connect();
    script.receive("n", mk_full(&one));
    script.swapped();
    let answer = script.nacked("n", &[&a]);
    assert_eq!(answer.rejected[0].1.stage, Stage::SelfTest);
    let two = mk_set(&[(&b, Candidate)]);
    script.receive("n1", delta(&one, &two));
    script.prepare_all();
    script.swapped();
    script.acked("n1", &two);
}

#[test]
fn a_client_with_too_many_revisions_sends_no_map_and_accepts_either_response() {
    let policies: Vec<_> = (0..=CLAIMS)
        .map(|i| mk_policy(&format!("p{i}"), 1, "x"))
        .collect();
    let all: Vec<_> = policies.iter().map(|p| (p, Active)).collect();
    let set = mk_set(&all);
    let next = mk_set(&all[1..]);
    for full in [true, false] {
        let mut script = Script::holding(&set);
        script.step(Input::Disconnected);
        let hello = script.connect();
        assert_eq!(
            (hello.version, hello.revisions.len()),
            (Some(set.version()), 0)
        );
        let update = match full {
            true => mk_full(&next),
            false => Update {
                routes: next.routes().values().cloned().collect(),
                ..delta(&set, &next)
            },
        };
        script.receive("m", update);
        script.swapped();
        script.acked("m", &next);
    }
}

#[test]
fn parts_are_answered_once() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, Active), (&b, Active)]);
    let mut script = Script::new();
    script.connect();
    let full = mk_full(&set);
    let part = |number: u32, update: Update| {
        Input::Received(Part {
            nonce: "n".into(),
            number,
            of: 2,
            update,
            ..Part::default()
        })
    };
    let (first, second) = (
        Update {
            routes: vec![],
            offers: vec![full.offers[0].clone()],
            ..full.clone()
        },
        Update {
            offers: vec![full.offers[1].clone()],
            ..full.clone()
        },
    );
    script.step(part(1, first.clone()));
    script.quiet();
    script.step(part(2, second));
    script.prepare_all();
    script.swapped();
    script.acked("n", &set);
    // A duplicate across parts is a duplicate.
    let mut script = Script::new();
    script.connect();
    script.step(part(1, first));
    script.step(part(2, full));
    assert!(script.nacked("n", &[]).error.unwrap().contains("twice"));
}
