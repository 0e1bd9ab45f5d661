//! JSON Schema, drafts 4, 6 and 7.
//!
//! Written here because no crate fits: policies read `type` and `field` of the problems as OPA's library names them,
//! validation must stop at a bound and at the deadline of the evaluation, and patterns must not backtrack. Maintained
//! crates (`jsonschema`, `boon`) report other errors, run to their end whatever the schema, and the first matches
//! patterns with an engine that backtracks.

use regorus::Value;

use super::{Bounded, TooMuch, value};

mod compile;
mod fields;
mod format;
mod problem;
mod validate;

use compile::Schema;
use problem::Problem;
use validate::Validator;

/// Why a document is not a schema.
#[derive(Debug)]
enum Error {
    /// The reason.
    Wrong(String),
    /// It refers to another document, or is beyond a limit.
    TooMuch,
}

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "json.match_schema" => match_schema,
        "json.verify_schema" => verify_schema,
        _ => return None,
    })
}

/// Whether a document matches a schema, and its violations.
fn match_schema(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [document, schema] = [0, 1].map(|index| args.get(index).and_then(document));
    let (Some(document), Some(schema)) = (document, schema) else {
        return Ok(None);
    };
    let schema = match Schema::compile(&schema) {
        Ok(schema) => schema,
        Err(Error::Wrong(_)) => return Ok(None),
        Err(Error::TooMuch) => return Err(TooMuch),
    };
    let problems = Validator::new(&schema).check(&document)?;
    let valid = Value::Bool(problems.is_empty());
    let problems: Vec<Value> = problems.iter().map(Problem::value).collect();
    Ok(Some(Value::from(vec![valid, Value::from(problems)])))
}

/// Whether something is a schema, and why not.
fn verify_schema(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let schema = args.first().and_then(document);
    let compiled = match &schema {
        Some(schema) => Schema::compile(schema).map(drop),
        None => Err(Error::Wrong(
            "expected an object, or JSON as a string".to_owned(),
        )),
    };
    let answer = match compiled {
        Ok(()) => vec![Value::Bool(true), Value::Null],
        Err(Error::Wrong(why)) => vec![
            Value::Bool(false),
            Value::from(format!("jsonschema: {why}")),
        ],
        Err(Error::TooMuch) => return Err(TooMuch),
    };
    Ok(Some(Value::from(answer)))
}

/// A document, as it is or as JSON in a string.
fn document(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => {
            serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
            value::parse(text.as_bytes()).ok()
        }
        Value::Object(_) | Value::Array(_) => Some(json(value)),
        _ => None,
    }
}

/// A value in terms of JSON: sets become lists, keys become text.
fn json(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::from(items.iter().map(json).collect::<Vec<_>>()),
        Value::Set(items) => Value::from(items.iter().map(json).collect::<Vec<_>>()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| {
                let key = match key {
                    Value::String(_) => key.clone(),
                    other => Value::from(value::write(other).unwrap_or_default()),
                };
                (key, json(value))
            });
            Value::from(fields.collect::<std::collections::BTreeMap<_, _>>())
        }
        other => other.clone(),
    }
}
