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

#[test]
fn scalars_follow_the_core_schema() {
    for (text, expect) in [
        ("yes", json!("yes")),
        ("no", json!("no")),
        ("on", json!("on")),
        ("Off", json!("Off")),
        ("y", json!("y")),
        ("true", json!(true)),
        ("False", json!(false)),
        ("tRuE", json!("tRuE")),
        ("~", json!(null)),
        ("nULL", json!("nULL")),
        ("12", json!(12)),
        ("+12", json!(12)),
        ("-3", json!(-3)),
        ("0o17", json!(15)),
        ("0o18", json!("0o18")),
        ("0xFf", json!(255)),
        // Octal in YAML 1.1; an integer with a leading zero in 1.2.
        ("0777", json!(777)),
        ("0b11", json!("0b11")),
        ("1_000", json!("1_000")),
        ("1:30", json!("1:30")),
        ("2001-12-14", json!("2001-12-14")),
        ("18446744073709551615", json!(u64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.", json!(1.0)),
        (".5", json!(0.5)),
        ("1e3", json!(1000.0)),
        ("1.2.3", json!("1.2.3")),
        (".", json!(".")),
        ("e3", json!("e3")),
        ("1e", json!("1e")),
        ("inf", json!("inf")),
        ("nan", json!("nan")),
        ("\"12\"", json!("12")),
        ("'true'", json!("true")),
        ("!!str 12", json!("12")),
        ("! 12", json!("12")),
        ("!!float 1", json!(1)),
        ("!!int \"7\"", json!(7)),
        ("|\n  1\n", json!("1\n")),
    ] {
        assert_eq!(one(&format!("- {text}")), json!([expect]), "{text}");
    }
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
fn refuses_with_place_and_reason() {
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
            "a: .inf",
            "line 1, column 4: .inf is not a number that JSON can hold; quote it if it is text",
        ),
        (
            "a: 1e999",
            "line 1, column 4: 1e999 is not a number that JSON can hold; quote it if it is text",
        ),
        (
            "a: &x {b: 1}\nc:\n  <<: *x",
            "line 3, column 3: merge keys (<<) are not part of YAML 1.2; write the fields out",
        ),
        (
            "? [a]\n: 1",
            "line 1, column 3: a key must be a plain or quoted scalar",
        ),
        (
            "~: 1",
            "line 1, column 1: a key must be a plain or quoted scalar",
        ),
        (
            "a: !!int x",
            "line 1, column 10: \"x\" does not fit the tag !!int",
        ),
        (
            "a: !ruby/object x",
            "line 1, column 17: \"x\" does not fit the tag !ruby/object",
        ),
        (
            "a: &x [*x]",
            "line 1, column 8: an alias must not be used inside of its own anchor",
        ),
        (
            "%YAML 1.1\n---\na: yes",
            "line 2, column 1: %YAML 1.1 is not supported; documents are read as YAML 1.2",
        ),
    ] {
        assert_eq!(refused(text), expect, "{text}");
    }
    assert!(refused("a: [1, 2\n").starts_with("line 1, column 4: "));
    assert!(refused("a: *nope").starts_with("line 1, column 4: "));
}

#[test]
fn one_bad_document_does_not_hide_the_others() {
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
fn anchors_expand_within_a_bound() {
    assert_eq!(
        one("a: &x {b: [1]}\nc: *x\nd: *x"),
        json!({"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1]}})
    );
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let items = vec![format!("*a{}", i - 1); 10].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{items}]\n"));
    }
    assert!(refused(&bomb).ends_with("anchors expand to more than 500000 values"));
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

#[test]
fn keys_are_taken_by_their_text() {
    assert_eq!(
        one("1: a\ntrue: b\n\"<<\": c\n0x10: d"),
        json!({"1": "a", "true": "b", "<<": "c", "0x10": "d"})
    );
}
