#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use crate::{
    digest::Digest,
    fixtures::{mk_failure, mk_policy, mk_rejection, mk_snapshot},
    snapshot::Delta,
};

/// One line per output, so that scripts read as data.
fn show(output: &Output) -> Option<String> {
    match output {
        Output::Send(response) => {
            let body = match &response.body {
                Body::Full => "full".to_owned(),
                Body::NoChange => "no change".to_owned(),
                Body::Delta(from) => show_delta(&response.to.delta_from(from)),
                Body::Claim(delta) => format!("{} all routes", show_delta(delta)),
            };
            Some(format!("send {} {body}", response.nonce.number))
        }
        Output::Count(event) => Some(format!("count {event:?}")),
        Output::Report(_) => None,
    }
}

fn show_delta(delta: &Delta) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(
        delta
            .policies
            .iter()
            .map(|p| format!("+{}", p.revision.short())),
    );
    parts.extend(
        delta
            .removed_revisions
            .iter()
            .map(|r| format!("-{}", r.short())),
    );
    parts.join(" ")
}

struct Script {
    session: Session,
}

impl Script {
    fn open(kind: StreamKind, first: InitialRequest) -> Self {
        Self {
            session: Session::new(kind, 7, first),
        }
    }

    fn delta() -> Self {
        Self::open(StreamKind::Delta, InitialRequest::default())
    }

    /// Feeds one input and expects exactly these outputs.
    #[track_caller]
    fn step(&mut self, input: Input, expect: &[&str]) -> &mut Self {
        let mut out = Vec::new();
        self.session.step(input, &mut out);
        let seen: Vec<String> = out.iter().filter_map(show).collect();
        assert_eq!(seen, expect);
        self
    }

    #[track_caller]
    fn publish(&mut self, policies: &[(&str, i64)], expect: &[&str]) -> &mut Self {
        self.step(Input::Publish(mk_snapshot(policies)), expect)
    }

    #[track_caller]
    fn ack(&mut self, nonce: u64, expect: &[&str]) -> &mut Self {
        self.answer(nonce, |_| {}, expect)
    }

    #[track_caller]
    fn answer(&mut self, nonce: u64, with: impl FnOnce(&mut Answer), expect: &[&str]) -> &mut Self {
        let mut answer = Answer {
            nonce: format!("7-{nonce:x}"),
            ..Answer::default()
        };
        with(&mut answer);
        self.step(Input::Answer(answer), expect)
    }

    #[track_caller]
    fn acked(&mut self, policies: Option<&[(&str, i64)]>) -> &mut Self {
        let expect = policies.map(|p| mk_snapshot(p).version());
        assert_eq!(self.session.report().acked, expect);
        self
    }

    #[track_caller]
    fn applied(&mut self, policies: &[(&str, i64)], rejected: usize) -> &mut Self {
        let taken = self.session.report().applied.unwrap();
        assert_eq!(taken.snapshot.version(), mk_snapshot(policies).version());
        assert_eq!(taken.rejected.len(), rejected);
        self
    }
}

fn refuse(answer: &mut Answer) {
    answer.error = Some(mk_failure("no"));
}

#[test]
fn r2_a_first_request_gets_exactly_one_response_even_for_an_empty_set() {
    let mut script = Script::delta();
    assert!(!script.session.is_outstanding());
    script
        .publish(&[], &["send 1 full"])
        .ack(1, &["count Ack"])
        .acked(Some(&[]));
}

#[test]
fn r3_the_current_version_is_confirmed_without_resources() {
    let current = mk_snapshot(&[("a", 1)]);
    let version = current.version().to_string();
    let first = |held: &[(&str, Digest)]| InitialRequest {
        version: version.clone(),
        held: held.iter().map(|(k, d)| ((*k).to_owned(), *d)).collect(),
    };
    let a = mk_policy("a", 1);
    let exact = first(&[(a.revision.as_str(), a.content_digest)]);
    Script::open(StreamKind::Delta, exact).publish(&[("a", 1)], &["send 1 no change"]);
    // More than a map may list: the version alone speaks.
    Script::open(StreamKind::Delta, first(&[])).publish(&[("a", 1)], &["send 1 no change"]);
    // Map and version disagree: the map wins.
    let wrong = first(&[(a.revision.as_str(), Digest::of(b"else"))]);
    Script::open(StreamKind::Delta, wrong).publish(&[("a", 1)], &["send 1 +1-5f2a9c1e all routes"]);
}

#[test]
fn r3_r4_an_old_version_gets_the_difference_to_its_map() {
    let (a, b) = (mk_policy("a", 1), mk_policy("b", 3));
    let first = InitialRequest {
        version: "0".repeat(64),
        held: [&a, &b]
            .map(|p| (p.revision.to_string(), p.content_digest))
            .into(),
    };
    let mut script = Script::open(StreamKind::Delta, first);
    script.publish(
        &[("a", 1), ("c", 2)],
        &["send 1 +2-5f2a9c1e -3-5f2a9c1e all routes"],
    );
    // Not applied: the next response is complete in routes again.
    script.answer(1, refuse, &["count Nack(Unspecified)"]);
    script.publish(&[("a", 1)], &["send 2 -3-5f2a9c1e all routes"]);
    script.ack(2, &["count Ack"]);
    script.publish(&[("a", 2)], &["send 3 +2-5f2a9c1e -1-5f2a9c1e"]);
}

#[test]
fn a_refused_confirmation_is_followed_by_the_full_set() {
    let first = InitialRequest {
        version: mk_snapshot(&[("a", 1)]).version().to_string(),
        held: BTreeMap::new(),
    };
    let mut script = Script::open(StreamKind::Delta, first);
    script.publish(&[("a", 1)], &["send 1 no change"]);
    script.answer(1, refuse, &["count Nack(Unspecified)"]);
    script.publish(&[("b", 1)], &["send 2 full"]);
    // Going back to what it named is no confirmation either: it does not hold that.
    script.answer(2, refuse, &["count Nack(Unspecified)"]);
    script.publish(&[("a", 1)], &["send 3 full"]);
}

#[test]
fn r7_an_error_is_a_nack_even_with_the_newest_version() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    let version = mk_snapshot(&[("a", 1)]).version().to_string();
    script.answer(
        1,
        |answer| {
            answer.version = version;
            refuse(answer);
        },
        &["count Nack(Unspecified)"],
    );
    script.acked(None);
}

#[test]
fn r8_a_superseded_nonce_moves_nothing() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.publish(&[("a", 2)], &["send 2 +2-5f2a9c1e -1-5f2a9c1e"]);
    script.answer(1, refuse, &["count StaleNonce"]);
    script.ack(2, &["count Ack"]).ack(1, &["count StaleNonce"]);
    script.acked(Some(&[("a", 2)]));
}

#[test]
fn r8_r17_the_last_answer_to_the_newest_nonce_wins() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.publish(&[("a", 2)], &["send 2 +2-5f2a9c1e -1-5f2a9c1e"]);
    script.ack(2, &["count Ack"]).acked(Some(&[("a", 2)]));
    let late = |answer: &mut Answer| answer.rejected = vec![mk_rejection("a", 2)];
    script.answer(2, late, &["count Nack(Settings)"]);
    script.acked(Some(&[("a", 1)])).applied(&[("a", 2)], 1);
    script.ack(2, &["count Ack"]).acked(Some(&[("a", 2)]));
}

#[test]
fn r10_unknown_nonces_are_counted_and_change_nothing() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    for nonce in ["8-1", "7-2", "7-0", "7-01", "garbage", "-", "7-+1"] {
        let with = |answer: &mut Answer| answer.nonce = nonce.to_owned();
        script.answer(0, with, &["count UnknownNonce"]);
    }
    assert_eq!(script.session.report().protocol_errors, 7);
    assert!(script.session.is_outstanding());
}

#[test]
fn an_ack_that_names_another_version_stays_outstanding() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    for version in ["f".repeat(64), "garbage".into()] {
        script.answer(
            1,
            |answer| answer.version = version,
            &["count WrongVersion"],
        );
    }
    assert!(script.session.is_outstanding());
    script.ack(1, &["count Ack"]);
}

#[test]
fn r11_a_duplicate_ack_is_idempotent() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.ack(1, &[]).ack(1, &[]);
}

#[test]
fn r12_a_refused_version_is_not_sent_again() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .answer(1, refuse, &["count Nack(Unspecified)"]);
    script.publish(&[("a", 1)], &[]).answer(1, refuse, &[]);
}

#[test]
fn r13_after_a_named_nack_the_next_delta_is_against_the_refused_version() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.publish(&[("a", 1), ("b", 1)], &["send 2 +1-5f2a9c1e"]);
    let named = |answer: &mut Answer| answer.rejected = vec![mk_rejection("b", 1)];
    script.answer(2, named, &["count Nack(Settings)"]);
    script
        .applied(&[("a", 1), ("b", 1)], 1)
        .acked(Some(&[("a", 1)]));
    // The refused revision is still wanted, and is not sent again.
    script.publish(&[("a", 1), ("b", 1), ("c", 4)], &["send 3 +4-5f2a9c1e"]);
}

#[test]
fn r13_after_a_nack_without_names_the_next_delta_is_against_the_set_before() {
    let strange = |answer: &mut Answer| answer.rejected = vec![mk_rejection("stranger", 1)];
    let truncated = |answer: &mut Answer| {
        answer.rejected = vec![mk_rejection("b", 1)];
        answer.truncated = true;
    };
    let flood = |answer: &mut Answer| answer.rejected = vec![mk_rejection("b", 1); 65];
    let cases: [&dyn Fn(&mut Answer); 4] = [&refuse, &strange, &truncated, &flood];
    for case in cases {
        let mut script = Script::delta();
        script
            .publish(&[("a", 1)], &["send 1 full"])
            .ack(1, &["count Ack"]);
        script.publish(&[("a", 1), ("b", 1)], &["send 2 +1-5f2a9c1e"]);
        script.answer(2, |answer| case(answer), &["count Nack(Unspecified)"]);
        script.applied(&[("a", 1)], 0);
        script.publish(
            &[("a", 1), ("b", 1), ("c", 4)],
            &["send 3 +1-5f2a9c1e +4-5f2a9c1e"],
        );
    }
}

#[test]
fn r15_going_back_to_what_the_client_has_is_a_confirmation() {
    let mut script = Script::delta();
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.publish(&[("a", 2)], &["send 2 +2-5f2a9c1e -1-5f2a9c1e"]);
    script.answer(2, refuse, &["count Nack(Unspecified)"]);
    script
        .publish(&[("a", 1)], &["send 3 no change"])
        .ack(3, &["count Ack"]);
    script.acked(Some(&[("a", 1)]));
}

#[test]
fn r19_one_response_is_outstanding_and_changes_collapse() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    for generation in 2..50 {
        script.publish(&[("a", generation)], &[]);
    }
    script.ack(1, &["count Ack", "send 2 +49-5f2a9c1e -1-5f2a9c1e"]);
}

#[test]
fn r22_reverted_change_that_was_not_sent_sends_nothing() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    script.publish(&[("a", 2)], &[]).publish(&[("a", 1)], &[]);
    script.ack(1, &["count Ack"]);
}

#[test]
fn state_of_the_world_always_sends_the_full_set() {
    let mut script = Script::open(StreamKind::StateOfTheWorld, InitialRequest::default());
    script
        .publish(&[("a", 1)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script
        .publish(&[("a", 2)], &["send 2 full"])
        .answer(2, refuse, &["count Nack(Unspecified)"]);
    script.publish(&[("a", 1)], &["send 3 full"]);
}

#[test]
fn state_of_the_world_stream_sends_nothing_to_a_current_client() {
    let first = InitialRequest {
        version: mk_snapshot(&[("a", 1)]).version().to_string(),
        held: BTreeMap::new(),
    };
    let mut script = Script::open(StreamKind::StateOfTheWorld, first);
    script
        .publish(&[("a", 1)], &[])
        .acked(Some(&[("a", 1)]))
        .applied(&[("a", 1)], 0);
    script
        .publish(&[("a", 2)], &["send 1 full"])
        .ack(1, &["count Ack"]);
    script.acked(Some(&[("a", 2)]));
}

#[test]
fn messages_without_a_nonce_are_nothing_to_do() {
    let mut script = Script::delta();
    script.publish(&[("a", 1)], &["send 1 full"]);
    let empty = |answer: &mut Answer| answer.nonce.clear();
    script.answer(0, empty, &[]);
    script.answer(
        0,
        |answer| {
            answer.nonce.clear();
            refuse(answer);
        },
        &[],
    );
    assert!(script.session.is_outstanding());
}
