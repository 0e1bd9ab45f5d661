//! What the decision log has of a request to Envoy.

use assent_proto::envoy::service::auth::v3::attribute_context::HttpRequest;
use serde::Serialize;

use super::{check::Call, path::Target};
use crate::decision_log::{Subject, as_log_text};

/// The request of a call. Headers, queries and bodies are left out: they may have secrets.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestSubject<'a> {
    /// Names the decision, as `decision_id` in Envoy's metadata does.
    decision_id: &'a str,
    /// The client's `x-request-id`, as Envoy reports it.
    #[serde(serialize_with = "as_log_text")]
    request_id: &'a str,
    #[serde(serialize_with = "as_log_text")]
    method: &'a str,
    #[serde(serialize_with = "as_log_text")]
    host: &'a str,
    #[serde(serialize_with = "as_log_text")]
    path: &'a str,
}

// === impl RequestSubject ===

impl<'a> RequestSubject<'a> {
    pub(super) fn of(call: &'a Call) -> Self {
        let http: &HttpRequest = call.http();
        Self {
            decision_id: call.id(),
            request_id: &http.id,
            method: &http.method,
            host: &http.host,
            path: Target::split(&http.path).path,
        }
    }
}

impl Subject for RequestSubject<'_> {
    /// Methods and hosts are chosen by clients, so that they are no labels.
    fn kind(&self) -> String {
        "Request".to_owned()
    }

    fn namespace(&self) -> &str {
        ""
    }
}
