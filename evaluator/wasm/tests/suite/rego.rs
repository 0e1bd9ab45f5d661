//! Rego modules that mean harm or are broken, in the shape that OPA gives its modules.

use assent_wasm::{Abi, EvalError, Limits, PolicySpec, Stage, Verdict};

use crate::guests::{ENGINE, escape, evaluate, spec, vet};

/// A module of OPA's shape: its values are texts at fixed places, and `eval` runs for an evaluation.
struct Rego {
    result: &'static str,
    builtins: &'static str,
    eval: &'static str,
    one_shot: bool,
}

const ALLOW: &str = r#"[{"result":{"allowed":true}}]"#;

/// Leaves the address of the result on the stack.
const RESULT: &str = "(i32.const 1024)";

impl Default for Rego {
    fn default() -> Self {
        Self {
            result: ALLOW,
            builtins: "{}",
            eval: RESULT,
            one_shot: true,
        }
    }
}

impl Rego {
    fn module(&self) -> Vec<u8> {
        let eval = if self.one_shot {
            format!(
                r#"(func (export "opa_eval") (param i32 i32 i32 i32 i32 i32 i32) (result i32) {})"#,
                self.eval
            )
        } else {
            format!(
                r#"(func (export "opa_eval_ctx_new") (result i32) (i32.const 1))
                (func (export "opa_eval_ctx_set_input") (param i32 i32))
                (func (export "opa_eval_ctx_set_data") (param i32 i32))
                (func (export "opa_eval_ctx_get_result") (param i32) (result i32) {})
                (func (export "eval") (param i32) (result i32) (i32.const 0))"#,
                self.eval
            )
        };
        let text = format!(
            r#"(module
              (import "env" "memory" (memory 2))
              (import "env" "opa_abort" (func $abort (param i32)))
              (import "env" "opa_println" (func $println (param i32)))
              (import "env" "opa_builtin0" (func $builtin0 (param i32 i32) (result i32)))
              (import "env" "opa_builtin1" (func $builtin1 (param i32 i32 i32) (result i32)))
              (export "memory" (memory 0))
              (global $heap (mut i32) (i32.const 16384))
              (data (i32.const 1024) "{}\00")
              (data (i32.const 4096) "{}\00")
              (data (i32.const 8192) "{{\22main\22:0}}\00")
              (data (i32.const 9216) "a message\00")
              (func $malloc (export "opa_malloc") (param i32) (result i32)
                (global.get $heap) (global.set $heap (i32.add (global.get $heap) (local.get 0))))
              (func (export "opa_heap_ptr_get") (result i32) (global.get $heap))
              (func (export "opa_json_parse") (param i32 i32) (result i32) (local.get 0))
              (func (export "opa_value_parse") (param i32 i32) (result i32) (local.get 0))
              (func (export "opa_json_dump") (param i32) (result i32) (local.get 0))
              (func (export "opa_value_dump") (param i32) (result i32) (local.get 0))
              (func (export "builtins") (result i32) (i32.const 4096))
              (func (export "entrypoints") (result i32) (i32.const 8192))
              {eval})"#,
            escape(self.result),
            escape(self.builtins),
        );
        wat::parse_str(&text).unwrap()
    }

    #[track_caller]
    fn run(&self) -> Result<Verdict, EvalError> {
        evaluate(&self.module(), spec(Abi::Opa))
    }
}

#[test]
fn both_ways_of_calling_work() {
    assert!(Rego::default().run().unwrap().allowed);
    assert!(
        Rego {
            one_shot: false,
            ..Rego::default()
        }
        .run()
        .unwrap()
        .allowed
    );
}

#[test]
fn an_abort_is_told_with_its_words() {
    let error = Rego {
        eval: "(call $abort (i32.const 9216)) (i32.const 0)",
        ..Rego::default()
    }
    .run()
    .unwrap_err();
    assert_eq!(error, EvalError::Rego("a message".to_owned()));
}

#[test]
fn unknown_builtins_are_named() {
    let eval = "(drop (call $builtin0 (i32.const 0) (i32.const 0))) (i32.const 1024)";
    let error = Rego {
        builtins: r#"{"made.up":0}"#,
        eval,
        ..Rego::default()
    }
    .run()
    .unwrap_err();
    assert!(error.to_string().contains("made.up"), "{error}");
    let error = Rego {
        builtins: r#"{"http.send":0}"#,
        eval,
        ..Rego::default()
    }
    .run()
    .unwrap_err();
    assert!(
        error.to_string().contains("http.send is not available"),
        "{error}"
    );
    let error = Rego {
        eval,
        ..Rego::default()
    }
    .run()
    .unwrap_err();
    assert!(error.to_string().contains("does not list"), "{error}");
}

#[test]
fn time_is_one_value_per_evaluation() {
    let eval = "(local $a i32) (local $b i32)
        (local.set $a (call $builtin0 (i32.const 0) (i32.const 0)))
        (local.set $b (call $builtin0 (i32.const 0) (i32.const 0)))
        (if (i32.eq (local.get $a) (local.get $b)) (then unreachable))
        (if (i64.ne (i64.load (local.get $a)) (i64.load (local.get $b))) (then unreachable))
        (if (i64.ne (i64.load offset=8 (local.get $a)) (i64.load offset=8 (local.get $b))) (then unreachable))
        (i32.const 1024)";
    assert!(
        Rego {
            builtins: r#"{"time.now_ns":0}"#,
            eval,
            ..Rego::default()
        }
        .run()
        .unwrap()
        .allowed
    );
}

#[test]
fn wrong_arguments_are_undefined_not_an_error() {
    let eval = "(if (call $builtin1 (i32.const 0) (i32.const 0) (i32.const 4096)) (then unreachable)) (i32.const 1024)";
    assert!(
        Rego {
            builtins: r#"{"crypto.sha256":0}"#,
            eval,
            ..Rego::default()
        }
        .run()
        .unwrap()
        .allowed
    );
}

#[test]
fn addresses_outside_of_memory_end_the_evaluation() {
    for (name, eval) in [
        ("opa_abort", "(call $abort (i32.const -1)) (i32.const 1024)"),
        (
            "opa_println",
            "(call $println (i32.const -1)) (i32.const 1024)",
        ),
        (
            "opa_builtin",
            "(drop (call $builtin1 (i32.const 0) (i32.const 0) (i32.const -1))) (i32.const 1024)",
        ),
        ("opa_json_dump", "(i32.const -1)"),
    ] {
        let error = Rego {
            builtins: r#"{"trace":0}"#,
            eval,
            ..Rego::default()
        }
        .run()
        .unwrap_err();
        assert_eq!(error, EvalError::BadAddress(name), "{eval}");
    }
    let huge = "(global.set $heap (i32.const -16)) (call $builtin0 (i32.const 0) (i32.const 0))";
    let error = Rego {
        builtins: r#"{"time.now_ns":0}"#,
        eval: huge,
        ..Rego::default()
    }
    .run()
    .unwrap_err();
    assert_eq!(error, EvalError::BadAddress("opa_malloc"));
}

#[test]
fn text_without_an_end_is_refused() {
    let eval = "(memory.fill (i32.const 16384) (i32.const 120) (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 16384))) (i32.const 16384)";
    assert_eq!(
        Rego {
            eval,
            ..Rego::default()
        }
        .run()
        .unwrap_err(),
        EvalError::BadAddress("opa_json_dump")
    );
    let eval = "(drop (memory.grow (i32.const 300))) (memory.fill (i32.const 16384) (i32.const 120) (i32.const 17000000)) (i32.const 16384)";
    assert_eq!(
        Rego {
            eval,
            ..Rego::default()
        }
        .run()
        .unwrap_err(),
        EvalError::OutputTooLarge
    );
}

#[test]
fn endless_rules_are_stopped() {
    let limits = Limits {
        timeout: std::time::Duration::from_millis(30),
        ..Limits::default()
    };
    let guest = Rego {
        eval: "(loop $l (br $l)) (i32.const 0)",
        ..Rego::default()
    }
    .module();
    let error = evaluate(
        &guest,
        PolicySpec {
            limits,
            ..spec(Abi::Opa)
        },
    )
    .unwrap_err();
    assert_eq!(error.reason(), "timeout");
}

#[test]
fn log_lines_are_counted() {
    let print = |times: &str| -> String {
        format!(
            "(local $n i32) (local.set $n (i32.const {times})) (loop $l (call $println (i32.const 9216)) (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $l (local.get $n))) (i32.const 1024)"
        )
    };
    let run = |times: &str| {
        Rego {
            eval: print(times).leak(),
            ..Rego::default()
        }
        .run()
    };
    assert!(run("1000").unwrap().allowed);
    assert_eq!(run("1001").unwrap_err(), EvalError::HostCallBudget);
}

#[test]
fn results_without_sense_are_errors() {
    for result in [
        "[]",
        "nonsense",
        r#"[{"result":{}}]"#,
        r#"[{"result":true}]"#,
    ] {
        assert_eq!(
            Rego {
                result,
                ..Rego::default()
            }
            .run()
            .unwrap_err()
            .reason(),
            "bad_answer",
            "{result}"
        );
        let guest = Rego {
            result,
            ..Rego::default()
        }
        .module();
        assert_eq!(
            evaluate(&guest, spec(Abi::Gatekeeper))
                .unwrap_err()
                .reason(),
            "bad_answer",
            "{result}"
        );
    }
}

#[test]
fn gatekeeper_allows_only_an_empty_list() {
    let run = |result| {
        evaluate(
            &Rego {
                result,
                ..Rego::default()
            }
            .module(),
            spec(Abi::Gatekeeper),
        )
        .unwrap()
    };
    assert!(run(r#"[{"result":[]}]"#).allowed);
    let denied = run(r#"[{"result":[{"msg":"bad image"}]}]"#);
    assert_eq!(
        (denied.allowed, denied.message.as_deref()),
        (false, Some("bad image"))
    );
}

#[test]
fn settings_must_be_an_object() {
    let settings_json = bytes::Bytes::from_static(b"[1]");
    let error = vet(
        &Rego::default().module(),
        PolicySpec {
            settings_json,
            ..spec(Abi::Opa)
        },
    )
    .err()
    .unwrap();
    assert_eq!(error.stage(), Stage::Settings);
}

#[test]
fn lists_of_builtins_that_make_no_sense_are_refused() {
    for builtins in [
        "[]",
        "nonsense",
        r#"{"a":-1}"#,
        r#"{"a":2000000000}"#,
        r#"{"a":"b"}"#,
    ] {
        let module = ENGINE
            .compile(
                &Rego {
                    builtins,
                    ..Rego::default()
                }
                .module(),
            )
            .unwrap();
        assert!(
            assent_wasm::Policy::prepare(&ENGINE, &module, spec(Abi::Opa)).is_err(),
            "{builtins}"
        );
    }
}
