//! Tiny guests, and shortcuts to run them.

use std::sync::LazyLock;

use assent_wasm::{
    Abi, Engine, EngineConfig, EvalError, Policy, PolicySpec, PrepareError, Review, Verdict,
};
use serde_json::value::RawValue;

/// One engine for all tests, as in a process that serves.
pub(crate) static ENGINE: LazyLock<Engine> =
    LazyLock::new(|| Engine::new(EngineConfig::default()).unwrap());

/// Where guests find constants: the verdict, the answer about settings, and free memory.
pub(crate) const ANSWER: usize = 0;
pub(crate) const SETTINGS: usize = 4096;
pub(crate) const FREE: usize = 8192;

const POD: &str = r#"{"uid":"1","operation":"CREATE","object":{"metadata":{"name":"a","labels":{"x":"1"}}},"extra":18446744073709551615}"#;

/// The request most tests use.
pub(crate) fn pod() -> Box<RawValue> {
    raw(POD)
}

pub(crate) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// A waPC guest that accepts its settings and runs `body` for `validate`, with `$len` the payload's length.
pub(crate) fn wapc(answer: &str, body: &str) -> Vec<u8> {
    wapc_with(answer, r#"{"valid":true}"#, body, "")
}

/// A waPC guest that gives a fixed answer.
pub(crate) fn answering(answer: &str) -> Vec<u8> {
    wapc(
        answer,
        &format!(
            "(call $response (i32.const {ANSWER}) (i32.const {})) (i32.const 1)",
            answer.len()
        ),
    )
}

/// A waPC guest with its own answer about settings and further definitions.
pub(crate) fn wapc_with(answer: &str, settings: &str, body: &str, more: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "wapc" "__guest_request" (func $request (param i32 i32)))
          (import "wapc" "__guest_response" (func $response (param i32 i32)))
          (import "wapc" "__guest_error" (func $error (param i32 i32)))
          (import "wapc" "__host_call" (func $host_call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
          (import "wapc" "__host_response_len" (func $host_response_len (result i32)))
          (import "wapc" "__host_response" (func $host_response (param i32)))
          (import "wapc" "__host_error_len" (func $host_error_len (result i32)))
          (import "wapc" "__host_error" (func $host_error (param i32)))
          (import "wapc" "__console_log" (func $log (param i32 i32)))
          (memory (export "memory") 2)
          (data (i32.const {ANSWER}) "{}")
          (data (i32.const {SETTINGS}) "{}")
          {more}
          (func $validate (param $len i32) (result i32) {body})
          (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
            (if (i32.eq (local.get $op) (i32.const 17))
              (then (call $response (i32.const {SETTINGS}) (i32.const {})) (return (i32.const 1))))
            (call $validate (local.get $len))))"#,
        escape(answer),
        escape(settings),
        settings.len(),
    );
    wat::parse_str(&text).unwrap()
}

/// A waPC guest that makes one host call and gives the reply (or the refusal) as its failure.
pub(crate) fn host_caller(
    binding: &str,
    namespace: &str,
    operation: &str,
    payload: &str,
) -> Vec<u8> {
    let text = format!("{binding}{namespace}{operation}{payload}");
    let mut at = 0;
    let mut args = String::new();
    for part in [binding, namespace, operation, payload] {
        args.push_str(&format!("(i32.const {at}) (i32.const {}) ", part.len()));
        at += part.len();
    }
    let body = format!(
        "(if (call $host_call {args})
           (then (call $host_response (i32.const {FREE})) (call $error (i32.const {FREE}) (call $host_response_len)))
           (else (call $host_error (i32.const {FREE})) (call $error (i32.const {FREE}) (call $host_error_len))))
         (i32.const 0)"
    );
    wapc(&text, &body)
}

pub(crate) fn escape(text: &str) -> String {
    text.bytes().map(|byte| format!("\\{byte:02x}")).collect()
}

pub(crate) fn spec(abi: Abi) -> PolicySpec {
    PolicySpec {
        name: "test".to_owned(),
        ..PolicySpec::new(abi)
    }
}

#[track_caller]
pub(crate) fn policy(wasm: &[u8], spec: PolicySpec) -> Policy {
    let module = ENGINE.compile(wasm).unwrap();
    Policy::prepare(&ENGINE, &module, spec).unwrap()
}

/// Prepares as an evaluator does: link, settings, self-test.
pub(crate) fn vet(wasm: &[u8], spec: PolicySpec) -> Result<Policy, PrepareError> {
    let module = ENGINE.compile(wasm).unwrap();
    let policy = Policy::prepare(&ENGINE, &module, spec)?;
    policy.validate_settings()?;
    policy.self_test()?;
    Ok(policy)
}

#[track_caller]
pub(crate) fn evaluate(wasm: &[u8], spec: PolicySpec) -> Result<Verdict, EvalError> {
    let request = pod();
    policy(wasm, spec).evaluate(&Review::admission(&request).unwrap())
}

/// The error of a waPC guest with default settings.
#[track_caller]
pub(crate) fn failure(wasm: &[u8]) -> EvalError {
    evaluate(wasm, spec(Abi::Wapc)).unwrap_err()
}
