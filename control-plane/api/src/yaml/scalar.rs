//! The core schema of YAML 1.2: what a plain scalar means.

use granit_parser::Tag;
use serde_json::{Number, Value};

use super::Reason;
use crate::json;

/// What a plain scalar without tag means.
pub(super) fn plain(text: &str) -> Result<Value, Reason> {
    if is_null(text) {
        return Ok(Value::Null);
    }
    if let Some(truth) = boolean(text) {
        return Ok(Value::Bool(truth));
    }
    match number(text)? {
        Some(number) => Ok(Value::Number(number)),
        None => Ok(Value::from(text)),
    }
}

/// What a scalar with a tag means.
pub(super) fn tagged(text: &str, tag: &Tag) -> Result<Value, Reason> {
    let misfit = || Reason::Tag {
        tag: tag.original(),
        value: text.to_owned(),
    };
    match tag.core_suffix() {
        Some("str") => Ok(Value::from(text)),
        Some("null") if is_null(text) => Ok(Value::Null),
        Some("bool") => boolean(text).map(Value::Bool).ok_or_else(misfit),
        Some("int") => match number(text)? {
            Some(number) if !number.is_f64() => Ok(Value::Number(number)),
            _ => Err(misfit()),
        },
        Some("float") => number(text)?.map(Value::Number).ok_or_else(misfit),
        // A lone `!` says: not resolved, that is, a string.
        None if tag.original() == "!" => Ok(Value::from(text)),
        _ => Err(misfit()),
    }
}

pub(super) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Result<Option<Number>, Reason> {
    let out_of_range = || Reason::NotFinite(text.to_owned());
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_digit(radix))
        {
            let number = u64::from_str_radix(digits, radix).map_err(|_| out_of_range())?;
            return Ok(Some(number.into()));
        }
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(out_of_range());
    }
    if !is_decimal(unsigned) {
        return Ok(None);
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    json::number(text).map(Some).ok_or_else(out_of_range)
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_decimal(text: &str) -> bool {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent_ok = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent_ok && digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
}
