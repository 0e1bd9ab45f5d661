#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::testing::{failure, scripted};

fn target(name: &str) -> Target {
    Target {
        kind: Kind::ClusterPolicies,
        namespace: String::new(),
        name: name.into(),
    }
}

fn wanted(text: &str, urgent: bool) -> Wanted {
    Wanted {
        status: text.into(),
        resource_version: "1".into(),
        uid: "u".into(),
        urgent,
    }
}

fn at(millis: u64) -> Millis {
    Millis(millis)
}

/// Takes everything that may be written at `now`.
#[track_caller]
fn check(queue: &mut Queue, now: u64, expect: &[(&str, &str)]) {
    let mut got = Vec::new();
    while let Some((target, wanted)) = queue.take(at(now)) {
        got.push((
            target.name,
            wanted.status.as_str().unwrap_or_default().to_owned(),
        ));
    }
    let got: Vec<(&str, &str)> = got.iter().map(|(n, s)| (n.as_str(), s.as_str())).collect();
    assert_eq!(got, expect, "at {now} ms");
}

#[test]
fn queue_writes_at_once_then_the_latest_after_the_debounce() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true), at(0));
    check(&mut queue, 0, &[("a", "1")]);
    queue.submit(target("a"), wanted("2", true), at(10));
    queue.submit(target("a"), wanted("3", true), at(20));
    check(&mut queue, 999, &[]);
    assert_eq!(queue.due(at(999)), Some(at(1000)));
    check(&mut queue, 1000, &[("a", "3")]);
    assert_eq!(queue.due(at(1000)), None);
}

#[test]
fn queue_limits_writes_after_a_burst() {
    let mut queue = Queue::new(at(0));
    for n in 0..80 {
        queue.submit(target(&format!("{n:02}")), wanted("x", true), at(0));
    }
    let mut count = |now| std::iter::from_fn(|| queue.take(at(now))).count();
    assert_eq!(count(0), 50);
    assert_eq!(count(0), 0);
    assert_eq!(count(500), 10);
    assert_eq!(count(1500), 20);
    assert_eq!(count(10_000), 0);
}

#[test]
fn background_writes_never_delay_urgent_ones() {
    let mut queue = Queue::new(at(0));
    for n in 0..5 {
        queue.submit(target(&format!("slow-{n}")), wanted("rows", false), at(0));
    }
    queue.submit(target("urgent"), wanted("condition", true), at(0));
    check(
        &mut queue,
        0,
        &[("urgent", "condition"), ("slow-0", "rows")],
    );
    assert_eq!(queue.due(at(0)), Some(at(500)));
    check(&mut queue, 499, &[]);
    check(&mut queue, 500, &[("slow-1", "rows")]);
    check(&mut queue, 1000, &[("slow-2", "rows")]);
}

#[test]
fn urgency_is_kept_and_withdrawn_status_is_not_written() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true), at(0));
    queue.submit(target("a"), wanted("2", false), at(0));
    queue.submit(target("b"), wanted("1", true), at(0));
    queue.withdraw(&target("b"));
    let (_, got) = queue.take(at(0)).expect("one must be due");
    assert!(got.urgent);
    assert_eq!(queue.take(at(0)), None);
}

#[test]
fn failed_write_waits_before_the_next() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true), at(0));
    check(&mut queue, 0, &[("a", "1")]);
    queue.failed(&target("a"), at(10));
    queue.submit(target("a"), wanted("1", true), at(20));
    check(&mut queue, 1500, &[]);
    check(&mut queue, 2010, &[("a", "1")]);
}

/// An object whose status changes all the time must not keep others from being written.
#[test]
fn queue_serves_objects_in_turn() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true), at(0));
    queue.submit(target("z"), wanted("1", true), at(0));
    assert_eq!(queue.take(at(0)).unwrap().0, target("a"));
    queue.submit(target("a"), wanted("2", true), at(0));
    assert_eq!(queue.take(at(5_000)).unwrap().0, target("z"));
    assert_eq!(queue.take(at(5_000)).unwrap().0, target("a"));
}

#[test]
fn queue_keeps_one_entry_per_object() {
    let mut queue = Queue::new(at(0));
    for round in 0..10_u64 {
        for n in 0..1_000 {
            let urgent = round % 2 == 0;
            queue.submit(target(&format!("{n}")), wanted("x", urgent), at(round));
        }
    }
    assert_eq!(queue.pending.len(), 1_000);
    assert_eq!(queue.urgent.len() + queue.background.len(), 1_000);
    for n in 0..1_000 {
        queue.withdraw(&target(&format!("{n}")));
    }
    assert!(queue.pending.is_empty() && queue.urgent.is_empty());
    assert_eq!(queue.due(at(0)), None);
}

/// With 10,000 statuses pending the budget is used up, and not exceeded.
#[test]
fn queue_keeps_its_rate_with_many_pending() {
    let mut queue = Queue::new(at(0));
    for n in 0..10_000 {
        queue.submit(target(&format!("{n}")), wanted("x", true), at(0));
    }
    let (mut now, mut written) = (at(0), 0);
    while now <= at(10_000) {
        while queue.take(now).is_some() {
            written += 1;
        }
        let due = queue.due(now).unwrap();
        now = due.max(now + Duration::from_millis(1));
    }
    assert!((249..=250).contains(&written), "{written}");
    assert_eq!(queue.pending.len(), 10_000 - written);
}

#[tokio::test]
async fn writer_works_off_what_is_submitted_meanwhile() {
    let (client, requests) = scripted(|_| (200, json!({ "metadata": { "name": "x" } })));
    let (writer, queue) = StatusWriter::new(client);
    let (sender, mut written) = mpsc::channel(1);
    let writer = tokio::spawn(writer.run(sender));
    for n in 0..40 {
        let target = target(&format!("{n}"));
        queue.submit(target.clone(), wanted("x", true));
        let outcome = written.recv().await.unwrap();
        assert_eq!(outcome.target, target);
        assert!(outcome.result.is_ok());
    }
    assert!(queue.is_empty());
    assert_eq!(requests.take().len(), 40);
    drop(written);
    writer.await.unwrap();
}

#[tokio::test]
async fn writer_reports_conflicts_as_outdated() {
    let (client, requests) = scripted(|_| failure(409, "Conflict"));
    let (writer, queue) = StatusWriter::new(client);
    let (sender, mut written) = mpsc::channel(1);
    tokio::spawn(writer.run(sender));
    queue.submit(target("a"), wanted("x", true));
    let outcome = written.recv().await.unwrap();
    assert!(matches!(outcome.result, Err(Failure::Outdated)));
    let [request] = requests.take_all().try_into().unwrap();
    assert_eq!(
        request.line,
        "PATCH /apis/policies.assent.dev/v1alpha1/clusteradmissionpolicies/a/status"
    );
    assert_eq!(request.body["metadata"]["resourceVersion"], "1");
    assert_eq!(request.body["metadata"]["uid"], "u");
}
