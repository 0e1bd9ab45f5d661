//! Texts that want more than there is: each ends at a limit, with an error that tells which.

use std::time::Duration;

use assent_text::Error;
use assent_wasm::Limits;
use serde_json::{Value, json};

use crate::support::{INTERPRETERS, creation};

fn refusal(file: &str, text: &str) -> String {
    match INTERPRETERS.build(file, text) {
        Err(Error::Text(why)) => why,
        Err(error) => panic!("this is for the author to change: {error}"),
        Ok(_) => panic!("{file} was built"),
    }
}

#[track_caller]
fn check_refused(file: &str, text: &str, parts: &[&str]) {
    let why = refusal(file, text);
    let slow = why.contains("did not answer within");
    assert!(
        slow || parts.iter().any(|part| why.contains(part)),
        "{why:.400}"
    );
}

/// Evaluates a text that is built without trouble, with little time and memory.
fn evaluated(file: &str, text: &str, object: &Value) -> Result<Value, String> {
    let limits = Limits {
        timeout: Duration::from_secs(2),
        memory_bytes: 64 << 20,
    };
    let request = creation(object);
    let verdicts = INTERPRETERS.validate_within(
        file,
        text,
        &json!({}),
        std::slice::from_ref(&request),
        limits,
    );
    verdicts.into_iter().next_back().unwrap()
}

#[track_caller]
fn check_stopped(file: &str, text: &str, object: &Value) {
    let why = evaluated(file, text, object).unwrap_err();
    let limits = ["did not answer within", "memory", "stack", "recursion"];
    assert!(limits.iter().any(|limit| why.contains(limit)), "{why:.400}");
}

fn cel(expression: &str) -> String {
    json!({"validations": [{"expression": expression}]}).to_string()
}

#[test]
fn long_texts_are_refused_before_they_are_read() {
    let long = "#".repeat(10 << 20);
    check_refused("p.rego", &long, &["more than the 262144 allowed"]);
    check_refused("p.cel.yaml", &long, &["more than the 262144 allowed"]);
}

#[test]
fn deep_texts_are_refused() {
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [("[", "]"), ("{1: ", "}"), ("(", ")"), ("-(", ")")] {
        let text = format!("package p\n\nallow := {}\n", nested(open, close, 30_000));
        check_refused(
            "p.rego",
            &text,
            &["stack", "depth", "recursion", "-->", "memory"],
        );
        let text = cel(&format!("{} == 1", nested(open, close, 30_000)));
        check_refused(
            "p.cel.yaml",
            &text,
            &["stack", "recursion", "nest", "-->", "memory"],
        );
    }
    let chain = format!(
        "package p\n\nallow if {}\n",
        "not ".repeat(50_000) + "false"
    );
    check_refused("p.rego", &chain, &["stack", "-->", "memory"]);
    // Long is not deep: these may be built.
    for long in [
        format!("{}true", "!".repeat(100_000)),
        format!("true{}", " && true".repeat(25_000)),
    ] {
        if let Err(error) = INTERPRETERS.build("p.cel.yaml", &cel(&long)) {
            assert!(matches!(error, Error::Text(_)), "{error}");
        }
    }
}

#[test]
fn deep_yaml_is_refused() {
    let text = format!(
        "validations: {}{}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    check_refused("p.cel.yaml", &text, &["-->", "depth", "nest", "recursion"]);
    let bomb: String = (1..20)
        .map(|n| {
            format!(
                "a{n}: &a{n} [{}]\n",
                vec![format!("*a{}", n - 1); 10].join(", ")
            )
        })
        .collect();
    check_refused(
        "p.cel.yaml",
        &format!("a0: &a0 [x]\n{bomb}"),
        &["-->", "unknown field", "alias"],
    );
}

#[test]
fn recursion_ends() {
    for text in [
        "package p\n\nallow if a\n\na if b\n\nb if a\n",
        "package p\n\nallow if f(input.request.object.n)\n\nf(x) := f(x + 1)\n",
    ] {
        match INTERPRETERS.build("p.rego", text) {
            Err(Error::Text(_)) => {}
            Err(error) => panic!("{error}"),
            Ok(_) => check_stopped("p.rego", text, &json!({"n": 1})),
        }
    }
}

#[test]
fn giant_comprehensions_end() {
    // While the text is built, because the sample request is evaluated then.
    let range = "numbers.range(1, 20000)[_]";
    let always =
        format!("package p\n\nallow if count([x | x := {range}; y := {range}; y < 0]) == 0\n");
    check_refused("p.rego", &always, &["did not answer within", "memory"]);
    // And only then, if the request decides.
    let rego = "package p\n\nallow if count([[x, y, z] | x := input.request.object.n[_]; y := input.request.object.n[_]; z := input.request.object.n[_]]) == 0\n";
    let object = json!({"n": (0..2_000).collect::<Vec<_>>()});
    check_stopped("p.rego", rego, &object);
    let n = "object.n";
    let nested = format!("{n}.map(x, {n}.map(y, {n}.map(z, [x, y, z]))).size() == 0");
    check_stopped("p.cel.yaml", &cel(&nested), &object);
    let doubled = (0..40).fold("'x'".to_owned(), |text, _| {
        format!("[{text}].map(x, x + x)[0]")
    });
    check_stopped(
        "p.cel.yaml",
        &cel(&format!("size({doubled}) == 0 && object.n == []")),
        &object,
    );
}

#[test]
fn catastrophic_patterns_are_linear_and_huge_ones_are_refused() {
    // Backtracking would take 2^40 steps; these automata take one per character.
    let subject = "a".repeat(40) + "!";
    let object = json!({"s": subject});
    let rego =
        "package p\n\ndeny contains \"x\" if regex.match(`^(a+)+$`, input.request.object.s)\n";
    assert_eq!(
        evaluated("p.rego", rego, &object).unwrap()["accepted"],
        true
    );
    let text = cel("!object.s.matches('^(a+)+$')");
    assert_eq!(
        evaluated("p.cel.yaml", &text, &object).unwrap()["accepted"],
        true
    );

    // An automaton of this size would take gigabytes.
    let huge = "((a{1,500}){1,500}){1,500}";
    check_refused(
        "p.cel.yaml",
        &cel(&format!("'a'.matches('{huge}')")),
        &["size limit", "too big"],
    );
    let rego = format!(
        "package p\n\ndeny contains \"x\" if regex.match(`{huge}`, input.request.object.s)\n"
    );
    let why = evaluated("p.rego", &rego, &object).unwrap_err();
    assert!(
        why.contains("size limit") || why.contains("regex") || why.contains("memory"),
        "{why}"
    );
    let dynamic = cel("object.s.matches(object.p)");
    let object = json!({"s": subject, "p": huge});
    let why = evaluated("p.cel.yaml", &dynamic, &object).unwrap_err();
    assert!(why.contains("size limit") || why.contains("regex"), "{why}");
}
