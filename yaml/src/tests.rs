#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

#[track_caller]
fn one(text: &str) -> Value {
    let mut documents = load(text);
    assert_eq!(documents.len(), 1, "{documents:?}");
    documents.remove(0).value.unwrap()
}

#[track_caller]
fn refused(text: &str) -> String {
    let documents = load(text);
    let errors: Vec<_> = documents
        .iter()
        .filter_map(|d| d.value.as_ref().err())
        .collect();
    assert_eq!(errors.len(), 1, "{documents:?}");
    errors[0].to_string()
}

/// Equal, but for numbers that only one of two readers holds as an integer.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x == y,
            _ => x.to_string().parse::<f64>().ok() == y.to_string().parse::<f64>().ok(),
        },
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| is_same(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            let same = |key: &String, x: &Value| y.get(key).is_some_and(|y| is_same(x, y));
            x.len() == y.len() && x.iter().all(|(key, x)| same(key, x))
        }
        (x, y) => x == y,
    }
}

/// `kubectl` was asked what each document of the table means.
#[test]
fn documents_mean_what_kubectl_reads() {
    let table = include_str!("../tests/kubectl.tsv");
    let mut cases = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (text, expect) = line.split_once('\t').unwrap();
        let text: String = serde_json::from_str(text).unwrap();
        cases += 1;
        if expect == "error" {
            refused(&text);
            continue;
        }
        let expect: Value = serde_json::from_str(expect).unwrap();
        let got = one(&text);
        assert!(is_same(&got, &expect), "{text}\n{got}\n{expect}");
    }
    assert!(cases > 200, "{cases}");
}

#[test]
fn floats_are_rounded_correctly() {
    for text in [
        "1.00000005960464477550",
        "0.1",
        "7.2057594037927933e16",
        "5e-324",
    ] {
        let expect: f64 = text.parse().unwrap();
        assert_eq!(
            one(&format!("- {text}"))[0].as_f64().unwrap().to_bits(),
            expect.to_bits()
        );
    }
}

#[test]
fn errors_have_a_position_and_a_reason() {
    for (text, expect) in [
        (
            "a: 1\nb: 2\na: 3\n",
            "line 3, column 1: duplicate key \"a\"; remove one of the two",
        ),
        (
            "a: {b: 1, \"b\": 2}",
            "line 1, column 11: duplicate key \"b\"; remove one of the two",
        ),
        (
            "1: x\n\"1\": y",
            "line 2, column 1: duplicate key \"1\"; remove one of the two",
        ),
        (
            "yes: x\non: y",
            "line 2, column 1: duplicate key \"true\"; remove one of the two",
        ),
        (
            "a: &x {b: 1}\nc:\n  b: 1\n  <<: *x\n  b: 2",
            "line 5, column 3: duplicate key \"b\"; remove one of the two",
        ),
        (
            "a: .inf",
            "line 1, column 4: .inf can't be represented in JSON; quote it if it is text",
        ),
        (
            "a:\n  <<: 5",
            "line 2, column 7: << requires a mapping or a list of mappings",
        ),
        (
            "? [a]\n: 1",
            "line 1, column 3: a key must be text, a number or a boolean",
        ),
        (
            "~: 1",
            "line 1, column 1: a key must be text, a number or a boolean",
        ),
        (
            "a: !!int x",
            "line 1, column 10: \"x\" does not match the tag !!int",
        ),
        (
            "a: &x [*x]",
            "line 1, column 8: an alias must not be used inside of its own anchor",
        ),
        (
            "%YAML 1.3\n---\na: yes",
            "line 2, column 1: %YAML 1.3 is not supported; use 1.1 or 1.2, or remove the directive",
        ),
    ] {
        assert_eq!(refused(text), expect, "{text}");
    }
    assert!(refused("a: [1, 2\n").starts_with("line 1, column 4: "));
    assert!(refused("a: *nope").starts_with("line 1, column 4: "));
}

#[test]
fn both_versions_of_yaml_are_accepted() {
    for version in ["1.1", "1.2"] {
        let text = format!("%YAML {version}\n---\na: yes");
        assert_eq!(one(&text), json!({"a": true}));
    }
}

#[test]
fn malformed_document_does_not_hide_others() {
    let text = "a: 1\n---\n# nothing\n---\nb: [1\n---\nc: 1\nc: 2\n---\nd: 4\n...\n---\ne: 5\n";
    let seen: Vec<_> = load(text)
        .into_iter()
        .map(|d| (d.number, d.line, d.value.map_err(|e| e.line)))
        .collect();
    assert_eq!(
        seen,
        [
            (1, 1, Ok(json!({"a": 1}))),
            (3, 4, Err(5)),
            (4, 6, Err(8)),
            (5, 9, Ok(json!({"d": 4}))),
            (6, 12, Ok(json!({"e": 5}))),
        ]
    );
    assert!(load("").is_empty());
    assert!(load("---\n---\n# a comment\n").is_empty());
}

#[test]
fn aliases_expand_within_a_bound() {
    assert_eq!(
        one("a: &x {b: [1]}\nc: *x\nd: *x"),
        json!({"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1]}})
    );
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let items = vec![format!("*a{}", i - 1); 10].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{items}]\n"));
    }
    assert!(refused(&bomb).ends_with("aliases expand to more than 500000 values"));
    let mut deep = String::from("a0: &a0 [x]\n");
    for i in 1..200 {
        deep.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1));
    }
    assert!(refused(&deep).ends_with("nested deeper than 128 levels"));
}

#[test]
fn size_and_depth_are_bounded() {
    let fits = format!("a: {}", "x".repeat(MAX_DOCUMENT_BYTES - 100));
    assert!(load(&fits)[0].value.is_ok());
    let large = format!("a: {}\n---\nb: 1\n", "x".repeat(MAX_DOCUMENT_BYTES));
    let documents = load(&large);
    assert_eq!(
        documents[0].value.as_ref().unwrap_err().reason,
        Reason::TooLarge
    );
    assert_eq!(documents[1].value, Ok(json!({"b": 1})));
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(load(&nested(MAX_DEPTH))[0].value.is_ok());
    assert!(refused(&nested(MAX_DEPTH + 1)).contains("nested deeper"));
    refused(&"[".repeat(100_000));
    refused(&format!("{}a", "- ".repeat(100_000)));
}

/// A merge copies what it refers to, so that it counts like an alias.
#[test]
fn merges_expand_within_a_bound() {
    let mut bomb = String::from("a0: &a0 {x: [1,1,1,1,1,1,1,1,1,1]}\n");
    for i in 1..12 {
        let fields: Vec<String> = (0..10)
            .map(|n| format!("f{n}: {{<<: *a{}}}", i - 1))
            .collect();
        bomb.push_str(&format!("a{i}: &a{i} {{{}}}\n", fields.join(", ")));
    }
    assert!(refused(&bomb).contains("aliases expand to more than 500000"));
}

#[test]
fn first_document_is_read_leniently() {
    for (text, expected) in [
        ("", json!(null)),
        ("a: 1\na: 2", json!({"a": 2})),
        ("a: yes\n---\nb: [", json!({"a": true})),
        (
            "x: &x {a: 1}\nz: {a: 0, <<: *x, a: 2}",
            json!({"x": {"a": 1}, "z": {"a": 2}}),
        ),
    ] {
        assert_eq!(load_first(text), Ok(expected), "{text}");
    }
    load_first("a: [").unwrap_err();
    load_first("? [a]\n: b").unwrap_err();
}
