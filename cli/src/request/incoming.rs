//! The request file: an AdmissionReview, or the AdmissionRequest alone.

use std::borrow::Cow;

use assent_wasm::{Review, json};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

/// A request. The policy gets its bytes unchanged.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) uid: Cow<'a, str>,
    pub(crate) review: Review<'a>,
}

/// Why the file is not a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read the request: not JSON: {0}")]
    Json(serde_json::Error),
    #[error(
        "failed to read the request: it nests deeper than {} levels",
        json::MAX_DEPTH
    )]
    Depth,
    #[error(
        "failed to read the request: expected an AdmissionReview or an AdmissionRequest, which are objects"
    )]
    Shape,
    #[error(
        "failed to read the request: this is a {0}, not an AdmissionReview; to evaluate an object, pass it with -f instead of --request"
    )]
    Kind(String),
    #[error(
        "failed to read the request: apiVersion is {0:?}; only admission.k8s.io/v1 is supported"
    )]
    Version(String),
    #[error("failed to read the request: the AdmissionReview has no request")]
    Empty,
    #[error(
        "failed to read the request: it has a request but no kind; an AdmissionReview has kind AdmissionReview and apiVersion admission.k8s.io/v1"
    )]
    NoKind,
    #[error("failed to read the request: the AdmissionRequest has no uid; add one with any text")]
    NoUid,
    #[error("failed to read the request: {0}")]
    Request(#[from] assent_wasm::ReviewError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
}

// === impl Incoming ===

impl<'a> Incoming<'a> {
    /// Parses a body. A `raw` one is any document, or an object with the field `request` only.
    pub(crate) fn parse(body: &'a [u8], raw: bool) -> Result<Self, Error> {
        if !json::within_depth(body, json::MAX_DEPTH) {
            return Err(Error::Depth);
        }
        let document: &RawValue = serde_json::from_slice(body).map_err(Error::Json)?;
        let request = if raw {
            unwrap_raw(document)
        } else {
            unwrap_review(document)?
        };
        let review = if raw {
            Review::raw(request)
        } else {
            Review::admission(request)?
        };
        let head: Head<'a> = serde_json::from_str(request.get()).unwrap_or_default();
        Ok(Self {
            uid: head.uid.unwrap_or_default(),
            review,
        })
    }
}

fn unwrap_review(document: &RawValue) -> Result<&RawValue, Error> {
    let fields: Map<String, Value> =
        serde_json::from_str(document.get()).map_err(|_| Error::Shape)?;
    // The kind of a review is a string, that of a request an object.
    let Some(Value::String(kind)) = fields.get("kind") else {
        if fields.contains_key("request") {
            return Err(Error::NoKind);
        }
        return with_uid(document);
    };
    if kind != "AdmissionReview" {
        return Err(Error::Kind(kind.clone()));
    }
    let envelope: Envelope<'_> = serde_json::from_str(document.get()).map_err(Error::Json)?;
    let version = envelope.api_version.unwrap_or_default();
    if version != "admission.k8s.io/v1" {
        return Err(Error::Version(version.into_owned()));
    }
    let request = envelope.request.filter(|request| request.get() != "null");
    with_uid(request.ok_or(Error::Empty)?)
}

/// A uid is required because the response repeats it.
fn with_uid(request: &RawValue) -> Result<&RawValue, Error> {
    let fields: Map<String, Value> =
        serde_json::from_str(request.get()).map_err(|_| Error::Shape)?;
    match fields.get("uid") {
        Some(Value::String(uid)) if !uid.is_empty() => Ok(request),
        _ => Err(Error::NoUid),
    }
}

fn unwrap_raw(document: &RawValue) -> &RawValue {
    let fields: Result<Map<String, Value>, _> = serde_json::from_str(document.get());
    let alone = fields.is_ok_and(|fields| fields.len() == 1 && fields.contains_key("request"));
    let envelope = serde_json::from_str::<Envelope<'_>>(document.get()).ok();
    let request = envelope
        .filter(|_| alone)
        .and_then(|envelope| envelope.request);
    request.unwrap_or(document)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const REQUEST: &str =
        r#"{"uid":"u1","kind":{"kind":"Pod"},"operation":"CREATE","object":{"n":1.0}}"#;

    #[track_caller]
    fn check(body: &str, raw: bool, uid: &str, request: &str) {
        let incoming = Incoming::parse(body.as_bytes(), raw).unwrap();
        assert_eq!(incoming.uid, uid);
        assert_eq!(incoming.review.request, request);
        assert_eq!(incoming.review.raw, raw);
    }

    #[track_caller]
    fn check_error(body: &str, part: &str) {
        let error = Incoming::parse(body.as_bytes(), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn review_and_bare_request_are_equivalent() {
        check(REQUEST, false, "u1", REQUEST);
        let review = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{REQUEST}}}"#
        );
        check(&review, false, "u1", REQUEST);
    }

    #[test]
    fn raw_document_may_be_anything() {
        check(r#"{"request":{"uid":"r"}}"#, true, "r", r#"{"uid":"r"}"#);
        check(
            r#"{"request":1,"other":2}"#,
            true,
            "",
            r#"{"request":1,"other":2}"#,
        );
        check("[1]", true, "", "[1]");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        check_error("{", "not JSON");
        check_error("[]", "are objects");
        check_error(r#"{"kind":"Pod","apiVersion":"v1"}"#, "this is a Pod");
        check_error(
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{}}"#,
            "v1beta1",
        );
        let empty =
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}"#;
        check_error(empty, "has no request");
        check_error(&format!(r#"{{"request":{REQUEST}}}"#), "no kind");
        for uid in ["", r#""uid":"""#, r#""uid":1"#] {
            check_error(&format!("{{{uid}}}"), "no uid");
            let review = format!(
                r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{{uid}}}}}"#
            );
            check_error(&review, "no uid");
        }
        check_error(
            &format!("{}{}", "[".repeat(200), "]".repeat(200)),
            "deeper than",
        );
    }
}
