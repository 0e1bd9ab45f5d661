//! waPC: payloads, answers, mutation, host calls.

use std::sync::Arc;

use assent_wasm::{Abi, EvalError, HostServices, PolicySpec, Review, Stage, Verdict};

use crate::guests::{
    FREE, answering, evaluate, failure, host_caller, pod, policy, raw, spec, vet, wapc, wapc_with,
};

fn wapc_spec() -> PolicySpec {
    spec(Abi::Wapc)
}

fn mutating() -> PolicySpec {
    PolicySpec {
        mutating: true,
        ..wapc_spec()
    }
}

#[test]
fn a_full_answer_becomes_a_verdict() {
    let answer = r#"{"accepted":false,"message":"no","code":418,"audit_annotations":{"k":"v"},"warnings":["w"],"new_field":1}"#;
    let verdict = evaluate(&answering(answer), wapc_spec()).unwrap();
    let expected = Verdict {
        allowed: false,
        code: Some(418),
        message: Some("no".to_owned()),
        patch: None,
        warnings: vec!["w".to_owned()],
        audit_annotations: [("k".to_owned(), "v".to_owned())].into(),
        causes: vec![],
        effects: None,
    };
    assert_eq!(verdict, expected);
}

#[test]
fn nulls_are_absent() {
    let answer = r#"{"accepted":true,"message":null,"code":null,"mutated_object":null,"audit_annotations":null,"warnings":null}"#;
    let verdict = evaluate(&answering(answer), wapc_spec()).unwrap();
    assert_eq!(
        verdict,
        Verdict {
            allowed: true,
            ..Verdict::default()
        }
    );
}

#[test]
fn the_guest_gets_the_request_as_it_was_sent() {
    let echo = format!(
        "(call $request (i32.const {FREE}) (i32.const {0})) (call $error (i32.const {0}) (local.get $len)) (i32.const 0)",
        FREE + 100
    );
    let settings_json = bytes::Bytes::from_static(br#"{"a":1.50}"#);
    let policy = policy(
        &wapc("", &echo),
        PolicySpec {
            settings_json,
            ..wapc_spec()
        },
    );
    let request = raw(
        r#"{"uid": "1",  "big": 123456789012345678901234567890, "options":null, "unknown": [1.10]}"#,
    );
    let error = policy
        .evaluate(&Review::admission(&request).unwrap())
        .unwrap_err();
    assert_eq!(
        error,
        EvalError::Guest(
            r#"{"request":{"uid":"1","big":123456789012345678901234567890,"unknown":[1.10]},"settings":{"a":1.50}}"#
                .to_owned()
        )
    );
}

#[test]
fn the_operation_is_named() {
    let body = format!(
        "(call $request (i32.const {FREE}) (i32.const {})) (call $error (i32.const {FREE}) (i32.const 8)) (i32.const 0)",
        FREE + 100
    );
    assert_eq!(
        failure(&wapc("", &body)),
        EvalError::Guest("validate".to_owned())
    );
}

#[test]
fn a_mutated_object_becomes_a_patch() {
    let answer = r#"{"accepted":true,"mutated_object":{"metadata":{"name":"a","labels":{"x":"1","y":"2"}}}}"#;
    let verdict = evaluate(&answering(answer), mutating()).unwrap();
    assert!(verdict.allowed);
    assert_eq!(
        String::from_utf8(verdict.patch.unwrap()).unwrap(),
        r#"[{"op":"add","path":"/metadata/labels/y","value":"2"}]"#
    );
}

#[test]
fn an_unchanged_object_is_no_mutation() {
    let answer =
        r#"{"accepted":true,"mutated_object":{"metadata":{"labels":{"x":"1"},"name":"a"}}}"#;
    let verdict = evaluate(&answering(answer), wapc_spec()).unwrap();
    assert_eq!(
        verdict,
        Verdict {
            allowed: true,
            ..Verdict::default()
        }
    );
}

#[test]
fn mutation_without_permission_is_a_denial() {
    let answer = r#"{"accepted":true,"mutated_object":{},"warnings":["kept"]}"#;
    let verdict = evaluate(&answering(answer), wapc_spec()).unwrap();
    assert!(!verdict.allowed && verdict.patch.is_none());
    assert!(verdict.message.unwrap().contains("mutating: true"));
    assert_eq!(verdict.warnings, ["kept"]);
}

#[test]
fn mutation_on_delete_is_a_denial() {
    let policy = policy(
        &answering(r#"{"accepted":true,"mutated_object":{"a":1}}"#),
        mutating(),
    );
    let request = raw(r#"{"operation":"DELETE","object":null,"oldObject":{"a":0}}"#);
    let verdict = policy
        .evaluate(&Review::admission(&request).unwrap())
        .unwrap();
    assert!(!verdict.allowed && verdict.patch.is_none());
    assert!(verdict.message.unwrap().contains("DELETE"));
}

#[test]
fn a_denial_is_not_mutated() {
    let verdict = evaluate(
        &answering(r#"{"accepted":false,"mutated_object":{}}"#),
        wapc_spec(),
    )
    .unwrap();
    assert_eq!(verdict, Verdict::default());
}

#[test]
fn a_raw_request_is_patched_as_a_whole() {
    let policy = policy(
        &answering(r#"{"accepted":true,"mutated_object":{"a":2}}"#),
        mutating(),
    );
    let request = raw(r#"{"a":1}"#);
    let verdict = policy.evaluate(&Review::raw(&request)).unwrap();
    assert_eq!(
        verdict.patch.unwrap(),
        br#"[{"op":"replace","path":"/a","value":2}]"#
    );
}

#[test]
fn the_users_message_replaces_that_of_a_denial_only() {
    let with_message = || PolicySpec {
        message: "ask the platform team".to_owned(),
        ..wapc_spec()
    };
    let denied = evaluate(
        &answering(r#"{"accepted":false,"message":"own"}"#),
        with_message(),
    )
    .unwrap();
    assert_eq!(denied.message.as_deref(), Some("ask the platform team"));
    assert_eq!(denied.causes, ["own"]);
    let allowed = evaluate(
        &answering(r#"{"accepted":true,"message":"own"}"#),
        with_message(),
    )
    .unwrap();
    assert_eq!(
        (allowed.message.as_deref(), allowed.causes.len()),
        (Some("own"), 0)
    );
}

#[test]
fn refused_settings_have_the_modules_words() {
    let guest = wapc_with(
        "",
        r#"{"valid":false,"message":"regex is missing"}"#,
        "(i32.const 0)",
        "",
    );
    let error = vet(&guest, wapc_spec()).err().unwrap();
    assert_eq!(error.stage(), Stage::Settings);
    assert_eq!(
        error.to_string(),
        "the settings are not valid: regex is missing"
    );
}

#[test]
fn a_malformed_answer_about_settings_is_a_refusal() {
    for answer in ["", "{}", "null", r#"{"valid":"yes"}"#] {
        let error = vet(&wapc_with("", answer, "(i32.const 0)", ""), wapc_spec())
            .err()
            .unwrap();
        assert_eq!(error.stage(), Stage::Settings, "{answer}");
    }
}

#[test]
fn settings_that_are_no_json_are_refused_at_once() {
    let settings_json = bytes::Bytes::from_static(b"{} , \"x\":1");
    let error = vet(
        &answering("{}"),
        PolicySpec {
            settings_json,
            ..wapc_spec()
        },
    )
    .err()
    .unwrap();
    assert_eq!(error.stage(), Stage::Settings);
}

#[test]
fn a_sound_policy_passes_vetting_whatever_its_verdict() {
    vet(&answering(r#"{"accepted":false}"#), wapc_spec()).unwrap();
    vet(
        &wapc(
            "no",
            "(call $error (i32.const 0) (i32.const 2)) (i32.const 0)",
        ),
        wapc_spec(),
    )
    .unwrap();
}

#[test]
fn a_policy_that_traps_fails_the_self_test() {
    let error = vet(&wapc("", "unreachable"), wapc_spec()).err().unwrap();
    assert_eq!(error.stage(), Stage::SelfTest);
}

#[test]
fn every_evaluation_starts_fresh() {
    let count = "(global.set $n (i32.add (global.get $n) (i32.const 1)))
         (i32.store8 (i32.const 9000) (i32.add (i32.load8_u (i32.const 9000)) (global.get $n)))
         (i32.store8 (i32.const 9000) (i32.add (i32.load8_u (i32.const 9000)) (i32.const 48)))
         (call $error (i32.const 9000) (i32.const 1)) (i32.const 0)";
    let guest = wapc_with(
        "",
        r#"{"valid":true}"#,
        count,
        "(global $n (mut i32) (i32.const 0))",
    );
    let (policy, request) = (policy(&guest, wapc_spec()), pod());
    for _ in 0..3 {
        let error = policy
            .evaluate(&Review::admission(&request).unwrap())
            .unwrap_err();
        assert_eq!(error, EvalError::Guest("1".to_owned()));
    }
}

#[test]
fn start_functions_run_once_per_instance() {
    let more = r#"(global $n (mut i32) (i32.const 48))
        (func (export "_initialize") (global.set $n (i32.add (global.get $n) (i32.const 1))))
        (func (export "wapc_init") (global.set $n (i32.add (global.get $n) (i32.const 2))))"#;
    let body = "(i32.store8 (i32.const 9000) (global.get $n)) (call $error (i32.const 9000) (i32.const 1)) (i32.const 0)";
    let guest = wapc_with("", r#"{"valid":true}"#, body, more);
    assert_eq!(failure(&guest), EvalError::Guest("3".to_owned()));
}

#[track_caller]
fn host_call(call: [&str; 4], capabilities: &[&str]) -> String {
    let host_capabilities = capabilities.iter().map(|name| (*name).to_owned()).collect();
    let guest = host_caller(call[0], call[1], call[2], call[3]);
    let spec = PolicySpec {
        host_capabilities,
        ..wapc_spec()
    };
    let policy = policy(&guest, spec);
    policy.connect(Arc::new(HostServices::offline().with_dns()));
    let request = pod();
    let review = Review::admission(&request).unwrap();
    match policy.evaluate(&review).unwrap_err() {
        EvalError::Guest(words) => words,
        other => panic!("expected the guest to pass the words on, got {other:?}"),
    }
}

#[test]
fn logging_needs_no_capability() {
    assert_eq!(
        host_call(
            [
                "kubewarden",
                "tracing",
                "log",
                r#"{"level":"info","message":"hi"}"#
            ],
            &[]
        ),
        ""
    );
}

#[test]
fn other_calls_need_a_capability() {
    let call = ["kubewarden", "kubernetes", "can_i", "{}"];
    for capabilities in [
        &[][..],
        &["net/*"],
        &["kubernetes/get_resource"],
        &["kube*"],
    ] {
        assert!(host_call(call, capabilities).contains("not among the policy's host capabilities"));
    }
    for capabilities in [["*"], ["kubernetes/*"], ["kubernetes/can_i"]] {
        assert!(host_call(call, &capabilities).contains("not replicated"));
    }
}

#[test]
fn unknown_calls_are_named() {
    assert!(host_call(["other", "a", "b", ""], &["*"]).contains("unknown binding \"other\""));
    assert!(host_call(["kubewarden", "a", "b", ""], &["*"]).contains("unknown host call a/b"));
}

#[test]
fn allowed_names_are_looked_up() {
    let reply = host_call(
        ["kubewarden", "net", "v1/dns_lookup_host", "\"127.0.0.1\""],
        &["net/*"],
    );
    assert_eq!(reply, r#"{"ips":["127.0.0.1"]}"#);
    assert!(
        host_call(
            ["kubewarden", "net", "v1/dns_lookup_host", "{}"],
            &["net/*"]
        )
        .contains("host name")
    );
}
