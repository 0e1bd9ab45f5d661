//! Builtins whose usual form has no bound, with one.

use regex::Regex;
use regorus::Value;

use super::{Bounded, TooMuch, rego, string};
use crate::limits::OUTPUT_BYTES;

/// Comparisons in one call: some 10 ms.
const MAX_WORK: usize = 1_000_000;

/// Numbers in one range.
const MAX_NUMBERS: usize = 1_000_000;

/// Each `copy` of a patch may double the document.
const MAX_COPIES: usize = 8;

/// Digits and a unit.
const MAX_QUANTITY: usize = 64;

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "strings.any_prefix_match" => |args| any_match(args, |text, part| text.starts_with(part)),
        "strings.any_suffix_match" => |args| any_match(args, |text, part| text.ends_with(part)),
        "object.subset" => |args| within_work(args, "object.subset"),
        "json.patch" => json_patch,
        "regex.replace" => regex_replace,
        "units.parse" => |args| quantity(args, "units.parse"),
        "units.parse_bytes" => |args| quantity(args, "units.parse_bytes"),
        "numbers.range_step" => range_step,
        _ => return None,
    })
}

/// The strings of a string, an array or a set.
fn strings(value: &Value) -> Option<Vec<&str>> {
    let text = |value: &'_ Value| matches!(value, Value::String(_));
    match value {
        Value::String(string) => Some(vec![string]),
        Value::Array(items) if items.iter().all(text) => {
            Some(items.iter().filter_map(as_str).collect())
        }
        Value::Set(items) if items.iter().all(text) => {
            Some(items.iter().filter_map(as_str).collect())
        }
        _ => None,
    }
}

fn as_str(value: &Value) -> Option<&str> {
    if let Value::String(string) = value {
        Some(string)
    } else {
        None
    }
}

fn any_match(args: &[Value], matches: fn(&str, &str) -> bool) -> Result<Option<Value>, TooMuch> {
    let [texts, parts] = [0, 1].map(|index| args.get(index).and_then(strings));
    let (Some(texts), Some(parts)) = (texts, parts) else {
        return Ok(None);
    };
    within(texts.len().saturating_mul(parts.len()), MAX_WORK)?;
    let found = texts
        .iter()
        .any(|text| parts.iter().any(|part| matches(text, part)));
    Ok(Some(Value::Bool(found)))
}

fn within_work(args: &[Value], name: &str) -> Result<Option<Value>, TooMuch> {
    let size = |index: usize| match args.get(index) {
        Some(Value::Array(items)) => items.len(),
        _ => 1,
    };
    within(size(0).saturating_mul(size(1)), MAX_WORK)?;
    Ok(rego::delegate(name, args))
}

fn json_patch(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let Some(Value::Array(operations)) = args.get(1) else {
        return Ok(None);
    };
    let operation = Value::from("op");
    let is_copy = |item: &&Value| match item {
        Value::Object(fields) => fields.get(&operation).and_then(as_str) == Some("copy"),
        _ => false,
    };
    within(operations.iter().filter(is_copy).count(), MAX_COPIES)?;
    within(operations.len(), MAX_WORK)?;
    Ok(rego::delegate("json.patch", args))
}

fn regex_replace(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [Some(text), Some(pattern), Some(with)] = [0, 1, 2].map(|index| string(args, index)) else {
        return Ok(None);
    };
    let Ok(regex) = Regex::new(pattern) else {
        return Ok(None);
    };
    let (mut out, mut last) = (String::new(), 0);
    for captures in regex.captures_iter(text) {
        let whole = captures.get_match();
        out.push_str(&text[last..whole.start()]);
        captures.expand(with, &mut out);
        last = whole.end();
        within(out.len(), OUTPUT_BYTES)?;
    }
    out.push_str(&text[last..]);
    Ok(Some(Value::from(out)))
}

/// Exponents make numbers that take forever to write.
fn quantity(args: &[Value], name: &str) -> Result<Option<Value>, TooMuch> {
    let Some(text) = string(args, 0) else {
        return Ok(None);
    };
    let exponent = text
        .to_ascii_lowercase()
        .split_once('e')
        .map_or(0, |(_, rest)| rest.trim_matches(['+', '-', '"']).len());
    if text.len() <= MAX_QUANTITY && exponent <= 2 {
        return Ok(rego::delegate(name, args));
    }
    // What is no number at all is undefined however long it is.
    let number = text.trim_matches('"').trim_end_matches(char::is_alphabetic);
    match number.parse::<f64>() {
        Ok(_) => Err(TooMuch),
        Err(_) => Ok(None),
    }
}

/// Numbers from one to another, both included, upwards or downwards.
fn range_step(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let int = |index: usize| match args.get(index) {
        Some(Value::Number(number)) => number.as_i128(),
        _ => None,
    };
    let (Some(from), Some(to), Some(step)) = (int(0), int(1), int(2)) else {
        return Ok(None);
    };
    if step <= 0 {
        return Ok(None);
    }
    let count = to.abs_diff(from) / step.unsigned_abs();
    within(usize::try_from(count).unwrap_or(usize::MAX), MAX_NUMBERS)?;
    let count = i128::try_from(count).map_err(|_| TooMuch)?;
    let sign = if from <= to { 1 } else { -1 };
    let numbers = (0..=count).map(|index| Value::from(from + sign * step * index));
    Ok(Some(Value::from(numbers.collect::<Vec<_>>())))
}

/// Whether a call stays within its bound.
pub(super) fn within(work: usize, most: usize) -> Result<(), TooMuch> {
    if work <= most { Ok(()) } else { Err(TooMuch) }
}
