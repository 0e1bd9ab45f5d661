//! What policies answer, and what the answers amount to.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use json_patch::Patch;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::review::Review;

/// What became of asking one policy.
pub(super) enum Answer {
    /// The request does not concern it, or it failed and that is to be ignored.
    NotAsked,
    /// It said something.
    Given(Box<Verdict>),
    /// It could not be called, and the request must fail.
    Failed(String),
    /// Its match conditions could not be evaluated, and the request must fail then.
    Broken(String),
}

/// What a policy said.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    uid: String,
    allowed: bool,
    #[serde(default)]
    status: Option<Map<String, Value>>,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    patch_type: Option<String>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
    #[serde(default)]
    audit_annotations: Option<BTreeMap<String, String>>,
}

/// What all answers amount to.
pub(super) struct Merged {
    /// The status of the first denial.
    denial: Option<Map<String, Value>>,
    /// Operations as they were written: applied one after the other they are one patch.
    patch: Vec<Box<RawValue>>,
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    response: Option<Box<Verdict>>,
}

/// Reads an answer, and checks what the API server checks.
pub(super) fn read(body: &[u8], uid: &str) -> Result<Box<Verdict>, String> {
    let envelope: Envelope = serde_json::from_slice(body)
        .map_err(|error| format!("failed to read the answer: {error}"))?;
    if (envelope.api_version.as_str(), envelope.kind.as_str())
        != ("admission.k8s.io/v1", "AdmissionReview")
    {
        return Err(format!(
            "expected an admission.k8s.io/v1 AdmissionReview, got {:?} {:?}",
            envelope.api_version, envelope.kind
        ));
    }
    let verdict = envelope.response.ok_or("the answer has no response")?;
    if verdict.uid != uid {
        return Err(format!(
            "expected response.uid {uid:?}, got {:?}",
            verdict.uid
        ));
    }
    Ok(verdict)
}

// === impl Merged ===

impl Merged {
    pub(super) fn new() -> Self {
        Self {
            denial: None,
            patch: Vec::new(),
            warnings: Vec::new(),
            annotations: BTreeMap::new(),
        }
    }

    /// Adds an answer; false if the request is denied. `object` is what a patch
    /// changes; without it patches are ignored, as validating policies have none.
    pub(super) fn add(&mut self, name: &str, answer: Answer, object: Option<&mut Review>) -> bool {
        let verdict = match answer {
            Answer::NotAsked => return true,
            Answer::Given(verdict) => verdict,
            Answer::Failed(why) => {
                return self.fail(&format!("failed calling webhook \"{name}\": {why}"));
            }
            Answer::Broken(why) => return self.fail(&format!("webhook \"{name}\": {why}")),
        };
        self.warnings
            .extend(verdict.warnings.clone().unwrap_or_default());
        for (key, value) in verdict.audit_annotations.clone().unwrap_or_default() {
            self.annotations.insert(format!("{name}/{key}"), value);
        }
        if !verdict.allowed {
            self.deny(denied(name, verdict.status));
            return false;
        }
        match object.map(|review| self.apply(&verdict, review)) {
            Some(Err(why)) => self.fail(&format!("admission webhook \"{name}\" {why}")),
            _ => true,
        }
    }

    /// Applies a patch, and adds it to those before.
    fn apply(&mut self, verdict: &Verdict, review: &mut Review) -> Result<(), String> {
        let Some(patch) = verdict.patch.as_deref().filter(|patch| !patch.is_empty()) else {
            return Ok(());
        };
        if verdict.patch_type.as_deref() != Some("JSONPatch") {
            return Err(format!(
                "gave a patch of type {:?}; only JSONPatch is known",
                verdict.patch_type
            ));
        }
        let bytes = BASE64_STANDARD.decode(patch);
        let bytes = bytes.map_err(|error| format!("gave a patch that is not base64: {error}"))?;
        let bad = |error| format!("gave a patch that is not a JSON patch: {error}");
        let operations: Vec<Box<RawValue>> = serde_json::from_slice(&bytes).map_err(bad)?;
        let typed: Patch = serde_json::from_slice(&bytes).map_err(bad)?;
        if operations.is_empty() {
            return Ok(());
        }
        let mut object = review.request().object.clone();
        if object.is_null() {
            return Err(
                "attempted to modify the object, which is not supported for this operation"
                    .to_owned(),
            );
        }
        json_patch::patch(&mut object, &typed)
            .map_err(|error| format!("gave a patch that does not fit the object: {error}"))?;
        review.set_object(object);
        self.patch.extend(operations);
        Ok(())
    }

    fn fail(&mut self, why: &str) -> bool {
        let message = format!("Internal error occurred: {why}");
        let status = json!({
            "status": "Failure",
            "message": message,
            "reason": "InternalError",
            "details": {"causes": [{"message": why}]},
            "code": 500,
        });
        if let Value::Object(status) = status {
            self.deny(status);
        }
        false
    }

    fn deny(&mut self, status: Map<String, Value>) {
        self.denial.get_or_insert(status);
    }

    /// The AdmissionReview that goes back. A denied request changes nothing.
    pub(super) fn respond(self, uid: &str) -> Bytes {
        let mut response = json!({"uid": uid, "allowed": self.denial.is_none()});
        if let Some(status) = self.denial {
            response["status"] = Value::Object(status);
        } else if !self.patch.is_empty() {
            let patch = serde_json::to_vec(&self.patch).expect("a patch must be JSON");
            response["patch"] = Value::from(BASE64_STANDARD.encode(patch));
            response["patchType"] = Value::from("JSONPatch");
        }
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        if !self.annotations.is_empty() {
            response["auditAnnotations"] = json!(self.annotations);
        }
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        serde_json::to_vec(&review)
            .expect("a review must be JSON")
            .into()
    }
}

/// The status that a client sees: who denied, and why.
fn denied(name: &str, status: Option<Map<String, Value>>) -> Map<String, Value> {
    let mut status = status.unwrap_or_default();
    let text = |field: &str| {
        status
            .get(field)
            .and_then(Value::as_str)
            .filter(|s| !s.is_empty())
    };
    let denied = format!("admission webhook \"{name}\" denied the request");
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    // A code that is no error would make the denial look like a success.
    let code = status.get("code").and_then(Value::as_u64);
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    status.insert("status".to_owned(), Value::from("Failure"));
    status.insert("message".to_owned(), Value::from(message));
    status.insert("code".to_owned(), Value::from(code));
    status
}
