//! Reads the fields of a schema.

use regorus::Value;

use super::{Error, compile::Range};
use crate::opa::builtins::pattern::{Invalid, Pattern};

pub(super) type Fields = regorus::value::Object;

const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "number", "null", "object", "string",
];

/// A pattern of the schema; `why` is for one that is none.
pub(super) fn compiled(pattern: &str, why: &str) -> Result<Pattern, Error> {
    Pattern::new(pattern).map_err(|invalid| match invalid {
        Invalid::Syntax => wrong(why),
        Invalid::TooLarge => Error::TooMuch,
    })
}

pub(super) fn wrong(why: &str) -> Error {
    Error::Wrong(why.to_owned())
}

pub(super) fn get<'v>(fields: &'v Fields, name: &str) -> Option<&'v Value> {
    fields.get(&Value::from(name))
}

pub(super) fn text<'v>(fields: &'v Fields, name: &str) -> Result<Option<&'v str>, Error> {
    match get(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong(&format!("{name} must be a string"))),
    }
}

pub(super) fn number(fields: &Fields, name: &str) -> Result<Option<Value>, Error> {
    match get(fields, name) {
        None => Ok(None),
        Some(number @ Value::Number(_)) => Ok(Some(number.clone())),
        Some(_) => Err(wrong(&format!("{name} must be a number"))),
    }
}

pub(super) fn array<'v>(fields: &'v Fields, name: &str) -> Result<Vec<&'v Value>, Error> {
    match get(fields, name) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items.iter().collect()),
        Some(_) => Err(wrong(&format!("{name} must be an array"))),
    }
}

pub(super) fn object<'v>(
    fields: &'v Fields,
    name: &str,
) -> Result<Vec<(String, &'v Value)>, Error> {
    let fields = match get(fields, name) {
        None => return Ok(Vec::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(wrong(&format!("{name} must be an object"))),
    };
    let named = |(name, value): (&Value, &'v Value)| match name {
        Value::String(name) => Some((name.to_string(), value)),
        _ => None,
    };
    Ok(fields.iter_sorted().filter_map(named).collect())
}

pub(super) fn texts(value: &Value, name: &str) -> Result<Vec<String>, Error> {
    let text = |item: &Value| match item {
        Value::String(text) => Ok(text.to_string()),
        _ => Err(wrong(&format!("{name} must have strings"))),
    };
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        _ => Err(wrong(&format!("{name} must be an array of strings"))),
    }
}

pub(super) fn types(fields: &Fields) -> Result<Vec<&'static str>, Error> {
    let names = match get(fields, "type") {
        None => return Ok(Vec::new()),
        Some(Value::String(name)) => vec![name.to_string()],
        Some(other) => texts(other, "type")?,
    };
    let known = |name: String| {
        let found = TYPES.iter().find(|known| **known == name);
        found
            .copied()
            .ok_or_else(|| wrong(&format!("there is no type {name:?}")))
    };
    let types = names
        .into_iter()
        .map(known)
        .collect::<Result<Vec<_>, _>>()?;
    for (at, one) in types.iter().enumerate() {
        if types[..at].contains(one) {
            return Err(wrong(&format!("type names {one} twice")));
        }
    }
    Ok(types)
}

pub(super) fn range(fields: &Fields, least: &str, most: &str) -> Result<Range, Error> {
    let count = |name: &str| match get(fields, name) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            let count = number
                .as_i64()
                .and_then(|count| usize::try_from(count).ok());
            count
                .map(Some)
                .ok_or_else(|| wrong(&format!("{name} must be a whole number, 0 or more")))
        }
        Some(_) => Err(wrong(&format!("{name} must be a number"))),
    };
    let range = Range {
        least: count(least)?,
        most: count(most)?,
    };
    match (range.least, range.most) {
        // Arrays are not checked for it.
        (Some(from), Some(to)) if from > to && least != "minItems" => {
            Err(wrong(&format!("{least} is greater than {most}")))
        }
        _ => Ok(range),
    }
}
