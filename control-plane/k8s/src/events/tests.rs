#![allow(clippy::unwrap_used)]

use assent_controller::Meta;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::testing::scripted;

fn mk_event(what: EventKind) -> PolicyEvent {
    PolicyEvent {
        key: PolicyKey::cluster("a"),
        meta: Meta {
            name: "a".into(),
            uid: "u-1".into(),
            ..Meta::default()
        },
        what,
    }
}

fn mk_condition(type_: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: "because".into(),
        observed_generation: Some(3),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

#[track_caller]
fn check(type_: &str, status: &str, reason: &str, expect: Option<EventType>) {
    let (recorder, mut log) = EventRecorder::new();
    let condition = mk_condition(type_, status, reason);
    recorder.record(&mk_event(EventKind::Condition(condition)));
    let event = log.try_next().map(|(_, event)| event.type_);
    assert_eq!(
        format!("{event:?}"),
        format!("{expect:?}"),
        "{type_} {status} {reason}"
    );
    assert!(log.try_next().is_none());
}

#[test]
fn recorder_reports_what_users_act_on() {
    check("Accepted", "True", "Accepted", Some(EventType::Normal));
    check("Accepted", "False", "Invalid", Some(EventType::Warning));
    check("Accepted", "Unknown", "Pending", None);
    check("Enforced", "True", "Enforced", Some(EventType::Normal));
    check("Enforced", "False", "Pending", None);
    let partial = Some(EventType::Warning);
    check("Enforced", "False", "PartiallyEnforced", partial);
}

#[test]
fn recorder_drops_events_beyond_its_bound() {
    let (recorder, mut log) = EventRecorder::new();
    for from in 0..=MAX_PENDING {
        recorder.record(&mk_event(EventKind::RolledBack {
            from: i64::try_from(from).unwrap(),
            generation: 9,
        }));
    }
    let recorded = std::iter::from_fn(|| log.try_next()).count();
    assert_eq!(recorded, MAX_PENDING);
}

#[tokio::test]
async fn log_writes_events_about_the_policy() {
    let (recorder, log) = EventRecorder::new();
    let why = "x".repeat(2 * MAX_NOTE);
    recorder.record(&mk_event(EventKind::RollbackRejected(why)));
    drop(recorder);
    let (client, requests) = scripted(|_| (201, json!({ "metadata": { "name": "e" } })));
    log.write(client, "pod-0".into()).await;
    let [request] = requests.take_all().try_into().unwrap();
    assert_eq!(
        request.line,
        "POST /apis/events.k8s.io/v1/namespaces/default/events"
    );
    let event = &request.body;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "RollbackRefused");
    assert_eq!(event["regarding"]["kind"], "ClusterAdmissionPolicy");
    assert_eq!(event["regarding"]["uid"], "u-1");
    assert_eq!(event["note"].as_str().unwrap().len(), MAX_NOTE);
}
