#![allow(clippy::unwrap_used)]
use super::*;

const REQUEST: &str = r#"{"operation":"CREATE","object":{"metadata":{"name":"a","annotations":{"x":"own","y":"own"}}}}"#;

fn verdict_of(result: &str, mutating: bool) -> Result<Verdict, EvalError> {
    let request = RawValue::from_string(REQUEST.to_owned()).unwrap();
    opa(
        result.as_bytes(),
        &Review::admission(&request).unwrap(),
        mutating,
    )
}

#[test]
fn an_admission_response_is_read() {
    let result = r#"[{"result":{"kind":"AdmissionReview","response":{"allowed":false,"uid":"1","status":{"message":"no","code":409},"warnings":["w"],"auditAnnotations":{"k":"v"}}}}]"#;
    let verdict = verdict_of(result, false).unwrap();
    assert_eq!(
        (verdict.allowed, verdict.message.as_deref(), verdict.code),
        (false, Some("no"), Some(409))
    );
    assert_eq!(
        (verdict.warnings.len(), verdict.audit_annotations.len()),
        (1, 1)
    );
}

#[test]
fn a_patch_is_base64_or_a_list() {
    let list = r#"[{"op":"add","path":"/a","value":1}]"#;
    let encoded = BASE64_STANDARD.encode(list);
    for patch in [list.to_owned(), format!("{encoded:?}")] {
        let result = format!(r#"[{{"result":{{"response":{{"allowed":true,"patch":{patch}}}}}}}]"#);
        assert_eq!(
            String::from_utf8(verdict_of(&result, true).unwrap().patch.unwrap()).unwrap(),
            list
        );
        assert!(!verdict_of(&result, false).unwrap().allowed);
    }
    for patch in ["1", r#""%""#, r#"[{"op":"explode"}]"#] {
        let result = format!(r#"[{{"result":{{"response":{{"allowed":true,"patch":{patch}}}}}}}]"#);
        assert_eq!(
            verdict_of(&result, true).unwrap_err().reason(),
            "bad_answer",
            "{patch}"
        );
    }
    assert_eq!(
        verdict_of(
            r#"[{"result":{"response":{"allowed":true,"patch":[]}}}]"#,
            false
        )
        .unwrap(),
        Verdict::allow()
    );
}

#[test]
fn a_bare_admission_response_keeps_its_fields() {
    let result = r#"[{"result":{"allowed":false,"status":{"message":"m","code":409},"warnings":["w"],"auditAnnotations":{"k":"v"}}}]"#;
    let verdict = verdict_of(result, false).unwrap();
    assert_eq!(
        (verdict.allowed, verdict.message.as_deref(), verdict.code),
        (false, Some("m"), Some(409))
    );
    assert_eq!(
        (verdict.warnings.len(), verdict.audit_annotations.len()),
        (1, 1)
    );
    let both = r#"[{"result":{"allowed":false,"message":"short","status":{"message":"long"}}}]"#;
    let verdict = verdict_of(both, false).unwrap();
    assert_eq!(verdict.message.as_deref(), Some("short"));
    let patch = r#"[{"result":{"allowed":true,"patch":[{"op":"add","path":"/a","value":1}]}}]"#;
    assert!(verdict_of(patch, true).unwrap().patch.is_some());
    assert!(!verdict_of(patch, false).unwrap().allowed);
}

#[test]
fn the_short_form_is_read() {
    assert_eq!(
        verdict_of(r#"[{"result":{"allowed":true}}]"#, false).unwrap(),
        Verdict::allow()
    );
    assert_eq!(
        verdict_of(r#"[{"result":{"allowed":false,"message":"m"}}]"#, false).unwrap(),
        Verdict::deny("m")
    );
}

#[test]
fn errors_deny() {
    let verdict = verdict_of(
        r#"[{"result":{"errors":["a",{"b":1}],"annotations":{"x":"policy"}}}]"#,
        true,
    )
    .unwrap();
    assert_eq!(verdict, Verdict::deny(r#"a, {"b":1}"#));
}

#[test]
fn annotations_are_merged_and_the_policy_wins() {
    let result = r#"[{"result":{"errors":[],"annotations":{"x":"policy","z":"policy"}}}]"#;
    let verdict = verdict_of(result, true).unwrap();
    assert_eq!(
        String::from_utf8(verdict.patch.unwrap()).unwrap(),
        r#"[{"op":"replace","path":"/metadata/annotations/x","value":"policy"},{"op":"add","path":"/metadata/annotations/z","value":"policy"}]"#
    );
    assert!(!verdict_of(result, false).unwrap().allowed);
    assert_eq!(
        verdict_of(r#"[{"result":{"annotations":{"x":"own"}}}]"#, false).unwrap(),
        Verdict::allow()
    );
}

#[test]
fn other_results_are_errors() {
    for result in [
        "",
        "[]",
        "{}",
        r#"[{"result":{}}]"#,
        r#"[{"result":true}]"#,
        r#"[{"result":{"allowed":"yes"}}]"#,
        r#"[{"result":{"response":{}}}]"#,
        "[{}]",
    ] {
        assert_eq!(
            verdict_of(result, true).unwrap_err().reason(),
            "bad_answer",
            "{result}"
        );
    }
}

#[test]
fn gatekeeper_denies_with_all_messages() {
    let verdict = gatekeeper(br#"[{"result":[{"msg":"a","details":{}},{"msg":"b"}]}]"#).unwrap();
    assert_eq!(verdict, Verdict::deny("a, b"));
    assert_eq!(gatekeeper(br#"[{"result":[]}]"#).unwrap(), Verdict::allow());
}

#[test]
fn a_gatekeeper_result_that_can_not_be_read_never_passes() {
    for result in [
        "[]",
        r#"[{"result":null}]"#,
        r#"[{"result":{}}]"#,
        r#"[{"result":[{"message":"a"}]}]"#,
        r#"[{"result":["a"]}]"#,
        r#"[{"result":[{"msg":1}]}]"#,
    ] {
        assert_eq!(
            gatekeeper(result.as_bytes()).unwrap_err().reason(),
            "bad_answer",
            "{result}"
        );
    }
}

#[test]
fn more_than_one_form_at_once_decides_nothing() {
    for result in [
        r#"{"response":{"allowed":true},"allowed":false}"#,
        r#"{"allowed":true,"errors":["no"]}"#,
        r#"{"allowed":true,"annotations":{}}"#,
        r#"{"response":{"allowed":true},"errors":[]}"#,
    ] {
        let error = verdict_of(&format!(r#"[{{"result":{result}}}]"#), true).unwrap_err();
        assert_eq!(error.reason(), "bad_answer", "{result}");
    }
}
