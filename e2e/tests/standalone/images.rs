//! A policy that asks about images, on this machine, with a real registry.

use std::fs;

use assent_e2e::{
    process::{assent, text},
    registry::Registry,
};

/// A policy that asks for an image's digest, and fails with what it heard.
fn guest(image: &str) -> Vec<u8> {
    let payload = format!("\"{image}\"");
    let words = ["kubewarden", "oci", "v1/manifest_digest", &payload];
    let mut at = 1024;
    let mut args = String::new();
    for word in words {
        args.push_str(&format!("(i32.const {at}) (i32.const {}) ", word.len()));
        at += word.len();
    }
    let bytes = words.concat().replace('"', "\\\"");
    let metadata = r#"{\"rules\":[],\"mutating\":false,\"hostCapabilities\":[\"oci/*\"]}"#;
    let text = format!(
        r#"(module
  (@custom "io.kubewarden.metadata" "{metadata}")
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__guest_error" (func $fail (param i32 i32)))
  (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_response_len" (func $reply_len (result i32)))
  (import "wapc" "__host_response" (func $reply (param i32)))
  (import "wapc" "__host_error_len" (func $error_len (result i32)))
  (import "wapc" "__host_error" (func $error (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "{{\"valid\":true}}")
  (data (i32.const 1024) "{bytes}")
  (func (export "__guest_call") (param $op i32) (param $len i32) (result i32)
    (if (i32.eq (local.get $op) (i32.const 17))
      (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
    (if (call $ask {args})
      (then (call $reply (i32.const 65536)) (call $fail (i32.const 65536) (call $reply_len)))
      (else (call $error (i32.const 65536)) (call $fail (i32.const 65536) (call $error_len))))
    (i32.const 0)))"#
    );
    wat::parse_str(text).expect("the text must be a module")
}

#[tokio::test(flavor = "multi_thread")]
async fn run_answers_host_calls_about_images() {
    let registry = Registry::start().await;
    let url = registry.push_example("nopriv:v1", "no-privileged").await;
    let dir = tempfile::tempdir().expect("a directory must be made");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let image = url.trim_start_matches("registry://");
    fs::write(path("guest.wasm"), guest(image)).expect("a file must be written");
    let request = r#"{"uid":"1","operation":"CREATE","object":{}}"#;
    fs::write(path("request.json"), request).expect("a file must be written");
    let (guest, request) = (path("guest.wasm"), path("request.json"));
    let run = ["run", &guest, "--request", &request];

    let address = registry.address.to_string();
    let answered = text(&assent(
        &[&run[..], &["--insecure-source", &address]].concat(),
    ));
    assert!(answered.contains(r#"{"digest":"sha256:"#), "{answered}");
    // What nobody declared is not asked without encryption.
    let refused = text(&assent(&run));
    assert!(!refused.contains("sha256:"), "{refused}");
}
