//! The interpreter of policies written in CEL, on `cel`, with the libraries of Kubernetes.
//!
//! A policy is a list of validations in the shape of a ValidatingAdmissionPolicy. The host passes it as JSON.

mod check;
mod json;
mod library;
mod spec;

use std::{collections::BTreeMap, sync::Arc};

use cel::{
    Context, Env, IdedExpr, Value,
    common::{
        types::{CelBool, CelMap, CelNull, CelString},
        value::Val,
    },
};
use interpreter_guest::{Answer, Language, Payload, Problem, Source, annotated};
use serde::Deserialize;
use serde_json::value::RawValue;

use spec::Spec;

interpreter_guest::export!(Cel);

/// A text that is ready to be evaluated.
pub struct Cel {
    env: Arc<Env>,
    variables: Vec<(String, IdedExpr)>,
    conditions: Vec<(String, IdedExpr)>,
    validations: Vec<Validation>,
    /// Merged into those of an object that is allowed.
    annotations: Vec<(String, IdedExpr)>,
    audit_annotations: Vec<(String, IdedExpr)>,
    used: check::Used,
}

struct Validation {
    expression: IdedExpr,
    text: String,
    message: Option<String>,
    message_expression: Option<IdedExpr>,
    code: u16,
}

/// The parts of a request that are bound to variables of their own.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "oldObject")]
    old_object: Option<&'a RawValue>,
}

impl Language for Cel {
    fn build(source: &Source) -> Result<Self, Problem> {
        let spec: Spec = serde_json::from_str(&source.text)
            .map_err(|error| format!("{}: {error}", source.file))?;
        let env = library::env().map_err(|error| error.to_string())?;
        spec.compile(&source.file, env)
    }

    fn entrypoint(&self) -> String {
        String::new()
    }

    fn validate(&mut self, payload: &Payload<'_>) -> Result<Answer, String> {
        let context = self.context(payload)?;
        for (name, expression) in &self.conditions {
            if !boolean(expression, &context)
                .map_err(|why| format!("matchConditions[{name}]: {why}"))?
            {
                return Ok(Answer::allow());
            }
        }
        let mut answer = Answer::allow();
        let mut messages = Vec::new();
        for validation in &self.validations {
            let passed = boolean(&validation.expression, &context)
                .map_err(|why| format!("expression '{}' failed: {why}", validation.text))?;
            if !passed {
                answer.accepted = false;
                answer.code = answer.code.or(Some(validation.code));
                messages.push(validation.message(&context));
            }
        }
        if !answer.accepted {
            answer.message = Some(messages.join(", "));
        }
        answer.audit_annotations = values("auditAnnotations", &self.audit_annotations, &context)?;
        if answer.accepted {
            let annotations = values("annotations", &self.annotations, &context)?;
            if !annotations.is_empty() {
                answer.mutated_object = Some(annotated(payload.request, &annotations)?);
            }
        }
        Ok(answer)
    }

    fn evaluate(&mut self, input: &str) -> Result<String, String> {
        let program = self.env.compile(input).map_err(|error| error.to_string())?;
        let context = Context::with_env(self.env.clone());
        let value = Value::resolve_val(program.expression(), &context)
            .map_err(|error| error.to_string())?;
        Ok(format!("{value:?}"))
    }
}

impl Cel {
    /// Binds the variables that the text uses.
    fn context<'p, 'v>(&self, payload: &Payload<'v>) -> Result<Context<'p, 'v>, String> {
        let mut context = Context::with_env(self.env.clone());
        let request: Request<'v> =
            serde_json::from_str(payload.request.get()).map_err(|error| error.to_string())?;
        if self.used.object {
            context.add_variable_as_val("object", json::value(request.object)?);
        }
        if self.used.old_object {
            context.add_variable_as_val("oldObject", json::value(request.old_object)?);
        }
        if self.used.params {
            context.add_variable_as_val("params", json::value(payload.settings)?);
        }
        if self.used.request {
            context.add_variable_as_val("request", json::request(payload.request)?);
        }
        if self.variables.is_empty() {
            return Ok(context);
        }
        let mut values: std::collections::HashMap<_, Box<dyn Val + 'v>> = Default::default();
        for (name, expression) in &self.variables {
            // An error counts only if a validation needs the variable: it is missing then.
            let value = {
                let mut scope = context.new_inner_scope();
                scope.add_variable_as_val("variables", Box::new(CelMap::from(values.clone())));
                Value::resolve_val(expression, &scope)
                    .ok()
                    .map(|value| value.clone_as_boxed())
            };
            if let Some(value) = value {
                values.insert(name.clone().into(), value);
            }
        }
        context.add_variable_as_val("variables", Box::new(CelMap::from(values)));
        Ok(context)
    }
}

impl Validation {
    /// What the author wants people to read, or the expression itself.
    fn message(&self, context: &Context<'_, '_>) -> String {
        let computed = self.message_expression.as_ref().and_then(|expression| {
            let value = Value::resolve_val(expression, context).ok()?;
            let text = value
                .downcast_ref::<CelString<'_>>()?
                .inner()
                .trim()
                .to_owned();
            (!text.is_empty() && !text.contains('\n')).then_some(text)
        });
        computed
            .or_else(|| self.message.clone())
            .unwrap_or_else(|| format!("failed expression: {}", self.text.trim()))
    }
}

fn boolean(expression: &IdedExpr, context: &Context<'_, '_>) -> Result<bool, String> {
    let value = Value::resolve_val(expression, context).map_err(|error| error.to_string())?;
    let value = value.downcast_ref::<CelBool>().map(|value| *value.inner());
    value.ok_or_else(|| "it is not a boolean".to_owned())
}

/// The values of annotations; those without one are left out.
fn values(
    field: &str,
    annotations: &[(String, IdedExpr)],
    context: &Context<'_, '_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut values = BTreeMap::new();
    for (key, expression) in annotations {
        let value =
            annotation(expression, context).map_err(|why| format!("{field}[{key}]: {why}"))?;
        values.extend(value.map(|value| (key.clone(), value)));
    }
    Ok(values)
}

/// A string; null means none.
fn annotation(expression: &IdedExpr, context: &Context<'_, '_>) -> Result<Option<String>, String> {
    let value = Value::resolve_val(expression, context).map_err(|error| error.to_string())?;
    if value.downcast_ref::<CelNull>().is_some() {
        return Ok(None);
    }
    let text = value
        .downcast_ref::<CelString<'_>>()
        .map(|text| text.inner().to_owned());
    text.map(Some)
        .ok_or_else(|| "it is not a string".to_owned())
}
