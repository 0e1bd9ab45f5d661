//! Every limit in pairs: a guest that obeys it, and one that does not.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use assent_wasm::{
    Abi, Engine, EngineConfig, EvalError, Limits, MemoryBudget, Policy, PolicySpec, Review, Stage,
    json,
};

use crate::guests::{FREE, answering, evaluate, failure, pod, policy, spec, vet, wapc, wapc_with};

const ACCEPT: &str = r#"{"accepted":true}"#;
const YES: &str = "(call $response (i32.const 0) (i32.const 17)) (i32.const 1)";

/// A guest that runs `code` and then accepts.
fn then_accept(code: &str, more: &str) -> Vec<u8> {
    wapc_with(ACCEPT, r#"{"valid":true}"#, &format!("{code} {YES}"), more)
}

fn limited(timeout: u64, memory_bytes: u64) -> PolicySpec {
    PolicySpec {
        limits: Limits {
            timeout: Duration::from_millis(timeout),
            memory_bytes,
        },
        ..spec(Abi::Wapc)
    }
}

#[track_caller]
fn accepts(wasm: &[u8], spec: PolicySpec) {
    assert!(evaluate(wasm, spec).unwrap().allowed);
}

/// Such a policy is rejected before it evaluates a request.
#[track_caller]
fn no_instance(wasm: &[u8], spec: PolicySpec, part: &str) {
    let error = vet(wasm, spec).err().unwrap();
    assert_eq!(error.stage(), Stage::Instantiate);
    assert!(
        error.to_string().contains(part) && !error.is_transient(),
        "{error}"
    );
}

/// Counts down in a loop, `rounds` times.
fn spin(rounds: &str) -> String {
    format!(
        "(local $n i64) (local.set $n (i64.const {rounds})) (loop $l (local.set $n (i64.sub (local.get $n) (i64.const 1))) (br_if $l (i64.ne (local.get $n) (i64.const 0))))"
    )
}

#[test]
fn deadline_ends_an_evaluation() {
    accepts(&then_accept(&spin("1000000"), ""), limited(10_000, 1 << 20));
    let started = Instant::now();
    let error = evaluate(&then_accept(&spin("0"), ""), limited(50, 1 << 20)).unwrap_err();
    assert_eq!(error, EvalError::Timeout(Duration::from_millis(50)));
    assert!(
        started.elapsed() >= Duration::from_millis(50),
        "stopped before its time"
    );
}

#[test]
fn a_second_evaluation_long_after_the_first_is_stopped_too() {
    let endless = policy(&then_accept(&spin("0"), ""), limited(20, 1 << 20));
    let request = pod();
    let review = Review::admission(&request).unwrap();
    assert_eq!(endless.evaluate(&review).unwrap_err().reason(), "timeout");
    // Longer than the clock runs on without guests.
    std::thread::sleep(Duration::from_millis(1_300));
    assert_eq!(endless.evaluate(&review).unwrap_err().reason(), "timeout");
}

#[test]
fn on_slow_is_called_if_an_evaluation_takes_long() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let on_slow = || {
        TOLD.fetch_add(1, Ordering::SeqCst);
    };
    let request = pod();
    let review = Review::admission(&request).unwrap();
    let quick = policy(&then_accept("", ""), limited(10_000, 1 << 20));
    assert!(quick.evaluate_in_place(&review, on_slow).unwrap().allowed);
    assert_eq!(TOLD.load(Ordering::SeqCst), 0);
    let endless = policy(&then_accept(&spin("0"), ""), limited(100, 1 << 20));
    let error = endless.evaluate_in_place(&review, on_slow).unwrap_err();
    assert_eq!(error, EvalError::Timeout(Duration::from_millis(100)));
    assert_eq!(TOLD.load(Ordering::SeqCst), 3);
}

#[test]
fn deadline_of_a_start_function() {
    let more = r#"(func (export "wapc_init") (loop $l (br $l)))"#;
    no_instance(&then_accept("", more), limited(20, 1 << 20), "within 20 ms");
    let more = "(func $s (loop $l (br $l))) (start $s)";
    no_instance(&then_accept("", more), limited(20, 1 << 20), "within 20 ms");
}

#[test]
fn memory_limit_ends_an_evaluation() {
    let grow = "(if (i32.eq (memory.grow (i32.const 14)) (i32.const -1)) (then unreachable))";
    accepts(&then_accept(grow, ""), limited(10_000, 1 << 20));
    let error = evaluate(&then_accept(grow, ""), limited(10_000, (1 << 20) - 1)).unwrap_err();
    assert_eq!(error, EvalError::MemoryExceeded((1 << 20) - 1));
}

#[test]
fn a_guest_that_takes_no_for_an_answer_goes_on() {
    accepts(
        &then_accept("(drop (memory.grow (i32.const 65000)))", ""),
        limited(10_000, 1 << 20),
    );
}

#[test]
fn a_guest_that_says_it_failed_for_lack_of_memory_is_on_slow_apart() {
    let body = "(drop (memory.grow (i32.const 65000))) (call $error (i32.const 0) (i32.const 1)) (i32.const 0)";
    let error = evaluate(&wapc("x", body), limited(10_000, 1 << 20)).unwrap_err();
    assert_eq!(error.reason(), "memory");
}

#[test]
fn memory_at_the_start() {
    let guest = then_accept("", "");
    accepts(&guest, limited(10_000, 2 << 16));
    no_instance(&guest, limited(10_000, (2 << 16) - 1), "bytes of memory");
}

#[test]
fn table_limit_ends_an_evaluation() {
    let table = "(table $t 10 funcref)";
    let grow = |by: u32| {
        format!(
            "(if (i32.eq (table.grow $t (ref.null func) (i32.const {by})) (i32.const -1)) (then unreachable))"
        )
    };
    accepts(&then_accept(&grow(99_990), table), spec(Abi::Wapc));
    assert_eq!(
        failure(&then_accept(&grow(99_991), table)),
        EvalError::TableExceeded
    );
}

#[test]
fn stack_limit_ends_an_evaluation() {
    let recurse = "(func $r (param i32) (result i32)
        (if (result i32) (local.get 0)
          (then (i32.add (i32.const 1) (call $r (i32.sub (local.get 0) (i32.const 1)))))
          (else (i32.const 0))))";
    accepts(
        &then_accept("(drop (call $r (i32.const 1000)))", recurse),
        spec(Abi::Wapc),
    );
    assert_eq!(
        failure(&then_accept("(drop (call $r (i32.const -1)))", recurse)),
        EvalError::StackExceeded
    );
}

#[test]
fn output_limit_ends_an_evaluation() {
    let respond = |length: u32| {
        format!(
            "(drop (memory.grow (i32.const 400)))
             (memory.fill (i32.const {FREE}) (i32.const 32) (i32.const {length}))
             (memory.copy (i32.const {FREE}) (i32.const 0) (i32.const 17))
             (call $response (i32.const {FREE}) (i32.const {length})) (i32.const 1)"
        )
    };
    accepts(&wapc(ACCEPT, &respond(16 << 20)), spec(Abi::Wapc));
    assert_eq!(
        failure(&wapc(ACCEPT, &respond((16 << 20) + 1))),
        EvalError::OutputTooLarge
    );
}

/// Makes a call `times` times.
fn repeat(times: u32, call: &str) -> String {
    format!(
        "(local $n i32) (local.set $n (i32.const {times})) (loop $l {call} (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $l (local.get $n)))"
    )
}

#[test]
fn host_calls() {
    let call = "(drop (call $host_call (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))";
    accepts(&then_accept(&repeat(1_000, call), ""), spec(Abi::Wapc));
    assert_eq!(
        failure(&then_accept(&repeat(1_001, call), "")),
        EvalError::HostCallBudget
    );
}

#[test]
fn log_lines_share_the_budget() {
    let log = "(call $log (i32.const 0) (i32.const 1))";
    accepts(&then_accept(&repeat(1_000, log), ""), spec(Abi::Wapc));
    assert_eq!(
        failure(&then_accept(&repeat(1_001, log), "")),
        EvalError::HostCallBudget
    );
}

#[test]
fn bytes_of_host_calls() {
    let grow = "(drop (memory.grow (i32.const 64)))";
    let log = |times| {
        format!(
            "{} {grow}",
            repeat(
                times,
                &format!("{grow} (call $log (i32.const 0) (i32.const 65536))")
            )
        )
    };
    accepts(&then_accept(&log(256), ""), spec(Abi::Wapc));
    assert_eq!(
        failure(&then_accept(&log(257), "")),
        EvalError::HostCallBudget
    );
}

#[test]
fn depth_of_answers() {
    let object = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let answer = |depth| {
        answering(&format!(
            r#"{{"accepted":true,"mutated_object":{}}}"#,
            object(depth)
        ))
    };
    let mutating = || PolicySpec {
        mutating: true,
        ..spec(Abi::Wapc)
    };
    assert!(evaluate(&answer(100), mutating()).unwrap().patch.is_some());
    assert_eq!(
        evaluate(&answer(200), mutating()).unwrap_err().reason(),
        "bad_answer"
    );
}

#[test]
fn depth_of_settings() {
    let settings =
        |depth: usize| bytes::Bytes::from(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    let with = |depth| PolicySpec {
        settings_json: settings(depth),
        ..spec(Abi::Wapc)
    };
    accepts(&answering(ACCEPT), with(json::MAX_DEPTH - 1));
    let module = crate::guests::ENGINE.compile(&answering(ACCEPT)).unwrap();
    assert!(
        assent_wasm::Policy::prepare(&crate::guests::ENGINE, &module, with(json::MAX_DEPTH + 1))
            .is_err()
    );
}

#[test]
fn a_memory_limit_above_the_engines_is_refused() {
    let module = crate::guests::ENGINE.compile(&answering(ACCEPT)).unwrap();
    let error = assent_wasm::Policy::prepare(&crate::guests::ENGINE, &module, limited(1, 1 << 40))
        .err()
        .unwrap();
    assert!(error.to_string().contains("memory limit"), "{error}");
}

/// What evaluations share, in pairs: enough for a guest that stays within its own limit, and not.
#[test]
fn memory_that_evaluations_share() {
    let with = |bytes| {
        Engine::new(EngineConfig {
            memory: MemoryBudget::new(bytes),
            ..EngineConfig::small()
        })
        .unwrap()
    };
    // 16 MiB more, which its own limit allows.
    let grow = "(if (i32.eq (memory.grow (i32.const 256)) (i32.const -1)) (then unreachable))";
    let wasm = then_accept(grow, "");
    let evaluate = |engine: &Engine| {
        let module = engine.compile(&wasm).unwrap();
        let policy = Policy::prepare(engine, &module, limited(10_000, 64 << 20)).unwrap();
        let pod = pod();
        let verdict = policy.evaluate(&Review::admission(&pod).unwrap());
        drop((policy, module));
        assert_eq!(engine.memory().used(), 0);
        verdict
    };
    assert!(evaluate(&with(64 << 20)).unwrap().allowed);
    assert_eq!(evaluate(&with(8 << 20)), Err(EvalError::Overloaded));
}

#[test]
fn evaluations_never_take_more_than_they_share() {
    let memory = MemoryBudget::new(40 << 20);
    let engine = Engine::new(EngineConfig {
        memory: memory.clone(),
        ..EngineConfig::small()
    });
    let engine = engine.unwrap();
    let grow = "(local $n i64) (if (i32.eq (memory.grow (i32.const 192)) (i32.const -1)) (then unreachable))";
    // The memory is held while it spins.
    let grow = spin("300000").replacen("(local $n i64)", grow, 1);
    let module = engine.compile(&then_accept(&grow, "")).unwrap();
    let policy = Policy::prepare(&engine, &module, limited(60_000, 64 << 20)).unwrap();
    let pod = pod();
    let review = Review::admission(&pod).unwrap();
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    match policy.evaluate(&review) {
                        Ok(_) | Err(EvalError::Overloaded) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let used = usize::try_from(memory.used()).unwrap();
                    most.fetch_max(used, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(most.load(Ordering::Relaxed) <= 40 << 20);
    assert_eq!(memory.used(), 0);
}
