//! HTTP responses: AdmissionReviews with a response, and errors as JSON.

use assent_wasm::{AdmissionResponse, Verdict};
use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use super::review::Endpoint;

/// Every decision names the revision that it came from. The API server prefixes each key with the webhook's name
/// and a slash, and drops keys that then have two slashes.
const REVISION: &str = "revision";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    response: AdmissionResponse<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
}

/// A review with its verdict.
pub(crate) fn verdict(endpoint: Endpoint, uid: &str, verdict: &Verdict) -> Response<Full<Bytes>> {
    let admission = endpoint != Endpoint::Raw;
    let review = Review {
        api_version: admission.then_some("admission.k8s.io/v1"),
        kind: admission.then_some("AdmissionReview"),
        response: AdmissionResponse::new(uid, verdict),
    };
    json(StatusCode::OK, &review)
}

/// Names the revision in the verdict, and replaces whatever the policy wrote there.
pub(crate) fn name_revision(verdict: &mut Verdict, revision: &str) {
    verdict
        .audit_annotations
        .insert(REVISION.to_owned(), revision.to_owned());
}

/// An error that no policy is responsible for.
pub(crate) fn error(status: StatusCode, error: &str) -> Response<Full<Bytes>> {
    let mut response = json(status, &ErrorBody { error });
    if status == StatusCode::SERVICE_UNAVAILABLE {
        // A second is longer than any queue here takes.
        let second = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, second);
    }
    response
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let bytes = serde_json::to_vec(body).expect("responses must be representable as JSON");
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
