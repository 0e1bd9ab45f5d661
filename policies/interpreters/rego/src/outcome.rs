//! What the value of the deciding rule means.

use std::collections::BTreeMap;

use interpreter_guest::{Answer, annotated};
use regorus::Value;
use serde_json::value::{RawValue, to_raw_value};

/// How the value of a rule is read, by the rule's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `deny` and `violation`: messages; any of them denies.
    Messages,
    /// `allow`: true, or denied.
    Allow,
    /// Anything else: its value tells.
    Any,
}

impl Form {
    pub(crate) fn of(rule: &str) -> Self {
        match rule.rsplit('.').next() {
            Some("deny" | "violation") => Self::Messages,
            Some("allow") => Self::Allow,
            _ => Self::Any,
        }
    }
}

/// The verdict. A value of another form is an error, never an allow.
pub(crate) fn answer(value: &Value, form: Form, request: &RawValue) -> Result<Answer, String> {
    match (value, form) {
        (Value::Set(set), _) => messages(set.iter_sorted()),
        (Value::Array(array), _) => messages(array.iter()),
        (Value::Object(_), Form::Any) => object(value, request),
        (Value::Bool(true), Form::Allow | Form::Any) => Ok(Answer::allow()),
        (Value::Bool(false), Form::Allow | Form::Any) | (Value::Undefined, Form::Allow) => {
            Ok(Answer::deny("the policy does not allow it"))
        }
        (Value::Undefined, _) => Err("the deciding rule is undefined".to_owned()),
        (other, Form::Messages) => Err(format!(
            "the deciding rule must be a set or a list of messages, it is {}",
            shown(other)
        )),
        (other, _) => Err(format!(
            "the deciding rule must be a set, a list, a boolean or an object, it is {}",
            shown(other)
        )),
    }
}

fn messages<'a>(values: impl Iterator<Item = &'a Value>) -> Result<Answer, String> {
    let messages: Vec<_> = values.map(message).collect::<Result<_, _>>()?;
    if messages.is_empty() {
        return Ok(Answer::allow());
    }
    Ok(Answer::deny(messages.join(", ")))
}

/// A message: a string, or the `msg` of an object.
fn message(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => Some(text),
        Value::Object(object) => match object.get(&Value::from("msg")) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let text = text.ok_or_else(|| {
        format!(
            "a message must be a string or an object with `msg`, it is {}",
            shown(value)
        )
    })?;
    Ok(text.to_string())
}

/// The start of a value, for a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The forms of an object; its fields decide which one it is.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Loose {
    response: Option<Box<Loose>>,
    allowed: Option<bool>,
    message: Option<String>,
    status: Option<Status>,
    patch: Option<serde_json::Value>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    audit_annotations: BTreeMap<String, String>,
    errors: Option<Vec<serde_json::Value>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(serde::Deserialize)]
struct Status {
    message: Option<String>,
    code: Option<u16>,
}

fn object(value: &Value, request: &RawValue) -> Result<Answer, String> {
    let text = value.to_json_str().map_err(|error| error.to_string())?;
    let loose: Loose = serde_json::from_str(&text)
        .map_err(|error| format!("the deciding rule is not a response: {error}"))?;
    let lists = loose.errors.is_some() || loose.annotations.is_some();
    let forms = [loose.response.is_some(), loose.allowed.is_some(), lists];
    match forms.iter().filter(|has| **has).count() {
        1 => loose.answer(request),
        0 => Err("the deciding rule has none of `response`, `allowed`, `errors` or `annotations`".to_owned()),
        _ => Err("the deciding rule has more than one of `response`, `allowed`, and `errors` or `annotations`: which one decides is not clear".to_owned()),
    }
}

impl Loose {
    fn answer(self, request: &RawValue) -> Result<Answer, String> {
        if let Some(response) = self.response {
            return match response.allowed {
                Some(allowed) => response.response(allowed, request),
                None => Err("the response has no `allowed`".to_owned()),
            };
        }
        if let Some(allowed) = self.allowed {
            return self.response(allowed, request);
        }
        let errors: Vec<_> = self.errors.unwrap_or_default().iter().map(words).collect();
        if !errors.is_empty() {
            return Ok(Answer::deny(errors.join(", ")));
        }
        let mut answer = Answer::allow();
        let annotations = self.annotations.unwrap_or_default();
        if !annotations.is_empty() {
            answer.mutated_object = Some(annotated(request, &annotations)?);
        }
        Ok(answer)
    }

    fn response(self, allowed: bool, request: &RawValue) -> Result<Answer, String> {
        let (message, code) = self
            .status
            .map_or((None, None), |status| (status.message, status.code));
        Ok(Answer {
            accepted: allowed,
            message: self.message.or(message),
            code,
            mutated_object: self
                .patch
                .map_or(Ok(None), |patch| patched(patch, request))?,
            audit_annotations: self.audit_annotations,
            warnings: self.warnings,
        })
    }
}

/// Strings as they are, anything else as JSON.
fn words(value: &serde_json::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The object of the request after a JSON patch.
fn patched(patch: serde_json::Value, request: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    if patch.is_null() || patch == "" {
        return Ok(None);
    }
    if patch.is_string() {
        return Err("the patch must be a list of operations; a text needs no base64".to_owned());
    }
    let bad = |error: &dyn std::fmt::Display| format!("the patch is not valid: {error}");
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| bad(&error))?;
    if patch.0.is_empty() {
        return Ok(None);
    }
    let mut request: serde_json::Value =
        serde_json::from_str(request.get()).map_err(|error| bad(&error))?;
    let mut object = request
        .get_mut("object")
        .map(serde_json::Value::take)
        .unwrap_or_default();
    if object.is_null() {
        return Err("it patches a request that has no object".to_owned());
    }
    json_patch::patch(&mut object, &patch).map_err(|error| bad(&error))?;
    to_raw_value(&object).map(Some).map_err(|error| bad(&error))
}
