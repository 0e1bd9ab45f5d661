#![allow(clippy::unwrap_used)]
use super::{Endpoint, Error, Incoming};

#[test]
fn endpoints_are_split_from_paths() {
    let path = "cluster/a/1-x";
    assert_eq!(
        Endpoint::split("/validate/cluster/a/1-x"),
        Some((Endpoint::Validate, path))
    );
    assert_eq!(
        Endpoint::split("/audit/cluster/a/1-x"),
        Some((Endpoint::Audit, path))
    );
    assert_eq!(
        Endpoint::split("/validate_raw/cluster/a/1-x"),
        Some((Endpoint::Raw, path))
    );
    for bad in ["/", "/validate", "/validate/", "validate/a", "/other/a"] {
        assert_eq!(Endpoint::split(bad), None, "{bad}");
    }
}

#[test]
fn the_request_is_kept_as_it_was_sent() {
    let request =
        r#"{"uid":"u","big":12345678901234567890123, "unknown" : [1.10],"operation":"DELETE"}"#;
    let body = format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{request}}}"#
    );
    let incoming = Incoming::parse(Endpoint::Validate, body.as_bytes()).unwrap();
    assert_eq!(incoming.review.request, request);
    assert_eq!(
        (incoming.uid.as_ref(), incoming.review.operation),
        ("u", "DELETE")
    );
    assert!(incoming.review.object.is_none() && !incoming.review.raw);
}

#[test]
fn the_request_is_located_at_any_position() {
    let check = |request: &str| {
        for body in [
            format!(
                r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#
            ),
            format!(
                "\n{{ \"request\" : {request} ,\n\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v1\",\"x\":{{\"}}\":1}}}} \n"
            ),
            format!(
                r#"{{"\u0072equest":{request},"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}}"#
            ),
        ] {
            let incoming = Incoming::parse(Endpoint::Validate, body.as_bytes()).unwrap();
            assert_eq!(incoming.review.request, request, "{body}");
            assert_eq!(incoming.uid, "u", "{body}");
        }
    };
    check(r#"{"uid":"u"}"#);
    check("{ \n\t\"uid\" : \"u\"\r\n }");
    check(r#"{"\u0075id":"u","object":{"a":"}"}}"#);
    check(r#"{"uid":"\u0075"}"#);
    check(r#"{"object":[],"uid":"u","ä":"ö"}"#);
}

#[test]
fn invalid_requests_are_refused() {
    let check = |request: &str, expected: &str| {
        let body = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#
        );
        let error = Incoming::parse(Endpoint::Validate, body.as_bytes()).err();
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{request}: {error}");
    };
    check("null", "has no request");
    check("{}", "has no uid");
    check("5", "expected a request");
    check(r#"{"uid":5}"#, "expected a string");
    check(
        r#"{"uid":"u","object":{},"object":{}}"#,
        "duplicate field `object`",
    );
    check(
        r#"{"uid":"u","operation":"CREATE","operation":"DELETE"}"#,
        "duplicate field `operation`",
    );
    check(r#"{"uid":"u","object":{"a":tru}}"#, "expected ident");
    check(
        r#"{"uid":"u"},"request":{"uid":"u"}"#,
        "duplicate field `request`",
    );
}

#[test]
fn a_uid_with_escapes_is_parsed() {
    let body = br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"a\u0062"}}"#;
    assert_eq!(Incoming::parse(Endpoint::Audit, body).unwrap().uid, "ab");
}

#[test]
fn a_duplicate_field_is_refused() {
    let body = br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","uid":"2"}}"#;
    let error = Incoming::parse(Endpoint::Validate, body).err().unwrap();
    assert!(matches!(error, Error::Json(_)));
}
