//! The limits that a child puts on itself.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use super::{Bounds, CHILD, policy, request, script};
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
    let dir = tempfile::TempDir::new().unwrap();
    let saved = dir.path().join("order");
    let bounds = Bounds {
        cpu_time: Duration::from_secs(41),
        ..Bounds::default()
    };
    // What a child gets on its standard input, for a child whose input stays open.
    let save = script(&format!("cat > {}", saved.display()), bounds);
    save.vet(policy("good", "accept"), &request())
        .await
        .unwrap_err();
    let mut child = Command::new(CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&fs::read(saved).unwrap()).unwrap();
    // The guest's own two calls have 200 ms each, and seconds are rounded up.
    wait_until("the child limits itself", || {
        limit(child.id(), "Max cpu time") == "42"
    });
    drop(input);
    child.kill().unwrap();
    child.wait().unwrap();
}
