//! Tiny policies, written for tests.

use std::{fs, path::Path};

/// A waPC policy that accepts every request and every settings. `salt` makes another module
/// of it, with another digest.
pub fn accept_all(salt: &str) -> Vec<u8> {
    build(&Guest {
        salt,
        ..Guest::default()
    })
}

/// One that denies every request with a message.
pub fn deny_all(message: &str) -> Vec<u8> {
    build(&Guest {
        verdict: &format!("{{\"accepted\":false,\"message\":\"{message}\"}}"),
        ..Guest::default()
    })
}

/// One that refuses settings longer than `{}`.
pub fn strict_settings() -> Vec<u8> {
    build(&Guest {
        on_settings: "(if (i32.gt_u (local.get $len) (i32.const 2)) (then
          (call $response (i32.const 61000) (i32.const 48)) (return (i32.const 1))))",
        ..Guest::default()
    })
}

/// One that refuses every settings: no replica loads it.
pub fn no_settings() -> Vec<u8> {
    build(&Guest {
        valid: REFUSED,
        ..Guest::default()
    })
}

/// One that logs everything that it gets, and fails with it.
pub fn quoting() -> Vec<u8> {
    let wat = r#"(module
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (import "wapc" "__guest_error" (func $error (param i32 i32)))
  (import "wapc" "__console_log" (func $log (param i32 i32)))
  (memory (export "memory") 2)
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    (call $request (i32.const 0) (i32.const 100))
    (call $log (i32.const 100) (local.get $len))
    (call $error (i32.const 100) (local.get $len))
    (i32.const 0)))"#;
    wat::parse_str(wat).expect("the text of a test module must be valid")
}

/// One that makes a host call `kubernetes/<operation>` in every evaluation, and fails with the reply or the error.
pub fn asking(operation: &str, payload: &str) -> Vec<u8> {
    let words = ["kubewarden", "kubernetes", operation, payload];
    let mut at = 1024;
    let mut args = String::new();
    for word in words {
        args.push_str(&format!("(i32.const {at}) (i32.const {}) ", word.len()));
        at += word.len();
    }
    let bytes: String = words
        .concat()
        .bytes()
        .map(|b| format!("\\{b:02x}"))
        .collect();
    let wat = format!(
        r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__guest_error" (func $fail (param i32 i32)))
  (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_response_len" (func $reply_len (result i32)))
  (import "wapc" "__host_response" (func $reply (param i32)))
  (import "wapc" "__host_error_len" (func $error_len (result i32)))
  (import "wapc" "__host_error" (func $error (param i32)))
  (memory (export "memory") 64)
  (data (i32.const 0) "{{\"valid\":true}}")
  (data (i32.const 1024) "{bytes}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    ;; "validate_settings" has 17 letters.
    (if (i32.eq (local.get $op) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    (if (call $ask {args})
      (then (call $reply (i32.const 65536)) (call $fail (i32.const 65536) (call $reply_len)))
      (else (call $error (i32.const 65536)) (call $fail (i32.const 65536) (call $error_len))))
    (i32.const 0)))"#
    );
    wat::parse_str(wat).expect("the text of a test module must be valid")
}

/// The module of an example policy.
pub fn example(policy: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
    let file = file.join(policy).join("policy.wasm");
    fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// One that takes long to compile: `functions` functions of straight-line code.
pub fn large(functions: usize) -> Vec<u8> {
    let body =
        "(local.set 0 (i32.mul (i32.add (local.get 0) (i32.const 7)) (i32.const 3)))".repeat(150);
    let function =
        |n| format!("(func (export \"f{n}\") (param i32) (result i32) {body} (local.get 0))");
    let functions: String = (0..functions).map(function).collect();
    build(&Guest {
        more: &functions,
        ..Guest::default()
    })
}

/// Bytes that are no module at all.
pub fn garbage() -> Vec<u8> {
    b"this is not WebAssembly".to_vec()
}

/// The message of [`strict_settings`].
pub const REFUSED: &str = "{\"valid\":false,\"message\":\"no such setting here\"}";

struct Guest<'a> {
    verdict: &'a str,
    valid: &'a str,
    on_settings: &'a str,
    salt: &'a str,
    more: &'a str,
}

impl Default for Guest<'_> {
    fn default() -> Self {
        Self {
            verdict: "{\"accepted\":true}",
            valid: "{\"valid\":true}",
            on_settings: "",
            salt: "",
            more: "",
        }
    }
}

fn build(guest: &Guest<'_>) -> Vec<u8> {
    let text = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"");
    assert_eq!(REFUSED.len(), 48, "its length stands in the code above");
    let Guest {
        verdict,
        valid,
        on_settings,
        salt,
        more,
    } = guest;
    let wat = format!(
        r#"(module
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (import "wapc" "__guest_response" (func $response (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "{verdict_text}")
  (data (i32.const 60000) "{valid_text}")
  (data (i32.const 61000) "{refused_text}")
  (data (i32.const 62000) "{salt}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    ;; "validate" has 8 letters, "validate_settings" has 17.
    (if (i32.eq (local.get $op) (i32.const 8)) (then
      (call $response (i32.const 0) (i32.const {verdict_len})) (return (i32.const 1))))
    {on_settings}
    (call $response (i32.const 60000) (i32.const {valid_len}))
    (i32.const 1))
  {more})"#,
        verdict_text = text(verdict),
        valid_text = text(valid),
        refused_text = text(REFUSED),
        verdict_len = verdict.len(),
        valid_len = valid.len(),
    );
    wat::parse_str(wat).expect("the text of a test module must be valid")
}
