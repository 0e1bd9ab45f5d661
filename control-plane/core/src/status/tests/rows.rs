//! Rows, and since when things are what they are.

use super::*;
use crate::session::Rejection;

#[test]
fn every_stage_has_its_reason() {
    let reasons = Stage::ALL.map(|stage| {
        let bad = Rejection {
            stage,
            ..mk_rejection("p", 1)
        };
        let report = mk_applied(&mk_set(&[1]), &[bad]);
        let status = Case::new(1, None, Some(1))
            .replica("x", Some(report))
            .status();
        status.replicas[0].ready.reason.as_str()
    });
    expect![[r#"
        Rejected FetchFailed VerificationFailed CompileFailed LinkFailed InstantiationFailed SettingsRejected SelfTestFailed SwapFailed RuntimeFailed ContextNotSynced"#]]
    .assert_eq(&reasons.join(" "));
}

#[test]
fn rows_are_bounded_and_those_not_ready_come_first() {
    let mut case = Case::new(1, None, Some(1));
    for n in 0..20 {
        case = case.serves(&format!("ready-{n:02}"), &[1]);
    }
    for n in 0..3 {
        case = case.joins(&format!("waiting-{n}"));
    }
    case = case.rejects("zzz", &[1], 1);
    let status = case.status();
    let names: Vec<&str> = status.replicas.iter().map(|r| &*r.name).collect();
    assert_eq!(names.len(), MAX_ROWS);
    assert_eq!(
        names[..5],
        ["zzz", "waiting-0", "waiting-1", "waiting-2", "ready-00"]
    );
    assert_eq!((status.fold.wanted, status.replicas_omitted), (24, 8));
    let fewer = Case::new(1, None, Some(1)).serves("x", &[1]).status();
    assert_eq!((fewer.replicas.len(), fewer.replicas_omitted), (1, 0));
}

#[test]
fn transitions_change_with_the_status_only() {
    let mut transitions = Transitions::default();
    let say = |status, reason| Condition::new(ConditionType::Enforced, status, reason, "");
    assert_eq!(
        transitions.note(10, &say(ConditionStatus::False, Reason::NotProgrammed)),
        10
    );
    assert_eq!(
        transitions.note(20, &say(ConditionStatus::False, Reason::WebhookPending)),
        10
    );
    assert_eq!(
        transitions.note(30, &say(ConditionStatus::True, Reason::Enforced)),
        30
    );
    assert_eq!(
        transitions.note(40, &say(ConditionStatus::True, Reason::Enforced)),
        30
    );
    transitions.restore(ConditionType::Enforced, ConditionStatus::True, 5);
    assert_eq!(
        transitions.note(50, &say(ConditionStatus::True, Reason::Enforced)),
        5
    );
    assert_eq!(
        transitions.note(60, &say(ConditionStatus::Unknown, Reason::Pending)),
        60
    );
}
