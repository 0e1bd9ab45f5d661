use super::*;

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
fn the_first_goes_at_once_and_the_latest_wins_later() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true));
    check(&mut queue, 0, &[("a", "1")]);
    queue.submit(target("a"), wanted("2", true));
    queue.submit(target("a"), wanted("3", true));
    check(&mut queue, 999, &[]);
    assert_eq!(queue.due(at(999)), Some(at(1000)));
    check(&mut queue, 1000, &[("a", "3")]);
    assert_eq!(queue.due(at(1000)), None);
}

#[test]
fn a_burst_is_followed_by_the_rate() {
    let mut queue = Queue::new(at(0));
    for n in 0..80 {
        queue.submit(target(&format!("{n:02}")), wanted("x", true));
    }
    let mut count = |now| std::iter::from_fn(|| queue.take(at(now))).count();
    assert_eq!(count(0), 50);
    assert_eq!(count(0), 0);
    assert_eq!(count(500), 10);
    assert_eq!(count(1500), 20);
    assert_eq!(count(10_000), 0);
}

#[test]
fn the_background_has_its_share_and_never_delays_the_urgent() {
    let mut queue = Queue::new(at(0));
    for n in 0..5 {
        queue.submit(target(&format!("slow-{n}")), wanted("rows", false));
    }
    queue.submit(target("urgent"), wanted("condition", true));
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
fn what_was_urgent_stays_urgent_and_what_is_right_is_not_written() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true));
    queue.submit(target("a"), wanted("2", false));
    queue.submit(target("b"), wanted("1", true));
    queue.withdraw(&target("b"));
    let (_, got) = queue.take(at(0)).expect("one must be due");
    assert!(got.urgent);
    assert_eq!(queue.take(at(0)), None);
}

#[test]
fn a_failed_write_rests() {
    let mut queue = Queue::new(at(0));
    queue.submit(target("a"), wanted("1", true));
    check(&mut queue, 0, &[("a", "1")]);
    queue.failed(&target("a"), at(10));
    queue.submit(target("a"), wanted("1", true));
    check(&mut queue, 1500, &[]);
    check(&mut queue, 2010, &[("a", "1")]);
}
