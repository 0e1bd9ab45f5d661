//! A verdict as the API server reads it.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;

use crate::verdict::Verdict;

/// `AdmissionReview.response`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse<'a> {
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

// === impl AdmissionResponse ===

impl<'a> AdmissionResponse<'a> {
    /// The answer to the request with this uid.
    pub fn new(uid: &'a str, verdict: &'a Verdict) -> Self {
        let patch = verdict.patch.as_ref();
        Self {
            uid,
            allowed: verdict.allowed,
            status: Status::of(verdict),
            patch_type: patch.map(|_| "JSONPatch"),
            patch: patch.map(|patch| BASE64_STANDARD.encode(patch)),
            warnings: &verdict.warnings,
            audit_annotations: &verdict.audit_annotations,
        }
    }
}

// === impl Status ===

impl<'a> Status<'a> {
    fn of(verdict: &'a Verdict) -> Option<Self> {
        if verdict.allowed && verdict.message.is_none() {
            return None;
        }
        let causes: Vec<_> = verdict
            .causes
            .iter()
            .map(|message| Cause { message })
            .collect();
        Some(Self {
            message: verdict.message.as_deref(),
            code: verdict.code,
            details: (!causes.is_empty()).then_some(Details { causes }),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check(verdict: &Verdict, expected: serde_json::Value) {
        let response = AdmissionResponse::new("u", verdict);
        assert_eq!(serde_json::to_value(response).unwrap(), expected);
    }

    #[test]
    fn absent_fields_are_omitted() {
        let verdict = Verdict {
            allowed: true,
            patch: Some(b"[]".to_vec()),
            ..Verdict::default()
        };
        check(
            &verdict,
            serde_json::json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "W10="}),
        );
    }

    #[test]
    fn a_denial_says_everything() {
        let verdict = Verdict {
            code: Some(403),
            message: Some("ask the platform team".to_owned()),
            causes: vec!["own words".to_owned()],
            warnings: vec!["careful".to_owned()],
            audit_annotations: [("k".to_owned(), "v".to_owned())].into(),
            ..Verdict::default()
        };
        let status = serde_json::json!({
            "message": "ask the platform team",
            "code": 403,
            "details": {"causes": [{"message": "own words"}]},
        });
        check(
            &verdict,
            serde_json::json!({
                "uid": "u", "allowed": false, "status": status,
                "warnings": ["careful"], "auditAnnotations": {"k": "v"},
            }),
        );
    }
}
