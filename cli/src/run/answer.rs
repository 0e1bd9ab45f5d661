//! A verdict for scripts, as an AdmissionResponse, and for people.

use std::{collections::BTreeMap, fmt};

use assent_wasm::Verdict;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::Value;

use crate::out::{clean, clean_lines};

/// `AdmissionReview.response`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Response<'a> {
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

/// The verdict in lines.
pub(crate) struct Text<'a>(pub(crate) &'a Verdict);

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

// === impl Response ===

impl<'a> Response<'a> {
    pub(crate) fn new(uid: &'a str, verdict: &'a Verdict) -> Self {
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

// === impl Text ===

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            allowed,
            code,
            message,
            patch,
            warnings,
            audit_annotations,
            causes,
        } = self.0;
        f.write_str(if *allowed { "allowed" } else { "denied" })?;
        if let Some(message) = message {
            write!(f, ": {}", clean_lines(message))?;
        }
        writeln!(f)?;
        if let Some(code) = code {
            writeln!(f, "  code     {code}")?;
        }
        for cause in causes {
            writeln!(f, "  cause    {}", clean(cause))?;
        }
        for warning in warnings {
            writeln!(f, "  warning  {}", clean(warning))?;
        }
        for operation in operations(patch.as_deref().unwrap_or_default()) {
            writeln!(f, "  patch    {}", clean(&operation))?;
        }
        for (key, value) in audit_annotations {
            writeln!(f, "  audit    {}: {}", clean(key), clean(value))?;
        }
        Ok(())
    }
}

/// `add /metadata/labels/team "shop"`, one for each step of a patch.
fn operations(patch: &[u8]) -> Vec<String> {
    let steps: Vec<Value> = serde_json::from_slice(patch).unwrap_or_default();
    let text = |step: &Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
    let shown = |step: &Value| {
        let value = step.get("value").map(|value| format!(" {value}"));
        let from = step
            .get("from")
            .map(|_| format!(" from {}", text(step, "from")));
        let rest = value.or(from).unwrap_or_default();
        format!("{} {}{rest}", text(step, "op"), text(step, "path"))
    };
    steps.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_everything_that_was_decided() {
        let verdict = Verdict {
            allowed: false,
            code: Some(403),
            message: Some("no\u{7}".into()),
            patch: Some(
                br#"[{"op":"add","path":"/a","value":1},{"op":"move","from":"/b","path":"/c"}]"#
                    .to_vec(),
            ),
            warnings: vec!["careful".into()],
            audit_annotations: [("k".into(), "v".into())].into(),
            causes: vec!["own words".into()],
        };
        let expect = "denied: no \n  code     403\n  cause    own words\n  warning  careful\n  patch    add /a 1\n  patch    move /c from /b\n  audit    k: v\n";
        assert_eq!(Text(&verdict).to_string(), expect);
    }

    #[test]
    fn scripts_get_an_admission_response() {
        let verdict = Verdict {
            allowed: true,
            patch: Some(b"[]".to_vec()),
            ..Verdict::default()
        };
        let json = serde_json::to_value(Response::new("u", &verdict)).ok();
        let expect = serde_json::json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "W10="});
        assert_eq!(json, Some(expect));
    }
}
