//! Modules that mean harm or are broken: always a clear error, never a panic.

use assent_wasm::{Abi, EvalError, Policy, PolicySpec, Stage, inspect};

use crate::guests::{ENGINE, answering, escape, failure, spec, vet, wapc, wapc_with};

const OUTSIDE: &str = "(i32.const -8)";

#[test]
fn random_and_truncated_bytes_are_refused() {
    let sound = answering(r#"{"accepted":true}"#);
    // Cut between two sections it is a smaller module, which may even be sound.
    let accepted = (0..sound.len())
        .filter(|length| ENGINE.compile(&sound[..*length]).is_ok())
        .count();
    assert!(accepted <= 2, "{accepted} truncated modules were accepted");
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..2_000 {
        let mut bytes = sound.clone();
        for _ in 0..1 + round % 4 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let at = usize::try_from(seed % bytes.len() as u64).unwrap();
            bytes[at] = seed.to_le_bytes()[7];
        }
        // Either outcome is fine: what counts is that there is one.
        if let Ok(inspection) = inspect(&bytes) {
            let _ = inspection.problem;
        }
        let _ = ENGINE.compile(&bytes);
    }
}

#[test]
fn invalid_modules_are_refused_with_the_reason() {
    for (bytes, words) in [
        (&b""[..], "parse"),
        (b"\x7fELF\x02\x01\x01", "parse"),
        (b"#!/bin/sh", "parse"),
        (b"\0asm\x0d\0\x01\0", "component"),
    ] {
        let error = ENGINE.compile(bytes).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_module_that_fits_no_abi_is_refused_with_its_imports() {
    let wasm =
        wat::parse_str(r#"(module (import "env" "magic" (func)) (memory (export "memory") 1))"#)
            .unwrap();
    let error = ENGINE.compile(&wasm).err().unwrap().to_string();
    assert!(error.contains("env.magic"), "{error}");
}

#[test]
fn missing_exports_are_named() {
    let wasm = wat::parse_str(r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#).unwrap();
    let error = ENGINE.compile(&wasm).err().unwrap().to_string();
    assert!(error.contains("must export memory"), "{error}");
}

#[test]
fn wrong_signatures_are_refused_when_linking() {
    let export = r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 1) (func (export "__guest_call") (param i64) (result i32) (i32.const 0)))"#;
    let import = r#"(module (import "wapc" "__guest_error" (func (param i64))) (memory (export "memory") 1) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#;
    let unknown = r#"(module (import "wapc" "__nonsense" (func)) (memory (export "memory") 1) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#;
    let global = r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 1) (global (export "__guest_call") i32 (i32.const 0)))"#;
    for (text, words) in [
        (export, "__guest_call"),
        (import, "__guest_error"),
        (unknown, "__nonsense"),
        (global, "__guest_call"),
    ] {
        let module = ENGINE.compile(&wat::parse_str(text).unwrap()).unwrap();
        let error = Policy::prepare(&ENGINE, &module, spec(Abi::Wapc))
            .err()
            .unwrap();
        assert_eq!(error.stage(), Stage::Link);
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn features_outside_the_sandbox_are_refused() {
    for definition in [
        "(memory i64 1)",
        "(memory 1) (memory 1)",
        "(memory 1 2 shared)",
        "(memory 1) (tag (param i32))",
        "(memory 1) (type (struct (field i32)))",
        "(memory 1 (pagesize 1))",
    ] {
        let text = format!(
            r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) {definition} (export "memory" (memory 0))
                (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#
        );
        let error = ENGINE.compile(&wat::parse_str(&text).unwrap()).err();
        assert!(error.is_some(), "{definition}");
    }
}

#[test]
fn growth_to_four_gib_is_stopped() {
    let grow =
        "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    assert_eq!(failure(&wapc("", grow)).reason(), "memory");
    let module = wat::parse_str(
        r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 65536)
            (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#,
    )
    .unwrap();
    assert!(
        ENGINE.compile(&module).is_err(),
        "a module that starts with 4 GiB fits no sandbox"
    );
}

#[test]
fn a_trap_at_the_start_is_told() {
    let guest = wapc_with(
        "",
        r#"{"valid":true}"#,
        "(i32.const 1)",
        "(func $s unreachable) (start $s)",
    );
    let error = vet(&guest, spec(Abi::Wapc)).err().unwrap();
    assert_eq!(error.stage(), Stage::Instantiate);
    assert!(error.to_string().contains("unreachable"), "{error}");
}

#[test]
fn a_trap_while_validating_settings_is_told() {
    let wasm = wat::parse_str(
        r#"(module (import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 1)
            (func (export "__guest_call") (param i32 i32) (result i32) unreachable))"#,
    )
    .unwrap();
    let error = vet(&wasm, spec(Abi::Wapc)).err().unwrap();
    assert_eq!(error.stage(), Stage::Settings);
    assert!(error.to_string().contains("unreachable"), "{error}");
}

#[test]
fn a_trap_includes_the_end_of_the_guests_output() {
    let words = "panicked at src/lib.rs:7";
    let body = format!(
        "(call $log (i32.const 0) (i32.const {})) unreachable",
        words.len()
    );
    let error = failure(&wapc(words, &body));
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn addresses_outside_of_memory_end_the_evaluation() {
    let one = "(i32.const 1)";
    let zero = "(i32.const 0)";
    let calls = [
        (
            "__guest_request",
            format!("(call $request {OUTSIDE} {zero})"),
        ),
        (
            "__guest_request",
            format!("(call $request {zero} {OUTSIDE})"),
        ),
        (
            "__guest_response",
            format!("(call $response {OUTSIDE} {one})"),
        ),
        (
            "__guest_response",
            format!("(call $response {one} (i32.const -1))"),
        ),
        ("__guest_error", format!("(call $error {OUTSIDE} {one})")),
        ("__console_log", format!("(call $log {OUTSIDE} {one})")),
        (
            "__console_log",
            format!("(call $log (i32.const 131072) {one})"),
        ),
        ("__host_error", {
            let refused = format!("(drop (call $host_call {}))", format!("{zero} ").repeat(8));
            format!("{refused} (call $host_error {OUTSIDE})")
        }),
    ];
    for (name, call) in calls {
        assert_eq!(
            failure(&wapc("", &format!("{call} (i32.const 1)"))),
            EvalError::BadAddress(name),
            "{call}"
        );
    }
    for position in 0..4 {
        let args: String = (0..4)
            .map(|part| format!("{} {one} ", if part == position { OUTSIDE } else { zero }))
            .collect();
        let call = format!("(drop (call $host_call {args})) (i32.const 1)");
        assert_eq!(
            failure(&wapc("", &call)),
            EvalError::BadAddress("__host_call")
        );
    }
}

#[test]
fn an_empty_reply_written_outside_is_refused_unless_it_is_at_the_edge() {
    let write = |at: u32| {
        wapc(
            "",
            &format!("(call $host_response (i32.const {at})) (i32.const 0)"),
        )
    };
    assert_eq!(failure(&write(131_072)).reason(), "guest");
    assert_eq!(
        failure(&write(131_073)),
        EvalError::BadAddress("__host_response")
    );
}

#[test]
fn fifty_megabytes_of_output_are_refused() {
    let body = "(drop (memory.grow (i32.const 900))) (call $response (i32.const 0) (i32.const 50000000)) (i32.const 1)";
    assert_eq!(failure(&wapc("", body)), EvalError::OutputTooLarge);
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    for answer in [
        "",
        "null",
        "{}",
        "[]",
        "true",
        r#"{"accepted":1}"#,
        r#"{"accepted":true}x"#,
        "\u{0}",
        r#"{"accepted":true,"code":70000}"#,
    ] {
        assert_eq!(
            failure(&answering(answer)).reason(),
            "bad_answer",
            "{answer}"
        );
    }
    assert_eq!(failure(&wapc("", "(i32.const 1)")).reason(), "bad_answer");
    assert_eq!(failure(&wapc("", "(i32.const 0)")).reason(), "guest");
    assert_eq!(failure(&wapc("", "(i32.const 2)")).reason(), "guest");
}

#[test]
fn metadata_that_lies_is_refused() {
    let with = |metadata: &str| {
        let section = format!(
            r#"(module (@custom "io.kubewarden.metadata" "{}")"#,
            escape(metadata)
        );
        let text = format!(
            r#"{section} (import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 1) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#
        );
        wat::parse_str(text).unwrap()
    };
    ENGINE
        .compile(&with(
            r#"{"protocolVersion":"v1","executionMode":"kubewarden-wapc"}"#,
        ))
        .unwrap();
    for (metadata, words) in [
        ("{", "metadata"),
        (r#"{"protocolVersion":"v2"}"#, "v2"),
        (r#"{"executionMode":"magic"}"#, "magic"),
        (r#"{"executionMode":"opa"}"#, "must export"),
        (r#"{"executionMode":"wasi"}"#, "_start"),
    ] {
        let error = ENGINE.compile(&with(metadata)).err().unwrap().to_string();
        assert!(error.contains(words), "{metadata}: {error}");
    }
}

#[test]
fn a_bad_policy_does_not_disturb_a_good_one() {
    let good = answering(r#"{"accepted":true}"#);
    for bad in [
        "unreachable",
        "(loop $l (br $l)) (i32.const 1)",
        "(call $response (i32.const -1) (i32.const 1)) (i32.const 1)",
    ] {
        let limits = assent_wasm::Limits {
            timeout: std::time::Duration::from_millis(20),
            ..Default::default()
        };
        let bad = crate::guests::evaluate(
            &wapc("", bad),
            PolicySpec {
                limits,
                ..spec(Abi::Wapc)
            },
        );
        assert!(bad.is_err());
        assert!(
            crate::guests::evaluate(&good, spec(Abi::Wapc))
                .unwrap()
                .allowed
        );
    }
}
