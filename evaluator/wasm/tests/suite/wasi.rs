//! WASI commands: streams, clocks, sleeping, exit codes.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use assent_wasm::{Abi, EvalError, Limits, PolicySpec, Review, Stage};

use crate::guests::{escape, evaluate, pod, policy, spec, vet};

/// A command with the answer at 0, free memory from 8192, and `body` as `_start`.
fn command(answer: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
          (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_fdstat_get" (func $fdstat (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (import "host" "call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 4)
          (data (i32.const 0) "{}")
          (data (i32.const 4000) "{}")
          (func $print (param $fd i32) (param $at i32) (param $len i32)
            (i32.store (i32.const 7000) (local.get $at)) (i32.store (i32.const 7004) (local.get $len))
            (if (call $write (local.get $fd) (i32.const 7000) (i32.const 1) (i32.const 7008)) (then unreachable)))
          (func $input (result i32)
            (i32.store (i32.const 7000) (i32.const 16384)) (i32.store (i32.const 7004) (i32.const 65536))
            (if (call $read (i32.const 0) (i32.const 7000) (i32.const 1) (i32.const 7008)) (then unreachable))
            (i32.load (i32.const 7008)))
          (func $sleep (param $ns i64)
            (i64.store (i32.const 6000) (i64.const 7)) (i32.store8 (i32.const 6008) (i32.const 0))
            (i32.store (i32.const 6016) (i32.const 1)) (i64.store (i32.const 6024) (local.get $ns))
            (if (call $poll (i32.const 6000) (i32.const 6100) (i32.const 1) (i32.const 6200)) (then unreachable))
            (if (i32.ne (i32.load (i32.const 6200)) (i32.const 1)) (then unreachable))
            (if (i64.ne (i64.load (i32.const 6100)) (i64.const 7)) (then unreachable)))
          (func $answer (call $print (i32.const 1) (i32.const 0) (i32.const {})))
          (func (export "_start") {body}))"#,
        escape(answer),
        escape("kubewardennetv1/dns_lookup_host\"localhost\""),
        answer.len(),
    );
    wat::parse_str(&text).unwrap()
}

fn run(answer: &str, body: &str) -> Result<assent_wasm::Verdict, EvalError> {
    evaluate(&command(answer, body), spec(Abi::Wasi))
}

const ACCEPT: &str = r#"{"accepted":true}"#;

#[test]
fn an_answer_on_stdout_is_the_verdict() {
    assert!(run(ACCEPT, "(call $answer)").unwrap().allowed);
    assert!(
        run(ACCEPT, "(call $answer) (call $exit (i32.const 0))")
            .unwrap()
            .allowed
    );
    let denied = run(r#"{"accepted":false,"message":"no"}"#, "(call $answer)").unwrap();
    assert_eq!(
        (denied.allowed, denied.message.as_deref()),
        (false, Some("no"))
    );
}

#[test]
fn stdin_has_the_request_and_settings() {
    let echo =
        "(call $print (i32.const 2) (i32.const 16384) (call $input)) (call $exit (i32.const 3))";
    let EvalError::Exit { code: 3, words } = run("", echo).unwrap_err() else {
        panic!("expected exit 3")
    };
    assert!(
        words.starts_with(r#"{"request":{"uid":"1","#) && words.ends_with(r#","settings":{}}"#),
        "{words}"
    );
}

#[test]
fn arguments_name_the_operation() {
    let echo = "(drop (call $args_sizes (i32.const 6000) (i32.const 6004)))
        (drop (call $args (i32.const 6008) (i32.const 6100)))
        (call $print (i32.const 2) (i32.load (i32.const 6012)) (i32.sub (i32.load (i32.const 6004)) (i32.const 13)))
        (call $exit (i32.load (i32.const 6000)))";
    assert_eq!(
        run("", echo).unwrap_err(),
        EvalError::Exit {
            code: 2,
            words: "validate".to_owned()
        }
    );
    let error = vet(&command("", echo), spec(Abi::Wasi)).err().unwrap();
    assert!(error.to_string().contains("validate-settings"), "{error}");
}

#[test]
fn settings_are_validated() {
    let error = vet(
        &command(r#"{"valid":false,"message":"bad"}"#, "(call $answer)"),
        spec(Abi::Wasi),
    )
    .err()
    .unwrap();
    assert_eq!(
        (error.stage(), error.to_string().as_str()),
        (Stage::Settings, "the settings are not valid: bad")
    );
    vet(
        &command(r#"{"valid":true,"accepted":true}"#, "(call $answer)"),
        spec(Abi::Wasi),
    )
    .unwrap();
}

#[test]
fn an_exit_code_is_an_error_even_after_an_answer() {
    let error = run(ACCEPT, "(call $answer) (call $exit (i32.const 1))").unwrap_err();
    assert_eq!(
        error,
        EvalError::Exit {
            code: 1,
            words: String::new()
        }
    );
}

#[test]
fn guests_have_no_files_and_no_environment() {
    let body = "(if (i32.ne (call $prestat (i32.const 3) (i32.const 6000)) (i32.const 8)) (then unreachable))
        (if (i32.ne (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 6000)) (i32.const 8)) (then unreachable))
        (if (i32.ne (call $fdstat (i32.const 3) (i32.const 6000)) (i32.const 8)) (then unreachable))
        (if (call $fdstat (i32.const 1) (i32.const 6000)) (then unreachable))
        (drop (call $environ_sizes (i32.const 6000) (i32.const 6004)))
        (if (i32.load (i32.const 6000)) (then unreachable))
        (call $answer)";
    assert!(run(ACCEPT, body).unwrap().allowed);
}

#[test]
fn clocks_and_randomness_work() {
    let body = "(if (call $clock (i32.const 0) (i64.const 0) (i32.const 6000)) (then unreachable))
        (if (i64.lt_u (i64.load (i32.const 6000)) (i64.const 1700000000000000000)) (then unreachable))
        (if (i32.eqz (call $clock (i32.const 9) (i64.const 0) (i32.const 6000))) (then unreachable))
        (if (call $random (i32.const 6100) (i32.const 32)) (then unreachable))
        (if (i64.eq (i64.load (i32.const 6100)) (i64.load (i32.const 6108))) (then unreachable))
        (call $answer)";
    assert!(run(ACCEPT, body).unwrap().allowed);
}

#[test]
fn on_slow_is_called_before_a_guest_sleeps() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let on_slow = || {
        TOLD.fetch_add(1, Ordering::SeqCst);
    };
    let request = pod();
    let review = Review::admission(&request).unwrap();
    let naps = |ns: u64| {
        let body = format!("(call $sleep (i64.const {ns})) (call $answer)");
        policy(&command(ACCEPT, &body), spec(Abi::Wasi))
    };
    for (ns, times) in [(0, 0), (1_500_000, 1)] {
        let verdict = naps(ns).evaluate_in_place(&review, on_slow).unwrap();
        assert!(verdict.allowed);
        assert_eq!(TOLD.load(Ordering::SeqCst), times, "{ns}");
    }
}

#[test]
fn sleeping_counts_against_the_deadline() {
    let limits = Limits {
        timeout: Duration::from_millis(100),
        ..Limits::default()
    };
    let sleep = |ns: u64, timeout: Limits| {
        let guest = command(
            ACCEPT,
            &format!("(call $sleep (i64.const {ns})) (call $answer)"),
        );
        evaluate(
            &guest,
            PolicySpec {
                limits: timeout,
                ..spec(Abi::Wasi)
            },
        )
    };
    assert!(sleep(1_000_000, Limits::default()).unwrap().allowed);
    let started = Instant::now();
    assert_eq!(
        sleep(3_600_000_000_000, limits).unwrap_err().reason(),
        "timeout"
    );
    assert!(started.elapsed() < Duration::from_secs(60), "it slept on");
}

#[test]
fn output_is_bounded() {
    let write = |times: u32| {
        format!(
            "(local $n i32) (local.set $n (i32.const {times}))
            (call $answer)
            (memory.fill (i32.const 16384) (i32.const 32) (i32.const 65536))
            (loop $l (call $print (i32.const 1) (i32.const 16384) (i32.const 65536))
              (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $l (local.get $n)))"
        )
    };
    assert!(run(ACCEPT, &write(255)).unwrap().allowed);
    assert_eq!(
        run(ACCEPT, &write(256)).unwrap_err(),
        EvalError::OutputTooLarge
    );
}

#[test]
fn stderr_shares_the_budget_of_host_calls() {
    let lines = |times: u32| {
        format!(
            "(local $n i32) (local.set $n (i32.const {times}))
            (i32.store8 (i32.const 16384) (i32.const 10))
            (loop $l (call $print (i32.const 2) (i32.const 16384) (i32.const 1))
              (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $l (local.get $n)))
            (call $answer)"
        )
    };
    assert!(run(ACCEPT, &lines(1_000)).unwrap().allowed);
    assert_eq!(
        run(ACCEPT, &lines(1_001)).unwrap_err(),
        EvalError::HostCallBudget
    );
}

#[test]
fn a_refused_host_call_returns_one_and_explains_itself_on_stdin() {
    let body = "(drop (call $input))
        (if (i32.ne (call $host_call (i32.const 4000) (i32.const 10) (i32.const 4010) (i32.const 3) (i32.const 4013) (i32.const 18) (i32.const 4031) (i32.const 11)) (i32.const 1)) (then unreachable))
        (call $print (i32.const 2) (i32.const 16384) (call $input)) (call $exit (i32.const 3))";
    let EvalError::Exit { words, .. } = run("", body).unwrap_err() else {
        panic!("expected an exit")
    };
    assert!(
        words.contains("net/v1/dns_lookup_host is not among"),
        "{words}"
    );
}

#[test]
fn addresses_outside_of_memory_end_the_evaluation() {
    let zeros = "(i32.const 0) ".repeat(6);
    for (name, call) in [
        (
            "fd_read",
            "(call $read (i32.const 0) (i32.const -4) (i32.const 1) (i32.const 0))".to_owned(),
        ),
        (
            "fd_read",
            "(call $read (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "fd_write",
            "(call $write (i32.const 1) (i32.const 262140) (i32.const 1) (i32.const 0))".to_owned(),
        ),
        (
            "fd_write",
            "(call $write (i32.const 1) (i32.const 0) (i32.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "args_sizes_get",
            "(call $args_sizes (i32.const -2) (i32.const 0))".to_owned(),
        ),
        (
            "args_get",
            "(call $args (i32.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "environ_sizes_get",
            "(call $environ_sizes (i32.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "clock_time_get",
            "(call $clock (i32.const 0) (i64.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "random_get",
            "(call $random (i32.const 0) (i32.const -2))".to_owned(),
        ),
        (
            "poll_oneoff",
            "(call $poll (i32.const -2) (i32.const 0) (i32.const 1) (i32.const 0))".to_owned(),
        ),
        (
            "fd_fdstat_get",
            "(call $fdstat (i32.const 1) (i32.const -2))".to_owned(),
        ),
        (
            "host.call",
            format!("(call $host_call (i32.const -2) (i32.const 9) {zeros})"),
        ),
    ] {
        assert_eq!(
            run("", &format!("(drop {call})")).unwrap_err(),
            EvalError::BadAddress(name),
            "{call}"
        );
    }
}
