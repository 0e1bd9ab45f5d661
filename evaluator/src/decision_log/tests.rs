#![allow(clippy::unwrap_used)]
use std::{
    io::Write,
    sync::mpsc::{Receiver, Sender, channel},
};

use assent_core::Mode;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::*;
use crate::evaluation::tests::{ALLOW, BROKEN, DENY, MUTATE, decide, never};

/// Sends what is written to a test.
struct Sent(Sender<Vec<u8>>);

/// An output that takes nothing until its gate is dropped.
struct Blocked(Receiver<()>);

#[derive(Serialize)]
struct Pod {
    namespace: &'static str,
}

impl Subject for Pod {
    fn kind(&self) -> String {
        "Pod".into()
    }

    fn namespace(&self) -> &str {
        self.namespace
    }
}

impl Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Blocked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines about requests that were decided like this.
fn lines(allows: u64, decisions: &[(&str, Mode)]) -> Vec<Value> {
    let (sender, receiver) = channel();
    let metrics = Metrics::new();
    let writer = Writer::to(Box::new(Sent(sender)), &metrics).unwrap();
    let log = DecisionLog::new(Some(writer), allows, metrics);
    for (answer, mode) in decisions {
        decide(&[(*answer, *mode)], true, never, |decision| {
            log.record("admission", &(&decision).into(), || Pod {
                namespace: "shop",
            });
        });
    }
    drop(log);
    let lines: Vec<Vec<u8>> = receiver.iter().collect();
    assert!(lines.iter().all(|line| line.ends_with(b"}\n")));
    let parse = |line: &Vec<u8>| serde_json::from_slice(line).unwrap();
    lines.iter().map(parse).collect()
}

#[track_caller]
fn check(answer: &str, mode: Mode, verdict: &str, message: &str) {
    let lines = lines(1, &[(answer, mode)]);
    let [line] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert_eq!(line["verdict"], verdict, "{line}");
    assert!(
        line["message"].as_str().unwrap().contains(message),
        "{line}"
    );
    assert_eq!(line["policy"], "cluster/a");
    assert_eq!(line["revision"], "cluster/a/1-5f2a9c1e");
    assert_eq!(line["frontEnd"], "admission");
    assert_eq!(line["namespace"], "shop");
    assert!(line["durationSeconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(
        line["patchBytes"].as_u64().unwrap() > 0,
        verdict == "mutated"
    );
    assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
}

#[test]
fn each_outcome_has_its_verdict_and_message() {
    check(DENY, Mode::Protect, "denied", "no");
    check(DENY, Mode::Monitor, "monitored", "no");
    check(BROKEN, Mode::Protect, "error", "gave no verdict");
    check(BROKEN, Mode::Monitor, "monitored", "gave no verdict");
    check(ALLOW, Mode::Protect, "allowed", "");
    check(MUTATE, Mode::Protect, "mutated", "");
}

#[test]
fn allowed_requests_are_sampled_and_denials_are_not() {
    let mut decisions = vec![(ALLOW, Mode::Protect); 20];
    decisions.extend([(DENY, Mode::Protect); 3]);
    let count = |allows| lines(allows, &decisions).len();
    assert_eq!(count(0), 3);
    assert_eq!(count(1), 23);
    assert_eq!(count(10), 5);
}

#[test]
fn rate_is_bounded_and_recovers() {
    let start = Instant::now();
    let mut bucket = Bucket {
        lines: BURST,
        filled: start,
    };
    let taken = (0..5_000).filter(|_| bucket.take(start)).count();
    assert_eq!(taken, 1_000);
    let later = start + Duration::from_millis(500);
    let taken = (0..5_000).filter(|_| bucket.take(later)).count();
    assert_eq!(taken, 100);
}

#[test]
fn output_that_hangs_blocks_no_decision() {
    let (gate, blocked) = channel();
    let metrics = Metrics::new();
    let writer = Writer::to(Box::new(Blocked(blocked)), &metrics).unwrap();
    for _ in 0..5_000 {
        writer.write(b"{}".to_vec());
    }
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let text = crate::metrics::render(&registry).unwrap();
    assert!(
        text.contains("assent_decision_log_dropped_total{reason=\"queue\"} 29"),
        "{text}"
    );
    drop(gate);
}

#[test]
fn denials_are_counted_even_without_a_log() {
    let metrics = Metrics::new();
    let log = DecisionLog::new(None, 1, metrics.clone());
    decide(&[(DENY, Mode::Protect)], true, never, |decision| {
        log.record("admission", &(&decision).into(), || Pod {
            namespace: "shop",
        });
    });
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let text = crate::metrics::render(&registry).unwrap();
    let line = "assent_denials_total{kind=\"Pod\",namespace=\"shop\",verdict=\"denied\"} 1";
    assert!(text.lines().any(|one| one == line), "{text}");
}
