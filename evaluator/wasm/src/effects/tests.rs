#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn parse(value: &Value) -> Result<(bool, RequestEffects), EvalError> {
    let text = serde_json::value::to_raw_value(value).unwrap();
    RequestEffects::parse_decision(&text)
}

fn headers(pairs: &[(&str, &[&str])]) -> Headers {
    let own = |text: &&str| (*text).to_owned();
    let pair =
        |(name, values): &(&str, &[&str])| (own(name), values.iter().map(own).collect::<Vec<_>>());
    Headers(pairs.iter().map(pair).collect())
}

#[test]
fn a_boolean_decides_without_effects() {
    for allowed in [true, false] {
        let decided = parse(&json!(allowed)).unwrap();
        assert_eq!(decided, (allowed, RequestEffects::default()));
    }
}

#[test]
fn all_optional_fields_are_read() {
    let (allowed, effects) = parse(&json!({
        "allowed": false,
        "headers": {"a": "1", "b": ["2", "3"]},
        "response_headers_to_add": [{"c": "4"}, {"c": ["5"], "d": "6"}],
        "request_headers_to_remove": ["e"],
        "query_parameters_to_set": {"f": "7"},
        "query_parameters_to_remove": ["g"],
        "dynamic_metadata": {"h": {"i": 8}},
        "body": "no",
        "http_status": 418 - 17,
        "id": "ignored",
    }))
    .unwrap();
    let expected = RequestEffects {
        headers: headers(&[("a", &["1"]), ("b", &["2", "3"])]),
        response_headers_to_add: headers(&[("c", &["4", "5"]), ("d", &["6"])]),
        request_headers_to_remove: vec!["e".into()],
        query_parameters_to_set: headers(&[("f", &["7"])]),
        query_parameters_to_remove: vec!["g".into()],
        dynamic_metadata: json!({"h": {"i": 8}}).as_object().unwrap().clone(),
        body: Some("no".into()),
        http_status: Some(401),
    };
    assert_eq!((allowed, effects), (false, expected));
}

#[test]
fn results_of_another_form_are_errors() {
    for wrong in [
        json!(null),
        json!("true"),
        json!(1),
        json!([]),
        json!({}),
        json!({"allow": true}),
        json!({"allowed": "true"}),
        json!({"allowed": null}),
        json!({"allowed": true, "headers": "a"}),
        json!({"allowed": true, "headers": {"a": 1}}),
        json!({"allowed": true, "headers": {"a": ["1", 2]}}),
        json!({"allowed": true, "headers": [["a", "1"]]}),
        json!({"allowed": true, "request_headers_to_remove": "a"}),
        json!({"allowed": true, "query_parameters_to_set": {"a": 1}}),
        json!({"allowed": true, "dynamic_metadata": []}),
        json!({"allowed": false, "body": 1}),
        json!({"allowed": false, "http_status": "403"}),
        json!({"allowed": false, "http_status": 403.5}),
        json!({"allowed": false, "http_status": 100}),
        json!({"allowed": false, "http_status": 299}),
        json!({"allowed": false, "http_status": 1000}),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn later_effects_replace_earlier_ones_by_name() {
    let mut effects = parse(&json!({
        "allowed": true,
        "headers": {"X-A": "1", "x-b": "1"},
        "request_headers_to_remove": ["x-c"],
        "query_parameters_to_set": {"a": "1"},
        "dynamic_metadata": {"a": 1, "b": 1},
    }))
    .unwrap()
    .1;
    let later = parse(&json!({
        "allowed": true,
        "headers": {"x-a": "2", "x-c": "2"},
        "request_headers_to_remove": ["x-b"],
        "query_parameters_to_remove": ["a"],
        "dynamic_metadata": {"b": 2},
    }))
    .unwrap()
    .1;
    effects.merge(later);
    let expected = RequestEffects {
        headers: headers(&[("x-a", &["2"]), ("x-c", &["2"])]),
        request_headers_to_remove: vec!["x-b".into()],
        query_parameters_to_remove: vec!["a".into()],
        dynamic_metadata: json!({"a": 1, "b": 2}).as_object().unwrap().clone(),
        ..RequestEffects::default()
    };
    assert_eq!(effects, expected);
}
