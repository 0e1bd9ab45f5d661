//! Responses that the HTTP ports of both modes give.

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use prometheus_client::registry::Registry;
use serde_json::json;

/// All metrics, as text.
pub(crate) fn metrics(registry: &Registry) -> Response {
    match assent_evaluator::render_metrics(registry) {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

/// An error, as JSON.
pub(crate) fn error(code: StatusCode, message: &str) -> Response {
    (code, Json(json!({ "error": message }))).into_response()
}
