#![allow(clippy::unwrap_used)]
use super::*;

fn module(text: &str) -> Inspection {
    inspect(&wat::parse_str(text).unwrap()).unwrap()
}

fn with_metadata(metadata: &str, rest: &str) -> Inspection {
    let escaped: String = metadata
        .bytes()
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    module(&format!(
        r#"(module (@custom "io.kubewarden.metadata" "{escaped}") {rest})"#
    ))
}

#[track_caller]
fn check(inspection: &Inspection, abi: Option<Abi>, problem: &str) {
    assert_eq!(inspection.abi, abi);
    let found = inspection.problem.as_deref().unwrap_or_default();
    assert_eq!(found.is_empty(), problem.is_empty(), "{found}");
    assert!(found.contains(problem), "{found}");
}

const WAPC: &str = r#"(import "wapc" "__guest_error" (func (param i32 i32))) (memory (export "memory") 1)
    (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0))"#;
const OPA: &str = r#"(import "env" "memory" (memory 2)) (import "env" "opa_abort" (func (param i32)))
    (func (export "opa_json_parse")) (func (export "opa_malloc")) (func (export "opa_eval_ctx_new"))"#;
const WASI: &str = r#"(import "wasi_snapshot_preview1" "proc_exit" (func (param i32))) (memory (export "memory") 1)
    (func (export "_start"))"#;

#[test]
fn abis_are_recognised_by_imports_and_exports() {
    check(&module(&format!("(module {WAPC})")), Some(Abi::Wapc), "");
    check(&module(&format!("(module {OPA})")), Some(Abi::Opa), "");
    check(&module(&format!("(module {WASI})")), Some(Abi::Wasi), "");
    check(&module("(module)"), None, "imports nothing");
    check(&module(r#"(module (import "a" "b" (func)))"#), None, "a.b");
}

#[test]
fn modules_must_not_export_names_of_the_host() {
    let exports = r#"(global (export "assent:memory-cap") (mut i32) (i32.const 9))"#;
    check(
        &module(&format!("(module {WAPC} {exports})")),
        Some(Abi::Wapc),
        "a name that is the host's own",
    );
}

#[test]
fn metadata_takes_precedence_over_imports_and_exports() {
    let gatekeeper = with_metadata(
        r#"{"protocolVersion":"v1","executionMode":"gatekeeper","rules":[]}"#,
        OPA,
    );
    check(&gatekeeper, Some(Abi::Gatekeeper), "");
    assert_eq!(
        gatekeeper.metadata.unwrap().execution_mode.as_deref(),
        Some("gatekeeper")
    );
    check(&with_metadata("{}", WAPC), Some(Abi::Wapc), "");
    check(
        &with_metadata(r#"{"executionMode":"wasi"}"#, WAPC),
        Some(Abi::Wasi),
        "must export _start",
    );
    check(
        &with_metadata(r#"{"executionMode":"gatekeeper"}"#, WASI),
        Some(Abi::Gatekeeper),
        "must export",
    );
}

#[test]
fn invalid_metadata_is_a_problem() {
    check(
        &with_metadata("nonsense", WAPC),
        None,
        "failed to parse the metadata",
    );
    check(
        &with_metadata(r#"{"executionMode":"future"}"#, WAPC),
        None,
        "future",
    );
    check(
        &with_metadata(r#"{"protocolVersion":"v2"}"#, WAPC),
        None,
        "v2",
    );
}

/// `kwctl annotate` writes `Unknown` into modules whose ABI has no version of its own.
#[test]
fn only_wapc_modules_need_a_known_protocol_version() {
    for (mode, rest, abi) in [
        ("opa", OPA, Abi::Opa),
        ("gatekeeper", OPA, Abi::Gatekeeper),
        ("wasi", WASI, Abi::Wasi),
    ] {
        for version in [r#""Unknown""#, r#""v1""#, "null"] {
            let metadata = format!(r#"{{"protocolVersion":{version},"executionMode":"{mode}"}}"#);
            check(&with_metadata(&metadata, rest), Some(abi), "");
        }
        let metadata = format!(r#"{{"executionMode":"{mode}"}}"#);
        check(&with_metadata(&metadata, rest), Some(abi), "");
        let metadata = format!(r#"{{"protocolVersion":"v2","executionMode":"{mode}"}}"#);
        check(&with_metadata(&metadata, rest), None, "v2");
    }
    let unknown = r#"{"protocolVersion":"Unknown"}"#;
    check(&with_metadata(unknown, WAPC), None, "Unknown");
}

#[test]
fn rego_modules_must_have_the_first_major_version_of_the_abi() {
    let version = |global: &str| module(&format!("(module {OPA} {global})"));
    let exported =
        |value: i32| format!(r#"(global (export "opa_wasm_abi_version") i32 (i32.const {value}))"#);
    check(&version(&exported(1)), Some(Abi::Opa), "");
    check(
        &version(&exported(2)),
        Some(Abi::Opa),
        "version 2 of OPA's ABI",
    );
    check(
        &version(&exported(0)),
        Some(Abi::Opa),
        "version 0 of OPA's ABI",
    );
    // The index counts imported globals first, and only the value of a constant is known.
    let other = format!("(global i32 (i32.const 7)) {}", exported(2));
    check(&version(&other), Some(Abi::Opa), "version 2");
    let wide = r#"(global (export "opa_wasm_abi_version") i64 (i64.const 1))"#;
    check(&version(wide), Some(Abi::Opa), "can't be read");
    let function = r#"(func (export "opa_wasm_abi_version"))"#;
    check(&version(function), Some(Abi::Opa), "can't be read");
    // The minor version decides nothing: functions are looked for by their names.
    let minor = r#"(global (export "opa_wasm_abi_minor_version") i32 (i32.const 9))"#;
    check(&version(minor), Some(Abi::Opa), "");
    // waPC modules may export what they like.
    let text = format!("(module {WAPC} {})", exported(2));
    check(&module(&text), Some(Abi::Wapc), "");
}

#[test]
fn metadata_may_be_null_where_it_may_be_absent() {
    let nulls = r#"{"protocolVersion":"v1","rules":null,"annotations":null,"mutating":null,"contextAwareResources":null,"hostCapabilities":null,"policyType":null,"new":1}"#;
    check(&with_metadata(nulls, WAPC), Some(Abi::Wapc), "");
}

#[test]
fn host_capabilities_are_parsed() {
    let inspection = with_metadata(r#"{"hostCapabilities":["net/*"],"policyType":"raw"}"#, WAPC);
    assert_eq!(
        inspection.host_capabilities(),
        Some(&["net/*".to_owned()][..])
    );
    assert_eq!(
        inspection.metadata.unwrap().policy_type,
        crate::PolicyType::Raw
    );
}

#[test]
fn empty_list_of_host_capabilities_differs_from_none() {
    let listed = |metadata: &str| {
        let inspection = with_metadata(metadata, WAPC);
        inspection.host_capabilities().map(<[String]>::len)
    };
    assert_eq!(listed(r#"{"hostCapabilities":[]}"#), Some(0));
    assert_eq!(listed(r#"{"hostCapabilities":null}"#), None);
    assert_eq!(listed("{}"), None);
    assert_eq!(
        module(&format!("(module {WAPC})")).host_capabilities(),
        None
    );
}

#[test]
fn modules_that_need_objects_are_recognised() {
    let declared = r#"{"contextAwareResources":[{"apiVersion":"v1","kind":"Namespace"},{"apiVersion":"apps/v1","kind":"Deployment"}]}"#;
    assert_eq!(
        with_metadata(declared, WAPC).required_context().unwrap(),
        "the module's metadata declares that it reads Namespace (v1), Deployment (apps/v1)"
    );
    let constants = |mode: &str, text: &str| {
        let data = format!(r#"(data (i32.const 0) "{text}")"#);
        let metadata = format!(r#"{{"executionMode":"{mode}"}}"#);
        with_metadata(&metadata, &data).required_context()
    };
    let reads = Some("the module reads data.inventory".to_owned());
    assert_eq!(constants("gatekeeper", "review\\00inventory\\00"), reads);
    assert_eq!(constants("gatekeeper", "inventory\\00msg\\00"), reads);
    for other in ["no inventory\\00", "inventory-policy\\00", "msg\\00"] {
        assert_eq!(constants("gatekeeper", other), None, "{other}");
    }
    // Data of these are the settings.
    assert_eq!(constants("opa", "inventory\\00"), None);
    assert_eq!(with_metadata("{}", WAPC).required_context(), None);
}

#[test]
fn unknown_imports_are_named() {
    let text = format!(r#"(module (import "env" "surprise" (func)) {WAPC})"#);
    check(&module(&text), Some(Abi::Wapc), "env.surprise");
}

#[test]
fn the_digest_is_that_of_the_bytes() {
    let wasm = wat::parse_str("(module)").unwrap();
    let inspection = inspect(&wasm).unwrap();
    assert_eq!(
        inspection.digest,
        "sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"
    );
    assert_eq!(inspection.size, 8);
}

#[test]
fn a_module_that_is_too_large_is_refused() {
    assert!(matches!(
        inspect(&vec![0; MAX_MODULE_BYTES + 1]),
        Err(InspectError::TooLarge { .. })
    ));
}
