//! A child whose parent dies.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use super::CHILD;

/// Fields of `/proc/<pid>/stat` after the name: state first, nice at 16.
fn stat(pid: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

pub(crate) fn wait_until(what: &str, test: impl Fn() -> bool) {
    // Long, because a busy machine is no failure; a broken one never gets there.
    for _ in 0..600 {
        if test() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("never happened: {what}");
}

#[test]
fn it_ends_with_its_parent() {
    // The test holds the other end of the child's input: its end is not what ends it.
    let mut parent = Command::new("/bin/sh")
        .args([
            "-c",
            "exec 3<&0; \"$0\" <&3 3<&- & echo $!; exec sleep 600",
            CHILD,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _input = parent.stdin.take().unwrap();
    let mut pid = String::new();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    output.read_line(&mut pid).unwrap();
    let pid = pid.trim();
    // Nice is the last thing that it sets before it reads its order.
    let own: i32 = stat("self").unwrap()[16].parse().unwrap();
    let nice = (own + 10).min(19).to_string();
    wait_until("the child confines itself", || {
        stat(pid).is_some_and(|fields| fields[16] == nice)
    });
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the child is gone", || {
        stat(pid).is_none_or(|fields| fields[0] == "Z")
    });
}
