//! Vetting in real child processes.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use assent_modules::vet::{
    Bounds, Compiled, Error, Refused, Stage, VetLimits, VetReport, VetRequest, Vetter,
};
use assent_wasm::{Engine, EngineConfig};
use bytes::Bytes;

mod cage;
mod limits;
mod orphan;

const CHILD: &str = env!("CARGO_BIN_EXE_assent-vet");

/// A waPC policy: `settings` and `validate` are what it does when it is asked.
fn policy(settings: &str, validate: &str) -> Bytes {
    let wat = format!(
        r#"(module
          (import "wapc" "__guest_response" (func $respond (param i32 i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "{{\"valid\":true}}")
          (data (i32.const 64) "{{\"valid\":false,\"message\":\"replicas must be positive\"}}")
          (data (i32.const 192) "{{\"accepted\":true}}")
          (func $good (call $respond (i32.const 0) (i32.const 14)))
          (func $bad (call $respond (i32.const 64) (i32.const 53)))
          (func $accept (call $respond (i32.const 192) (i32.const 17)))
          (func $endless (loop (br 0)))
          (func $hoard (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable)
          (func $large
            (if (i32.eq (memory.grow (i32.const 4800)) (i32.const -1)) (then unreachable))
            (call $good))
          (func $trap unreachable)
          (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
            ;; "validate_settings" has 17 letters, "validate" 8.
            (if (i32.eq (local.get $operation) (i32.const 17)) (then (call ${settings})))
            (if (i32.eq (local.get $operation) (i32.const 8)) (then (call ${validate})))
            (i32.const 1)))"#
    );
    wat::parse_str(wat).unwrap().into()
}

fn vetter() -> Vetter {
    Vetter::new(CHILD.into(), Vec::new())
}

/// Vets by a shell script, in the place of a child that misbehaves.
fn script(script: &str, bounds: Bounds) -> Vetter {
    let args = vec!["-c".to_owned(), script.to_owned()];
    Vetter::new("/bin/sh".into(), args).with_bounds(bounds)
}

/// A child that has read its order and waits for the rest of the module.
struct WaitingChild {
    process: Child,
    _input: ChildStdin,
}

impl WaitingChild {
    fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for WaitingChild {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A directory in which every user may write: children of root are another user.
fn public_dir() -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

async fn waiting_child(bounds: Bounds) -> WaitingChild {
    let dir = public_dir();
    let saved = dir.path().join("order");
    // What a child gets on its standard input, for a child whose input stays open.
    let save = script(&format!("cat > {}", saved.display()), bounds);
    save.vet(policy("good", "accept"), &request())
        .await
        .unwrap_err();
    let mut process = Command::new(CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(&fs::read(saved).unwrap()).unwrap();
    WaitingChild {
        process,
        _input: input,
    }
}

fn request() -> VetRequest {
    VetRequest {
        limits: VetLimits {
            timeout_ms: 200,
            ..VetLimits::default()
        },
        ..VetRequest::new("{}")
    }
}

async fn accepted(module: Bytes, request: &VetRequest) -> Compiled {
    match vetter().vet(module, request).await.unwrap() {
        VetReport::Accepted(compiled) => *compiled,
        VetReport::Refused { refused, .. } => panic!("{refused:?}"),
    }
}

async fn refused_by(vetter: &Vetter, module: Bytes, request: &VetRequest) -> Refused {
    match vetter.vet(module, request).await.unwrap() {
        VetReport::Accepted(compiled) => panic!("{compiled:?}"),
        VetReport::Refused { refused, .. } => refused,
    }
}

#[track_caller]
fn check(refused: &Refused, stage: Stage, words: &str) {
    assert_eq!(refused.stage, stage, "{refused:?}");
    assert!(refused.message.contains(words), "{refused:?}");
}

#[tokio::test]
async fn a_good_module_is_accepted_and_compiled() {
    let module = policy("good", "accept");
    let accepted = accepted(module.clone(), &request()).await;
    assert_eq!(accepted.facts.abi, "wapc");
    assert_eq!(accepted.facts.size, module.len() as u64);
    assert_eq!(accepted.facts.metadata, None);
    let artefact = accepted.artefact.unwrap();
    let engine = Engine::new(EngineConfig::small()).unwrap();
    assert_eq!(artefact.engine, engine.fingerprint());
    let loaded = engine.load(&artefact.bytes, artefact.digest.as_bytes());
    assert_eq!(loaded.unwrap().inspection().size, module.len() as u64);
}

#[tokio::test]
async fn an_artefact_comes_only_when_it_is_asked_for() {
    let request = VetRequest {
        artefact: false,
        ..request()
    };
    let accepted = accepted(policy("good", "accept"), &request).await;
    assert!(accepted.artefact.is_none());
}

#[tokio::test]
async fn module_that_is_only_compiled_is_not_called() {
    let request = VetRequest {
        limits: request().limits,
        ..VetRequest::compile()
    };
    let accepted = accepted(policy("trap", "trap"), &request).await;
    assert!(accepted.artefact.is_some());
}

#[tokio::test]
async fn metadata_is_reported() {
    let mut module = policy("good", "accept").to_vec();
    let json = br#"{"protocolVersion":"v1","mutating":true,"hostCapabilities":["oci/v1/verify"],"policyType":"kubernetes"}"#;
    module.extend(custom_section("io.kubewarden.metadata", json));
    let accepted = accepted(module.into(), &request()).await;
    let metadata = accepted.facts.metadata.unwrap();
    assert!(metadata.mutating);
    assert_eq!(metadata.host_capabilities.unwrap(), ["oci/v1/verify"]);
}

/// A policy that crashes unless it may ask for an address.
fn resolver(metadata: Option<&str>) -> Bytes {
    let wat = r#"(module
          (import "wapc" "__guest_response" (func $respond (param i32 i32)))
          (import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 1)
          (data (i32.const 0) "{\"valid\":true}")
          (data (i32.const 64) "kubewardennetv1/dns_lookup_host{\"host\":\"example.com\"}")
          (func (export "__guest_call") (param $operation i32) (param i32) (result i32)
            (if (i32.eq (local.get $operation) (i32.const 8)) (then
              (if (i32.eqz (call $call (i32.const 64) (i32.const 10) (i32.const 74) (i32.const 3)
                    (i32.const 77) (i32.const 18) (i32.const 95) (i32.const 22)))
                (then unreachable))))
            (call $respond (i32.const 0) (i32.const 14))
            (i32.const 1)))"#;
    let mut module = wat::parse_str(wat).unwrap();
    if let Some(json) = metadata {
        module.extend(custom_section("io.kubewarden.metadata", json.as_bytes()));
    }
    module.into()
}

#[tokio::test]
async fn module_is_vetted_with_the_calls_that_it_will_have() {
    let granting = |granted: &[&str]| VetRequest {
        granted_capabilities: granted.iter().map(|one| (*one).to_owned()).collect(),
        ..request()
    };
    let listed = r#"{"protocolVersion":"v1","hostCapabilities":["net/*"]}"#;
    // There is no network here, which is not the module's fault.
    for metadata in [None, Some(listed)] {
        accepted(resolver(metadata), &granting(&["net/*"])).await;
    }
    // Its list grants nothing, and it is bound by it.
    let other = r#"{"protocolVersion":"v1","hostCapabilities":["oci/*"]}"#;
    for (metadata, granted) in [
        (None, &["oci/*"][..]),
        (Some(listed), &["oci/*"]),
        (Some(other), &["net/*"]),
    ] {
        let refused = refused_by(&vetter(), resolver(metadata), &granting(granted)).await;
        check(&refused, Stage::SelfTest, "unreachable");
    }
}

#[tokio::test]
async fn need_of_other_objects_is_reported() {
    let mut module = policy("good", "accept").to_vec();
    let json = br#"{"protocolVersion":"v1","contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"}]}"#;
    module.extend(custom_section("io.kubewarden.metadata", json));
    let compiled = accepted(module.into(), &request()).await;
    let why = compiled.facts.required_context.unwrap();
    assert!(why.contains("Namespace (v1)"), "{why}");
    // The artefact knows it too.
    let artefact = compiled.artefact.unwrap().bytes;
    match vetter().vet_compiled(artefact, &request()).await.unwrap() {
        VetReport::Accepted(compiled) => assert_eq!(compiled.facts.required_context, Some(why)),
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn refused_settings_come_with_the_modules_words() {
    let refused = refused_by(&vetter(), policy("bad", "accept"), &request()).await;
    check(&refused, Stage::Settings, "replicas must be positive");
}

#[tokio::test]
async fn settings_that_are_no_json_are_refused() {
    let request = VetRequest {
        settings_json: "{".to_owned(),
        ..request()
    };
    let refused = refused_by(&vetter(), policy("good", "accept"), &request).await;
    check(&refused, Stage::Settings, "not JSON");
}

#[tokio::test]
async fn guests_that_misbehave_are_stopped_at_their_limits() {
    for (settings, validate, stage, words) in [
        ("endless", "accept", Stage::Settings, "within 200 ms"),
        ("hoard", "accept", Stage::Settings, "memory"),
        ("trap", "accept", Stage::Settings, "unreachable"),
        ("good", "endless", Stage::SelfTest, "within 200 ms"),
        ("good", "hoard", Stage::SelfTest, "memory"),
        ("good", "trap", Stage::SelfTest, "unreachable"),
    ] {
        let refused = refused_by(&vetter(), policy(settings, validate), &request()).await;
        check(&refused, stage, words);
    }
}

#[tokio::test]
async fn what_is_no_module_is_refused() {
    for bytes in [b"".as_slice(), b"#!/bin/sh\n", b"\0asm\x01\0\0\0\xff"] {
        let refused = refused_by(&vetter(), Bytes::from_static(bytes), &request()).await;
        check(&refused, Stage::Inspect, "failed to parse");
    }
}

#[tokio::test]
async fn the_wrong_abi_is_refused() {
    let empty = Bytes::from_static(b"\0asm\x01\0\0\0");
    let refused = refused_by(&vetter(), empty, &request()).await;
    check(&refused, Stage::Inspect, "fits no known ABI");
    let request = VetRequest {
        abi: Some("opa".to_owned()),
        ..request()
    };
    let refused = refused_by(&vetter(), policy("good", "accept"), &request).await;
    check(&refused, Stage::Inspect, "wapc, not opa");
}

#[tokio::test]
async fn a_module_that_the_compiler_refuses_is_refused() {
    // The last `i32.const 1` becomes an `i64.const 1`: well-formed, but not valid.
    let mut module = policy("good", "accept").to_vec();
    let end = [0x41, 1, 0x0b];
    let at = module.windows(3).rposition(|bytes| bytes == end).unwrap();
    module[at] = 0x42;
    let refused = refused_by(&vetter(), module.into(), &request()).await;
    check(&refused, Stage::Compile, "failed to compile");
}

#[tokio::test]
async fn a_child_that_dies_refuses_only_its_module() {
    let module = policy("good", "accept");
    let killed = script("kill -9 $$", Bounds::default());
    let refused = refused_by(&killed, module.clone(), &request()).await;
    check(&refused, Stage::Crashed, "crashed while being vetted");
    check(&refused, Stage::Crashed, "signal: 9");
    let failed = script("cat > /dev/null; exit 7", Bounds::default());
    let refused = refused_by(&failed, module, &request()).await;
    check(&refused, Stage::Crashed, "exit status: 7");
}

#[tokio::test]
async fn a_child_that_does_not_end_is_ended() {
    let bounds = Bounds {
        deadline: Duration::from_millis(100),
        ..Bounds::default()
    };
    let hung = script("exec sleep 600", bounds);
    let refused = refused_by(&hung, policy("good", "accept"), &request()).await;
    check(&refused, Stage::TimedOut, "took too long to vet");
}

#[tokio::test]
async fn child_that_uses_up_its_processor_time_took_too_long() {
    // The signal that the kernel sends at the limit of processor time.
    let slow = script("kill -XCPU $$", Bounds::default());
    let refused = refused_by(&slow, policy("good", "accept"), &request()).await;
    check(&refused, Stage::TimedOut, "took too long to vet");
    check(&refused, Stage::TimedOut, "s of processor time");
}

#[tokio::test]
async fn compiled_module_is_vetted_without_compiling_it_again() {
    let module = policy("good", "accept");
    let first = accepted(module.clone(), &request()).await;
    let artefact = first.artefact.unwrap().bytes;
    let report = vetter().vet_compiled(artefact, &request()).await.unwrap();
    let VetReport::Accepted(again) = report else {
        panic!("{report:?}");
    };
    assert_eq!(again.facts, first.facts);
    assert!(again.artefact.is_none());
}

#[tokio::test]
async fn refused_settings_leave_an_artefact_that_other_settings_can_use() {
    let vetter = vetter();
    let module = policy("bad", "accept");
    let report = vetter.vet(module, &request()).await.unwrap();
    let VetReport::Refused { refused, compiled } = report else {
        panic!("{report:?}");
    };
    check(&refused, Stage::Settings, "replicas must be positive");
    let artefact = compiled.unwrap().artefact.unwrap().bytes;
    let report = vetter.vet_compiled(artefact, &request()).await.unwrap();
    let VetReport::Refused { refused, .. } = report else {
        panic!("{report:?}");
    };
    check(&refused, Stage::Settings, "replicas must be positive");
}

#[tokio::test]
async fn artefact_that_does_not_load_says_nothing_about_the_module() {
    let artefact = Bytes::from_static(b"no artefact");
    let report = vetter().vet_compiled(artefact, &request()).await;
    assert!(matches!(report, Err(Error::Child(_))), "{report:?}");
}

#[tokio::test]
async fn a_child_has_only_the_memory_it_is_given() {
    let mut request = request();
    request.limits.memory_bytes = 512 << 20;
    // Takes 300 MiB: within its own limit, but not within that of the process.
    let large = policy("large", "accept");
    accepted(large.clone(), &request).await;
    let bounds = Bounds {
        memory_bytes: 256 << 20,
        ..Bounds::default()
    };
    let refused = refused_by(&vetter().with_bounds(bounds), large, &request).await;
    check(&refused, Stage::Settings, "memory");
}

#[tokio::test]
async fn a_child_that_can_not_begin_does_not_blame_the_module() {
    let bounds = Bounds {
        // Less than the stack of the engine's clock.
        memory_bytes: 1 << 20,
        ..Bounds::default()
    };
    let vetter = vetter().with_bounds(bounds);
    let report = vetter.vet(policy("good", "accept"), &request()).await;
    assert!(matches!(report, Err(Error::Child(_))), "{report:?}");
}

#[tokio::test]
async fn a_child_has_no_environment() {
    // Cargo gives its tests plenty; a shell makes up PWD and the like by itself.
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let script = script(
        "test -z \"$CARGO_PKG_NAME$HOME\" || exit 9",
        Bounds::default(),
    );
    let report = script.vet(policy("good", "accept"), &request()).await;
    assert!(matches!(report, Err(Error::Report { .. })), "{report:?}");
}

#[tokio::test]
async fn children_take_turns() {
    let dir = public_dir();
    let lock = dir.path().join("lock");
    let lock = lock.display();
    let body = format!("mkdir {lock} || exit 9; cat > /dev/null; sleep 0.1; rmdir {lock}");
    let vetter = script(&body, Bounds::default());
    let request = request();
    let vets = (0..4).map(|_| vetter.vet(policy("good", "accept"), &request));
    for report in futures::future::join_all(vets).await {
        // Says nothing, but ended well: it was alone.
        assert!(matches!(report, Err(Error::Report { .. })), "{report:?}");
    }
}

#[tokio::test]
async fn a_missing_or_wrong_program_says_nothing_about_the_module() {
    let missing = Vetter::new(Path::new("/nonexistent/assent").into(), Vec::new());
    let report = missing.vet(policy("good", "accept"), &request()).await;
    assert!(matches!(report, Err(Error::Start { .. })), "{report:?}");
    let wrong = script("cat > /dev/null; echo usage", Bounds::default());
    let report = wrong.vet(policy("good", "accept"), &request()).await;
    assert!(matches!(report, Err(Error::Report { .. })), "{report:?}");
}

fn custom_section(name: &str, content: &[u8]) -> Vec<u8> {
    let mut body = leb128(name.len());
    body.extend(name.as_bytes());
    body.extend(content);
    let mut section = vec![0];
    section.extend(leb128(body.len()));
    section.extend(body);
    section
}

fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
