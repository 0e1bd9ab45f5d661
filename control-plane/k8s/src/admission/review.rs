//! AdmissionReviews: requests and responses.
//!
//! The types are written by hand because those of `kube::core::admission` require objects with
//! typed metadata: a field of the metadata that this build does not know would be dropped before
//! it is validated, and patches would be computed against another object than the user's.

use axum::http::{HeaderMap, StatusCode, header};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use json_patch::PatchOperation;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Deserialize;
use serde_json::{Value, json};

const API_VERSION: &str = "admission.k8s.io/v1";

/// The request of an API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Identifies the request in its response.
    pub uid: String,
    /// The resource that is written, deleted or scaled.
    pub resource: Resource,
    /// Such as `scale`; empty for the object itself.
    pub sub_resource: String,
    /// Name of the object; empty if the API server generates it.
    pub name: String,
    /// Namespace of the object; empty if it is cluster-scoped.
    pub namespace: String,
    /// The operation.
    pub operation: Operation,
    /// Who asks.
    pub user_info: UserInfo,
    /// The new object; null for DELETE.
    pub object: Value,
    /// The existing object; null for CREATE.
    pub old_object: Value,
}

/// A resource of an API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// Its group; empty is the core group.
    pub group: String,
    /// Its plural name.
    pub resource: String,
}

/// An operation on an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Create.
    #[default]
    Create,
    /// Update.
    Update,
    /// Delete.
    Delete,
    /// Connect, such as `exec`.
    Connect,
}

/// The outcome of a review.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Why the request is refused, if it is.
    pub refusal: Option<Refusal>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Changes of the object.
    pub patch: Vec<PatchOperation>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP code that the client gets.
    pub code: u16,
    /// What is wrong and what to do.
    pub message: String,
}

/// Why a review gets no response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A content type other than JSON.
    #[error("reviews are application/json, not {0:?}")]
    ContentType(String),
    /// The body exceeds the limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body could not be read.
    #[error("failed to read the body: {0}")]
    Body(String),
    /// The body is not JSON, or not an AdmissionReview.
    #[error("failed to parse the body as an AdmissionReview: {0}")]
    Json(String),
    /// The body is another kind of object.
    #[error(
        "expected apiVersion admission.k8s.io/v1 and kind AdmissionReview, got {0:?} and {1:?}"
    )]
    Kind(String, String),
    /// The review has no request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// The request has no uid, so that it can't be answered.
    #[error("the request has no uid")]
    NoUid,
    /// A webhook configuration sends other resources here.
    #[error("{0:?} are not reviewed here; correct the rules of the webhook configuration")]
    Resource(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Envelope {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

/// Reviews are JSON, also if a client sends no content type.
pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Error::ContentType(text.into_owned())),
    }
}

// === impl Request ===

impl Request {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Error> {
        let envelope: Envelope =
            serde_json::from_slice(body).map_err(|error| Error::Json(error.to_string()))?;
        if envelope.api_version != API_VERSION || envelope.kind != "AdmissionReview" {
            return Err(Error::Kind(envelope.api_version, envelope.kind));
        }
        let request = envelope.request.ok_or(Error::NoRequest)?;
        match request.uid.is_empty() {
            true => Err(Error::NoUid),
            false => Ok(request),
        }
    }

    /// Checks that the request is about a kind that users write.
    pub(super) fn expect_ours(&self) -> Result<(), Error> {
        const OURS: &[&str] = &[
            "admissionpolicies",
            "clusteradmissionpolicies",
            "policyservers",
        ];
        let Resource { group, resource } = &self.resource;
        match group == assent_api::GROUP && OURS.contains(&resource.as_str()) {
            true => Ok(()),
            false => Err(self.unexpected()),
        }
    }

    /// Whether the request is about a PolicyRevision, which only the control plane writes.
    pub(super) fn is_revision(&self) -> bool {
        let Resource { group, resource } = &self.resource;
        group == assent_api::GROUP && resource == "policyrevisions"
    }

    /// Checks that the request is about a pod.
    pub(super) fn expect_pod(&self) -> Result<(), Error> {
        let Resource { group, resource } = &self.resource;
        match group.is_empty() && resource == "pods" && self.sub_resource.is_empty() {
            true => Ok(()),
            false => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> Error {
        let Resource { group, resource } = &self.resource;
        let dot = if group.is_empty() { "" } else { "." };
        let slash = if self.sub_resource.is_empty() {
            ""
        } else {
            "/"
        };
        Error::Resource(format!(
            "{resource}{slash}{}{dot}{group}",
            self.sub_resource
        ))
    }
}

// === impl Verdict ===

impl Verdict {
    /// Allows the request.
    pub fn allow() -> Self {
        Self::default()
    }

    /// Allows the request with warnings.
    pub fn warn(warnings: Vec<String>) -> Self {
        Self {
            warnings,
            ..Self::default()
        }
    }

    /// Allows the request and changes the object.
    pub fn patch(patch: Vec<PatchOperation>) -> Self {
        Self {
            patch,
            ..Self::default()
        }
    }

    /// Refuses an invalid object.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::refuse(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// Refuses an operation.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::refuse(StatusCode::FORBIDDEN, message)
    }

    /// Refuses temporarily.
    pub fn later(message: impl Into<String>) -> Self {
        Self::refuse(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    fn refuse(code: StatusCode, message: impl Into<String>) -> Self {
        let refusal = Refusal {
            code: code.as_u16(),
            message: message.into(),
        };
        Self {
            refusal: Some(refusal),
            ..Self::default()
        }
    }

    /// The AdmissionReview that responds to the request `uid`.
    pub fn review(&self, uid: &str) -> Value {
        let mut response = json!({ "uid": uid, "allowed": self.refusal.is_none() });
        if let Some(Refusal { code, message }) = &self.refusal {
            response["status"] = json!({ "code": code, "message": message });
        }
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        if !self.patch.is_empty() {
            let patch = serde_json::to_vec(&self.patch).expect("a patch must be JSON");
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(BASE64_STANDARD.encode(patch));
        }
        json!({ "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response })
    }
}

// === impl Error ===

impl Error {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Error::ContentType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Error::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Error::Body(_)
            | Error::Json(_)
            | Error::Kind(..)
            | Error::NoRequest
            | Error::NoUid
            | Error::Resource(_) => StatusCode::BAD_REQUEST,
        }
    }
}
