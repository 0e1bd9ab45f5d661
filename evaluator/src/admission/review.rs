//! Parses AdmissionReviews once; `request` stays the text that was sent, because policies get it as it is.
//!
//! The control plane's own webhooks read reviews into values instead, which they validate and patch: the two share
//! the format and no code.

use std::borrow::Cow;

use http::{HeaderMap, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::evaluation::Overloaded;

mod request;
#[cfg(test)]
mod tests;

use request::Request;

/// The endpoints of the review port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// For webhooks: policies in monitor mode let denials pass.
    Validate,
    /// For validating webhooks of policies that mutate: a change that a policy would still make is a denial.
    Confirm,
    /// The verdict whatever the mode.
    Audit,
    /// The document is not an admission request.
    Raw,
}

/// A review; of its request only the fields that the host needs are parsed.
pub(crate) struct Incoming<'a> {
    pub(crate) uid: Cow<'a, str>,
    pub(crate) review: assent_wasm::Review<'a>,
}

/// Why a request is refused before any policy evaluates it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("reviews are sent with POST, not {0}")]
    Method(Method),
    #[error(
        "no such endpoint: try POST /validate/<path>, /confirm/<path>, /audit/<path> or /validate_raw/<path>"
    )]
    Endpoint,
    #[error("reviews are application/json, not {0:?}")]
    ContentType(String),
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("failed to read the body: {0}")]
    Body(String),
    #[error("the body did not arrive in time")]
    Slow,
    #[error("failed to parse the body as an AdmissionReview: {0}")]
    Json(String),
    #[error("the body nests deeper than {} levels", assent_wasm::json::MAX_DEPTH)]
    Depth,
    #[error(
        "expected apiVersion admission.k8s.io/v1 and kind AdmissionReview, got {0:?} and {1:?}"
    )]
    Kind(String, String),
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the request has no uid")]
    NoUid,
    #[error("this evaluator answers clients with a certificate of its --client-ca only")]
    NoCertificate,
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<Request<'a>>,
}

/// For requests whose text [`Request`] can't locate.
#[derive(Deserialize)]
struct Unparsed<'a> {
    #[serde(borrow)]
    request: &'a RawValue,
}

#[derive(Deserialize)]
struct RawEnvelope<'a> {
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct RawHead<'a> {
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
}

// === impl Endpoint ===

impl Endpoint {
    /// Splits a URL's path into the endpoint and the route's path.
    pub(crate) fn split(path: &str) -> Option<(Self, &str)> {
        let (endpoint, rest) = path.strip_prefix('/')?.split_once('/')?;
        let endpoint = match endpoint {
            "validate" => Self::Validate,
            "confirm" => Self::Confirm,
            "audit" => Self::Audit,
            "validate_raw" => Self::Raw,
            _ => return None,
        };
        (!rest.is_empty()).then_some((endpoint, rest))
    }
}

// === impl Incoming ===

impl<'a> Incoming<'a> {
    pub(crate) fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, Error> {
        if !assent_wasm::json::within_depth(body, assent_wasm::json::MAX_DEPTH) {
            return Err(Error::Depth);
        }
        match endpoint {
            Endpoint::Validate | Endpoint::Confirm | Endpoint::Audit => Self::admission(body),
            Endpoint::Raw => Self::raw(body),
        }
    }

    fn admission(body: &'a [u8]) -> Result<Self, Error> {
        let body = std::str::from_utf8(body).map_err(|error| Error::Json(error.to_string()))?;
        let envelope: Envelope<'a> = parse(body)?;
        if envelope.api_version != "admission.k8s.io/v1" || envelope.kind != "AdmissionReview" {
            let (version, kind) = (envelope.api_version, envelope.kind);
            return Err(Error::Kind(version.into_owned(), kind.into_owned()));
        }
        let head = envelope.request.ok_or(Error::NoRequest)?;
        if head.uid.is_empty() {
            return Err(Error::NoUid);
        }
        let request = match head.text(body) {
            Some(request) => request,
            None => parse::<Unparsed<'a>>(body)?.request.get(),
        };
        // The API server's operations need no escapes; a text with escapes is no operation that matters here.
        let operation = match head.operation {
            Cow::Borrowed(operation) => operation,
            Cow::Owned(_) => "",
        };
        let review = assent_wasm::Review {
            request,
            object: head.object,
            operation,
            raw: false,
            check: false,
        };
        Ok(Self {
            uid: head.uid,
            review,
        })
    }

    fn raw(body: &'a [u8]) -> Result<Self, Error> {
        let envelope: RawEnvelope<'a> =
            serde_json::from_slice(body).map_err(|error| Error::Json(error.to_string()))?;
        let request = envelope
            .request
            .filter(|request| request.get() != "null")
            .ok_or(Error::NoRequest)?;
        let head: RawHead<'a> = serde_json::from_str(request.get()).unwrap_or_default();
        Ok(Self {
            uid: head.uid,
            review: assent_wasm::Review::raw(request),
        })
    }
}

// === impl Error ===

impl Error {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Endpoint => StatusCode::NOT_FOUND,
            Self::ContentType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::NoCertificate => StatusCode::UNAUTHORIZED,
            Self::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// `application/json`, with parameters or without.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    let value = headers
        .get(header::CONTENT_TYPE)
        .map(|value| value.as_bytes());
    let text = String::from_utf8_lossy(value.unwrap_or_default());
    let kind = text.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Error::ContentType(kind.chars().take(100).collect()))
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Json(error.to_string()))
}
