//! Statuses are computed for what changed, and written once.

use assent_core::plane::StreamEvent;

use crate::{harness::Harness, world::World};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

on_each_backend!(
    stored_status_is_not_written_again,
    each_change_is_recorded_once,
    heartbeats_compute_no_status,
);

fn stored_status_is_not_written_again<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    assert!(harness.write_statuses().contains(&"a".to_owned()));
    harness.run();
    assert!(!harness.write_statuses().contains(&"a".to_owned()));
    harness.controller.resync(harness.now());
    assert!(!harness.write_statuses().contains(&"a".to_owned()));
}

fn each_change_is_recorded_once<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    let events = harness.events();
    assert_eq!(events.last().unwrap(), "a Enforced");
    assert_eq!(events.iter().filter(|e| *e == "a Enforced").count(), 1);
    harness.controller.resync(harness.now());
    assert!(harness.events().is_empty());
}

fn heartbeats_compute_no_status<W: World>() {
    let mut harness = Harness::<W>::enforced(&REPLICAS, 1);
    harness.write_statuses();
    harness.run();
    harness.write_statuses();
    for replica in REPLICAS {
        let event = StreamEvent::Heartbeat {
            server: "default".into(),
            replica: replica.into(),
        };
        harness.controller.stream(harness.now(), event);
    }
    harness.pass(std::time::Duration::from_secs(1));
    let actions = harness.controller.settle(harness.now());
    assert!(actions.is_empty(), "{} actions", actions.len());
}
