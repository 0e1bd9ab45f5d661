//! The limits that a child puts on itself.

use std::{fs, time::Duration};

use super::{Bounds, waiting_child};
use crate::orphan::wait_until;

/// The soft limit of a process.
fn limit(pid: u32, name: &str) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let soft = line.unwrap().split_whitespace().next();
    soft.unwrap().to_owned()
}

#[tokio::test]
async fn child_limits_its_processor_time_and_not_only_the_clock() {
    let bounds = Bounds {
        cpu_time: Duration::from_secs(41),
        ..Bounds::default()
    };
    let child = waiting_child(bounds).await;
    // The guest's own two calls have 200 ms each, and seconds are rounded up.
    wait_until("the child limits itself", || {
        limit(child.id(), "Max cpu time") == "42"
    });
}
