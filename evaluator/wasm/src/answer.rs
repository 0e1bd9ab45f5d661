//! The answers of waPC and WASI guests.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    effects::{self, RequestEffects},
    policy::EvalError,
    review::Review,
    verdict::{Mutation, Verdict},
};

#[derive(Deserialize)]
struct Validation<'a> {
    accepted: bool,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    code: Option<u16>,
    #[serde(default, borrow)]
    mutated_object: Option<&'a RawValue>,
    #[serde(default)]
    audit_annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Settings<'a> {
    valid: bool,
    #[serde(default, borrow)]
    message: Option<Cow<'a, str>>,
}

/// Parses the answer to `validate`.
pub(crate) fn validation(
    bytes: &[u8],
    review: &Review<'_>,
    mutating: bool,
) -> Result<Verdict, EvalError> {
    let answer: Validation<'_> =
        serde_json::from_slice(bytes).map_err(|error| EvalError::BadAnswer(error.to_string()))?;
    let verdict = Verdict {
        allowed: answer.accepted,
        code: answer.code,
        message: answer.message,
        patch: None,
        warnings: answer.warnings.unwrap_or_default(),
        audit_annotations: answer.audit_annotations.unwrap_or_default(),
        causes: Vec::new(),
        effects: None,
    };
    if review.check {
        return with_effects(verdict, answer.mutated_object);
    }
    let mutation = answer
        .mutated_object
        .map_or(Mutation::None, Mutation::Object);
    verdict.with_mutation(mutation, review, mutating)
}

/// A policy at Envoy has its effects where others have a changed object; `code` and `message` are a denial's status
/// and body.
fn with_effects(mut verdict: Verdict, effects: Option<&RawValue>) -> Result<Verdict, EvalError> {
    let effects = effects.filter(|text| text.get() != "null");
    let mut effects =
        effects.map_or_else(|| Ok(RequestEffects::default()), RequestEffects::parse)?;
    if let Some(code) = verdict.code {
        effects::check_status(code)?;
    }
    effects.http_status = effects.http_status.or(verdict.code);
    effects.body = effects.body.or_else(|| verdict.message.clone());
    verdict.effects = Some(Box::new(effects));
    Ok(verdict)
}

/// Parses the answer to `validate_settings`; the error is the module's message.
pub(crate) fn settings(bytes: &[u8]) -> Result<(), String> {
    let answer: Settings<'_> = serde_json::from_slice(bytes)
        .map_err(|error| format!("the module's answer about its settings is not valid: {error}"))?;
    if answer.valid {
        return Ok(());
    }
    let message = answer.message.filter(|message| !message.is_empty());
    Err(message.map_or_else(
        || "the module refuses them without a reason".to_owned(),
        Cow::into_owned,
    ))
}
