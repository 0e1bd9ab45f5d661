//! Calls an evaluator.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, header};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Bytes of an answer that are read: the largest output of a policy, in base64, and some more.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Bytes of an error's body that go into a message.
const MAX_ERROR_CHARS: usize = 300;

/// An HTTP client for evaluators on loopback.
#[derive(Debug)]
pub(super) struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The address cannot be used.
    #[error("failed to build request to {0}: {1}")]
    Url(String, hyper::http::Error),
    /// No connection, or it broke. Evaluations change nothing, so another replica may be called.
    #[error("failed to call {0}: {1}")]
    Connection(String, String),
    /// The answer broke off or is too large.
    #[error("failed to read answer of {0}: {1}")]
    Body(String, String),
    /// Not an answer but an error.
    #[error("{0} answered {1}: {2}")]
    Status(String, StatusCode, String),
}

// === impl Client ===

impl Client {
    pub(super) fn new() -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    /// Posts JSON and returns the body of a successful response.
    pub(super) async fn post(&self, url: &str, body: Bytes) -> Result<Bytes, Error> {
        let request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Error::Url(url.to_owned(), error))?;
        let response = self.0.request(request).await;
        let response = response.map_err(|e| Error::Connection(url.to_owned(), root_cause(&e)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await;
        let body = body.map_err(|error| Error::Body(url.to_owned(), error.to_string()))?;
        let body = body.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body);
        let text = text.trim().chars().take(MAX_ERROR_CHARS).collect();
        Err(Error::Status(url.to_owned(), status, text))
    }
}

// === impl Error ===

impl Error {
    /// Whether another replica may do better.
    pub(super) fn may_retry(&self) -> bool {
        matches!(
            self,
            Error::Connection(..) | Error::Status(_, StatusCode::SERVICE_UNAVAILABLE, _)
        )
    }
}

/// The innermost error says what happened; those around it say that something did.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
