//! An API server for tests: a function answers, and every request is recorded.

#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// The requests that an API server got, in order.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<Recorded>>>);

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// Method and path, as in `GET /api/v1/pods`.
    pub(crate) line: String,
    /// The body; null if it has none.
    pub(crate) body: Value,
}

// === impl Requests ===

impl Requests {
    /// Method and path of each request since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let taken = std::mem::take(&mut *self.0.lock().unwrap());
        taken.into_iter().map(|request| request.line).collect()
    }

    /// The requests since the last call, with their bodies.
    pub(crate) fn take_all(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A client of an API server that answers `METHOD path` with a status code and a body.
pub(crate) fn scripted(
    answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, Requests) {
    let requests = Requests::default();
    let recorded = requests.clone();
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (recorded, answer) = (recorded.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let line = format!("{} {}", parts.method, parts.uri.path());
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            recorded.0.lock().unwrap().push(Recorded {
                line: line.clone(),
                body,
            });
            let (code, body) = answer(&line);
            let response = Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    (Client::new(service, "assent-system"), requests)
}

/// The answer of an API server that has no such object.
pub(crate) fn not_found() -> (u16, Value) {
    failure(404, "NotFound")
}

/// An error as an API server answers it.
pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": format!("{reason} from the test"),
        "code": code,
    });
    (code, status)
}
