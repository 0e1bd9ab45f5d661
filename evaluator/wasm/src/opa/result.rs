//! Parses the result of a rule into a verdict.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    effects::RequestEffects,
    patch,
    policy::EvalError,
    review::Review,
    verdict::{Mutation, Verdict},
};

/// One entry of a result set.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

/// The forms that a plain Rego result may have; its fields decide which one it is.
#[derive(Deserialize)]
struct Loose {
    response: Option<Response>,
    allowed: Option<bool>,
    errors: Option<Vec<Value>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// `AdmissionReview.response`, or the result itself, in which `message` may stand for `status.message`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    allowed: bool,
    message: Option<String>,
    status: Option<Status>,
    patch: Option<Value>,
    warnings: Option<Vec<String>>,
    audit_annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Status {
    message: Option<String>,
    code: Option<u16>,
}

/// One violation of a Gatekeeper rule.
#[derive(Deserialize)]
struct Violation {
    msg: String,
}

/// Parses the result of a plain Rego policy.
pub(super) fn opa(
    answer: &[u8],
    review: &Review<'_>,
    mutating: bool,
) -> Result<Verdict, EvalError> {
    let result = first(answer)?;
    let loose: Loose = serde_json::from_str(result.get()).map_err(|error| bad(&error))?;
    if loose.forms() > 1 {
        return Err(EvalError::BadAnswer(
            "the result has more than one of `response`, `allowed`, and `errors` or `annotations`: which one decides is not clear".into(),
        ));
    }
    if let Some(response) = loose.response {
        return response.into_verdict(review, mutating);
    }
    if loose.allowed.is_some() {
        let response: Response = serde_json::from_str(result.get()).map_err(|error| bad(&error))?;
        return response.into_verdict(review, mutating);
    }
    if loose.errors.is_none() && loose.annotations.is_none() {
        return Err(EvalError::BadAnswer(
            "the result has none of `response`, `allowed`, `errors` or `annotations`".into(),
        ));
    }
    let errors: Vec<_> = loose.errors.unwrap_or_default().iter().map(words).collect();
    if !errors.is_empty() {
        return Ok(Verdict::deny(errors.join(", ")));
    }
    let annotations = loose.annotations.unwrap_or_default();
    Verdict::allow().with_mutation(annotate(&annotations, review)?, review, mutating)
}

/// Parses the result of a policy at Envoy.
pub(super) fn check(answer: &[u8]) -> Result<Verdict, EvalError> {
    let (allowed, effects) = RequestEffects::parse_decision(first(answer)?)?;
    Ok(Verdict {
        allowed,
        code: effects.http_status,
        message: effects.body.clone(),
        effects: Some(Box::new(effects)),
        ..Verdict::default()
    })
}

/// Parses the result of a Gatekeeper policy: an invalid result is an error, never an allow.
pub(super) fn gatekeeper(answer: &[u8]) -> Result<Verdict, EvalError> {
    let result = first(answer)?;
    let violations: Vec<Violation> =
        serde_json::from_str(result.get()).map_err(|error| bad(&error))?;
    if violations.is_empty() {
        return Ok(Verdict::allow());
    }
    let messages: Vec<_> = violations
        .into_iter()
        .map(|violation| violation.msg)
        .collect();
    Ok(Verdict::deny(messages.join(", ")))
}

/// The one result of an entrypoint.
fn first(answer: &[u8]) -> Result<&RawValue, EvalError> {
    let entries: Vec<Entry<'_>> = serde_json::from_slice(answer).map_err(|error| bad(&error))?;
    let entry = entries.first();
    entry
        .map(|entry| entry.result)
        .ok_or_else(|| EvalError::BadAnswer("the entrypoint is undefined".to_owned()))
}

fn bad(error: &serde_json::Error) -> EvalError {
    EvalError::BadAnswer(error.to_string())
}

/// Strings as they are, anything else as JSON.
fn words(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The patch that merges annotations into the object's.
fn annotate(
    annotations: &BTreeMap<String, String>,
    review: &Review<'_>,
) -> Result<Mutation<'static>, EvalError> {
    if annotations.is_empty() {
        return Ok(Mutation::None);
    }
    let object = review.subject().ok_or_else(|| {
        EvalError::BadAnswer("it annotates a request that has no object".to_owned())
    })?;
    let original: Value = serde_json::from_str(object).map_err(|error| bad(&error))?;
    let mut changed = original.clone();
    let own = field(&mut changed, "metadata").and_then(|metadata| field(metadata, "annotations"));
    let own = own.and_then(Value::as_object_mut);
    let own = own.ok_or_else(|| {
        EvalError::BadAnswer("it annotates an object without metadata".to_owned())
    })?;
    own.extend(
        annotations
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(value.as_str()))),
    );
    let patch = patch::of_values(&original, &changed)
        .map_err(|error| EvalError::BadAnswer(error.to_string()))?;
    Ok(patch.map_or(Mutation::None, Mutation::Patch))
}

/// A field of an object; an empty object is added if it is absent or null.
fn field<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let field = object.as_object_mut()?.entry(name).or_insert(Value::Null);
    if field.is_null() {
        *field = Value::Object(Map::new());
    }
    Some(field)
}

// === impl Loose ===

impl Loose {
    /// How many forms the result has at once; each would decide by itself.
    fn forms(&self) -> usize {
        let lists = self.errors.is_some() || self.annotations.is_some();
        [self.response.is_some(), self.allowed.is_some(), lists]
            .iter()
            .filter(|has| **has)
            .count()
    }
}

// === impl Response ===

impl Response {
    fn into_verdict(self, review: &Review<'_>, mutating: bool) -> Result<Verdict, EvalError> {
        let mutation = self.patch.map_or(Ok(Mutation::None), read_patch)?;
        let (message, code) = self
            .status
            .map_or((None, None), |status| (status.message, status.code));
        let verdict = Verdict {
            allowed: self.allowed,
            code,
            message: self.message.or(message),
            warnings: self.warnings.unwrap_or_default(),
            audit_annotations: self.audit_annotations.unwrap_or_default(),
            ..Verdict::default()
        };
        verdict.with_mutation(mutation, review, mutating)
    }
}

/// A patch is base64 as in an AdmissionReview, or the list itself.
fn read_patch(patch: Value) -> Result<Mutation<'static>, EvalError> {
    let not_a_patch = |why: String| EvalError::BadAnswer(format!("the patch is not valid: {why}"));
    let patch = match patch {
        Value::Null => return Ok(Mutation::None),
        Value::String(text) if text.is_empty() => return Ok(Mutation::None),
        Value::String(text) => BASE64_STANDARD
            .decode(text)
            .map_err(|error| not_a_patch(error.to_string()))?,
        other => other.to_string().into_bytes(),
    };
    let parsed: json_patch::Patch =
        serde_json::from_slice(&patch).map_err(|error| not_a_patch(error.to_string()))?;
    if parsed.0.is_empty() {
        Ok(Mutation::None)
    } else {
        Ok(Mutation::Patch(patch))
    }
}

#[cfg(test)]
mod tests;
