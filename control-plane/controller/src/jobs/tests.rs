#![allow(clippy::unwrap_used)]

use assent_core::PolicyKey;

use super::*;

fn mk_id(name: &str) -> PolicyId {
    PolicyId {
        key: PolicyKey::cluster(name),
        uid: "uid".into(),
    }
}

fn failure(reason: RefusalReason, retryable: bool) -> Failure {
    Failure {
        refusal: Refusal {
            reason,
            message: "no".into(),
        },
        retryable,
    }
}

/// Lets the retry that is due next begin; returns when it was due.
fn retry(jobs: &mut Jobs, id: &PolicyId, generation: i64) -> Millis {
    let at = jobs.next_retry().unwrap();
    assert_eq!(jobs.take_due(at), std::slice::from_ref(id));
    jobs.begin(id.clone(), generation);
    jobs.ended(id, generation);
    at
}

#[test]
fn failed_pull_is_retried_after_growing_delays() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    let mut now = Millis(0);
    let mut delays = Vec::new();
    for _ in 0..10 {
        let refusal = jobs.rejected(now, &id, 1, failure(RefusalReason::PullError, true));
        assert_eq!(refusal.message, "no; retrying");
        let at = retry(&mut jobs, &id, 1);
        delays.push((at.0 - now.0) / 1_000);
        now = at;
    }
    assert_eq!(delays, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
}

#[test]
fn pull_that_failed_for_good_is_not_retried() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    let refusal = jobs.rejected(Millis(0), &id, 1, failure(RefusalReason::PullError, false));
    assert_eq!(refusal.message, "no");
    assert_eq!(jobs.next_retry(), None);
}

#[test]
fn missing_signature_is_always_retried() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    for _ in 0..5 {
        let unsigned = failure(RefusalReason::SignatureRejected, false);
        jobs.rejected(Millis(0), &id, 1, unsigned);
        retry(&mut jobs, &id, 1);
    }
}

#[test]
fn crash_is_retried_once_for_each_generation() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    for generation in 1..=2 {
        let crashed = || failure(RefusalReason::Invalid, true);
        jobs.rejected(Millis(0), &id, generation, crashed());
        retry(&mut jobs, &id, generation);
        let refusal = jobs.rejected(Millis(0), &id, generation, crashed());
        assert_eq!(refusal.message, "no");
        assert_eq!(jobs.next_retry(), None);
    }
}

#[test]
fn new_generation_starts_with_the_shortest_delay() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    for generation in [1, 1, 2] {
        let failed = failure(RefusalReason::PullError, true);
        jobs.rejected(Millis(0), &id, generation, failed);
    }
    assert_eq!(jobs.next_retry(), Some(Millis(2_000)));
}

#[test]
fn due_retries_are_returned_once() {
    let mut jobs = Jobs::default();
    for name in ["a", "b"] {
        let failed = failure(RefusalReason::PullError, true);
        jobs.rejected(Millis(0), &mk_id(name), 1, failed);
    }
    assert!(jobs.take_due(Millis(1_999)).is_empty());
    assert_eq!(jobs.take_due(Millis(2_000)), [mk_id("a"), mk_id("b")]);
    assert!(jobs.take_due(Millis(9_000)).is_empty());
    assert_eq!(jobs.next_retry(), None);
}

#[test]
fn job_that_begins_early_takes_the_place_of_its_retry() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    jobs.rejected(Millis(0), &id, 1, failure(RefusalReason::PullError, true));
    jobs.begin(id.clone(), 1);
    assert_eq!(jobs.next_retry(), None);
    jobs.ended(&id, 1);
    // The delay grows all the same.
    jobs.rejected(Millis(0), &id, 1, failure(RefusalReason::PullError, true));
    assert_eq!(jobs.next_retry(), Some(Millis(4_000)));
}

#[test]
fn end_of_an_older_job_keeps_the_newer_one() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    jobs.begin(id.clone(), 1);
    jobs.begin(id.clone(), 2);
    jobs.ended(&id, 1);
    assert!(jobs.is_running(&id, 2));
    jobs.ended(&id, 2);
    assert!(!jobs.is_running(&id, 2));
}

#[test]
fn cancelled_policy_has_no_job_and_no_retry() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    jobs.rejected(Millis(0), &id, 1, failure(RefusalReason::PullError, true));
    assert!(!jobs.cancel(&id));
    assert_eq!(jobs.next_retry(), None);
    jobs.begin(id.clone(), 2);
    assert!(jobs.cancel(&id));
    assert!(!jobs.is_running(&id, 2));
}

#[test]
fn accepted_generation_forgets_its_retry() {
    let (mut jobs, id) = (Jobs::default(), mk_id("a"));
    jobs.rejected(Millis(0), &id, 1, failure(RefusalReason::PullError, true));
    jobs.accepted(&id);
    assert_eq!(jobs.next_retry(), None);
}
