//! Tiny waPC policies, one behaviour each.

/// Accepts everything.
pub(crate) fn accept() -> Vec<u8> {
    guest(r#"{"accepted":true}"#, "")
}

/// Denies everything with this message.
pub(crate) fn deny(message: &str) -> Vec<u8> {
    guest(
        &format!(r#"{{"accepted":false,"message":"{message}"}}"#),
        "",
    )
}

/// Labels every object.
pub(crate) fn mutate() -> Vec<u8> {
    guest(
        r#"{"accepted":true,"mutated_object":{"kind":"Pod","labelled":true}}"#,
        "",
    )
}

/// Crashes on real requests, which are larger than the self-test's.
pub(crate) fn crash_later() -> Vec<u8> {
    guest(r#"{"accepted":true}"#, &on_large("unreachable"))
}

/// Does not end on real requests.
pub(crate) fn loop_later() -> Vec<u8> {
    guest(r#"{"accepted":true}"#, &on_large("(loop $l (br $l))"))
}

/// Takes a second to accept its settings.
pub(crate) fn slow_settings() -> Vec<u8> {
    // A subscription to the clock: kind 0, the monotonic clock, 10^9 ns.
    let source = r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{\22valid\22:true}")
  (data (i32.const 64) "{\22accepted\22:true}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    (if (i32.ne (local.get $op) (i32.const 17))
      (then (call $respond (i32.const 64) (i32.const 17)) (return (i32.const 1))))
    (i32.store (i32.const 144) (i32.const 1))
    (i64.store (i32.const 152) (i64.const 1000000000))
    (drop (call $poll (i32.const 128) (i32.const 256) (i32.const 1) (i32.const 512)))
    (call $respond (i32.const 0) (i32.const 14))
    (i32.const 1)))"#;
    wat::parse_str(source).unwrap()
}

/// Takes `pages` of 64 KiB for real requests, and spins with them until its deadline if `spins`.
pub(crate) fn hungry(pages: u32, spins: bool) -> Vec<u8> {
    let spin = if spins { "(loop $l (br $l))" } else { "" };
    let grow = format!(
        "(if (i32.eq (memory.grow (i32.const {pages})) (i32.const -1)) (then unreachable)) {spin}"
    );
    guest(r#"{"accepted":true}"#, &on_large(&grow))
}

/// Crashes on everything.
pub(crate) fn crash() -> Vec<u8> {
    guest("{}", "unreachable")
}

/// Refuses its settings.
pub(crate) fn bad_settings() -> Vec<u8> {
    wat(r#"{"valid":false,"message":"no such setting"}"#, "{}", "")
}

/// Makes a host call and fails with the answer or the error as its message.
pub(crate) fn ask(namespace: &str, operation: &str, payload: &str) -> Vec<u8> {
    asking(namespace, operation, payload, "")
}

/// Makes a host call and crashes if it fails.
pub(crate) fn insist(namespace: &str, operation: &str, payload: &str) -> Vec<u8> {
    asking(namespace, operation, payload, "unreachable")
}

fn asking(namespace: &str, operation: &str, payload: &str, refused: &str) -> Vec<u8> {
    let binding = "kubewarden";
    let bytes: String = [binding, namespace, operation, payload].concat();
    let bytes: String = bytes.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let mut at = 1024;
    let mut args = String::new();
    for part in [binding, namespace, operation, payload] {
        args.push_str(&format!("(i32.const {at}) (i32.const {}) ", part.len()));
        at += part.len();
    }
    let source = format!(
        r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__guest_error" (func $fail (param i32 i32)))
  (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_response_len" (func $reply_len (result i32)))
  (import "wapc" "__host_response" (func $reply (param i32)))
  (import "wapc" "__host_error_len" (func $error_len (result i32)))
  (import "wapc" "__host_error" (func $error (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 0) "{{\"valid\":true}}")
  (data (i32.const 1024) "{bytes}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    (if (i32.eq (local.get $op) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    (if (call $ask {args})
      (then (call $reply (i32.const 65536)) (call $fail (i32.const 65536) (call $reply_len)))
      (else {refused} (call $error (i32.const 65536)) (call $fail (i32.const 65536) (call $error_len))))
    (i32.const 0)))"#
    );
    wat::parse_str(source).unwrap()
}

fn on_large(code: &str) -> String {
    format!("(if (i32.gt_u (local.get $len) (i32.const 3000)) (then {code}))")
}

fn guest(answer: &str, before: &str) -> Vec<u8> {
    wat(r#"{"valid":true}"#, answer, before)
}

fn wat(settings: &str, answer: &str, before: &str) -> Vec<u8> {
    let text = |json: &str| json.replace('\\', "\\\\").replace('"', "\\\"");
    let source = format!(
        r#"(module
  (import "wapc" "__guest_request" (func $request (param i32 i32)))
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "{settings_text}")
  (data (i32.const 1024) "{answer_text}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    (if (i32.eq (local.get $op) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const {settings_len})) (return (i32.const 1))))
    {before}
    (call $respond (i32.const 1024) (i32.const {answer_len}))
    (i32.const 1)))"#,
        settings_text = text(settings),
        answer_text = text(answer),
        settings_len = settings.len(),
        answer_len = answer.len(),
    );
    wat::parse_str(source).unwrap()
}
