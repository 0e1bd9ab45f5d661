//! What goes out: AdmissionReview answers, and errors as JSON.

use std::collections::BTreeMap;

use assent_wasm::Verdict;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use super::review::Endpoint;

/// Every decision names the revision that it came from. The API server takes annotations
/// whose key has no slash and puts the webhook's name before them, so both forms are given.
const REVISION: &str = "assent.dev/revision";
const REVISION_SHORT: &str = "revision";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    response: Body<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Status<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Details<'a> {
    causes: Vec<Cause<'a>>,
}

#[derive(Serialize)]
struct Cause<'a> {
    message: &'a str,
}

#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
}

/// The answer of a policy.
pub(crate) fn verdict(endpoint: Endpoint, uid: &str, verdict: &Verdict) -> Response<Full<Bytes>> {
    let admission = endpoint != Endpoint::Raw;
    let review = Review {
        api_version: admission.then_some("admission.k8s.io/v1"),
        kind: admission.then_some("AdmissionReview"),
        response: Body {
            uid,
            allowed: verdict.allowed,
            status: status(verdict),
            patch_type: verdict.patch.as_ref().map(|_| "JSONPatch"),
            patch: verdict
                .patch
                .as_ref()
                .map(|patch| BASE64_STANDARD.encode(patch)),
            warnings: &verdict.warnings,
            audit_annotations: &verdict.audit_annotations,
        },
    };
    json(StatusCode::OK, &review)
}

/// Names the revision in the verdict, whatever the policy wrote there.
pub(crate) fn name_revision(verdict: &mut Verdict, revision: &str) {
    for key in [REVISION, REVISION_SHORT] {
        verdict
            .audit_annotations
            .insert(key.to_owned(), revision.to_owned());
    }
}

/// An error that is no policy's.
pub(crate) fn problem(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    let mut response = json(status, &Problem { error });
    if status == StatusCode::SERVICE_UNAVAILABLE {
        // A second is longer than any queue here.
        let second = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, second);
    }
    response
}

fn status(verdict: &Verdict) -> Option<Status<'_>> {
    if verdict.allowed && verdict.message.is_none() {
        return None;
    }
    let causes: Vec<_> = verdict
        .causes
        .iter()
        .map(|message| Cause { message })
        .collect();
    Some(Status {
        message: verdict.message.as_deref(),
        code: verdict.code,
        details: (!causes.is_empty()).then_some(Details { causes }),
    })
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let bytes = serde_json::to_vec(body).expect("answers must be representable as JSON");
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
