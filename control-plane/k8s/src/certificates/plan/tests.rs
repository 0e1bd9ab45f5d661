#![allow(clippy::unwrap_used)]
use std::time::Duration;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn day(number: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + DAY * 10_000 + DAY.mul_f64(number)
}

/// Made on one day, good for a year.
fn life(made: f64) -> Life {
    Life {
        made: day(made),
        ends: day(made + 365.0),
    }
}

fn mk_dates(current: f64) -> Dates {
    Dates {
        current: Some(life(current)),
        signing_since: Some(day(current)),
        ..Dates::default()
    }
}

#[track_caller]
fn check(now: f64, dates: &Dates, expect: Step) {
    assert_eq!(
        plan(day(now), dates, &Lives::default()),
        expect,
        "day {now}"
    );
}

#[test]
fn plan_creates_the_first_authority() {
    check(0.0, &Dates::default(), Step::Create);
    let rotate = life(0.0).made + DAY * 365 * 2 / 3;
    check(0.0, &mk_dates(0.0), Step::Wait(rotate));
}

#[test]
fn rotation_follows_its_steps() {
    let mut dates = mk_dates(0.0);
    check(
        243.0,
        &dates,
        Step::Wait(life(0.0).made + DAY * 365 * 2 / 3),
    );
    check(244.0, &dates, Step::Prepare);
    dates.next = Some(life(244.0));
    check(244.0, &dates, Step::Wait(day(245.0)));
    check(245.0, &dates, Step::Promote);
    let mut dates = Dates {
        current: Some(life(244.0)),
        previous: vec![life(0.0)],
        signing_since: Some(day(245.5)),
        ..Dates::default()
    };
    // Leaves of the old one may have been signed until then, and live for 30 days.
    check(246.0, &dates, Step::Wait(day(275.5) + CLOCK_SKEW));
    check(275.5, &dates, Step::Wait(day(275.5) + CLOCK_SKEW));
    check(275.6, &dates, Step::Drop);
    dates.previous.clear();
    check(
        275.6,
        &dates,
        Step::Wait(life(244.0).made + DAY * 365 * 2 / 3),
    );
}

#[test]
fn rotation_can_be_requested_at_any_time() {
    let mut dates = mk_dates(0.0);
    dates.asked = true;
    check(1.0, &dates, Step::Prepare);
    dates.next = Some(life(1.0));
    // Asked again while one is under way: first things first.
    check(1.5, &dates, Step::Wait(day(2.0)));
    dates.next = None;
    dates.previous = vec![life(0.0); MAX_PREVIOUS];
    dates.signing_since = Some(day(1.0));
    check(1.5, &dates, Step::Wait(day(31.0) + CLOCK_SKEW));
    dates.previous.pop();
    check(1.5, &dates, Step::Prepare);
}

#[test]
fn overdue_rotation_catches_up_at_once() {
    let mut dates = mk_dates(0.0);
    // The current one has ended: the next one is made and signs at once.
    check(400.0, &dates, Step::Prepare);
    dates.next = Some(life(400.0));
    check(400.0, &dates, Step::Promote);
    // The next one has ended too.
    dates.next = Some(life(1.0));
    check(400.0, &dates, Step::Prepare);
    // Nothing that ended is worth keeping, whenever somebody began to sign.
    let dates = Dates {
        current: Some(life(400.0)),
        previous: vec![life(0.0)],
        signing_since: Some(day(400.0)),
        ..Dates::default()
    };
    check(400.0, &dates, Step::Drop);
}

#[test]
fn unknown_signing_time_drops_nothing_early() {
    let dates = Dates {
        current: Some(life(100.0)),
        previous: vec![life(0.0)],
        ..Dates::default()
    };
    let rotate = life(100.0).made + DAY * 365 * 2 / 3;
    check(200.0, &dates, Step::Wait(rotate));
    check(366.0, &dates, Step::Drop);
}

#[test]
fn clock_one_hour_off_breaks_no_rotation() {
    // The next one was made by a clock one hour ahead: it signs one hour later, not earlier
    // than it was published.
    let mut dates = mk_dates(0.0);
    dates.next = Some(Life {
        made: day(1.0) + CLOCK_SKEW,
        ends: day(366.0),
    });
    check(2.0, &dates, Step::Wait(day(2.0) + CLOCK_SKEW));
    // Made by one behind: it has been published for 23 hours.
    dates.next = Some(Life {
        made: day(1.0) - CLOCK_SKEW,
        ends: day(366.0),
    });
    check(2.0, &dates, Step::Promote);
}

#[test]
fn short_lifetimes_keep_the_order_of_steps() {
    let lives = Lives {
        authority: Duration::from_secs(60),
        leaf: Duration::from_secs(60),
        overlap: Duration::from_secs(60),
    };
    let dates = Dates {
        current: Some(Life {
            made: day(0.0),
            ends: day(0.0) + lives.authority,
        }),
        ..Dates::default()
    };
    assert_eq!(plan(day(0.0), &dates, &lives), Step::Prepare);
}
