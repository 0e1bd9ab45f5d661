#![allow(clippy::unwrap_used)]
use super::*;

fn read(json: &str) -> anyhow::Result<Vec<Case>> {
    let document = Document {
        path: "tests/a.json".into(),
        source: "tests/a.json".into(),
        json: json.to_owned(),
    };
    parse(&document)
}

#[track_caller]
fn check_error(json: &str, part: &str) {
    let error = format!("{:#}", read(json).unwrap_err());
    assert!(error.contains(part), "{error}");
    assert!(error.contains("tests/a.json"), "{error}");
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#;

#[test]
fn request_stays_as_it_was_written() {
    let cases = read(r#"{"name":"n","request":{"uid":"u","x":1.0},"expect":{"allowed":true}}"#);
    let [case] = cases.unwrap().try_into().unwrap();
    assert_eq!(case.name, "n");
    assert_eq!(case.settings, None);
    assert!(matches!(case.question, Question::Request(json) if json == r#"{"uid":"u","x":1.0}"#));
}

#[test]
fn suite_gives_policy_and_settings_to_its_cases() {
    let suite = format!(
        r#"{{"version":1,"policy":"p.wasm","settings":{{"a":1}},"cases":[
            {{"object":{POD},"expect":{{"allowed":true}}}},
            {{"name":"own","settings":{{"a":2}},"policy":"q.wasm","object":{POD},"expect":{{"allowed":true}}}}]}}"#
    );
    let cases = read(&suite).unwrap();
    let shown: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case.name.as_str(),
                case.policy.as_deref(),
                case.settings.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("a", Some("p.wasm"), Some(r#"{"a":1}"#)),
            ("own", Some("q.wasm"), Some(r#"{"a":2}"#)),
        ]
    );
    assert_eq!(cases[1].source, "tests/a.json, case 2");
}

#[test]
fn settings_case_has_no_request() {
    let cases = read(r#"{"settings":{},"expect":{"valid":false,"message_contains":"x"}}"#).unwrap();
    assert!(matches!(cases[0].question, Question::Settings));
    assert_eq!(cases[0].expect.message_contains.as_deref(), Some("x"));
}

#[test]
fn mistakes_are_reported() {
    check_error(r#"{"expcet":{}}"#, "expcet");
    check_error(r#"{"version":2,"expect":{"valid":true}}"#, "version 2");
    check_error(
        r#"{"expect":{"allowed":true}}"#,
        "no request, object or file",
    );
    check_error(r#"{"expect":{"valid":true,"code":3}}"#, "no code");
    check_error(
        r#"{"settings":[],"expect":{"valid":true}}"#,
        "must be an object",
    );
    let with = |fields: &str| format!(r#"{{"object":{POD},{fields}}}"#);
    check_error(&with(r#""expect":{"valid":true}"#), "without a request");
    check_error(&with(r#""expect":{}"#), "allowed: true or false");
    check_error(&with(r#""expect":{"allowed":true,"mesage":"x"}"#), "mesage");
    check_error(
        &with(r#""expect":{"allowed":false,"patched":{}}"#),
        "not changed",
    );
    check_error(
        &with(r#""request":{},"expect":{"allowed":true}"#),
        "leave one of them out",
    );
    check_error(
        &with(r#""file":"x.yaml","expect":{"allowed":true}"#),
        "leave one of them out",
    );
    check_error(
        &with(r#""operation":"UPDATE","expect":{"allowed":true}"#),
        "as it was before",
    );
    let request = r#"{"request":{"uid":"u"},"user":"alice","expect":{"allowed":true}}"#;
    check_error(request, "a request is complete");
}
