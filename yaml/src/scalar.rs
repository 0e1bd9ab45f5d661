//! What a scalar means: the rules of YAML 1.1 as `kubectl` applies them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use granit_parser::Tag;
use serde_json::{Number, Value};

use super::Reason;

/// The namespace of the tags that YAML defines, such as `!!int`.
const CORE: &str = "tag:yaml.org,2002:";

/// A scalar as it is resolved, before JSON takes the difference of some kinds away.
enum Resolved {
    Null,
    Bool(bool),
    Int(i64),
    /// Beyond the signed numbers.
    Uint(u64),
    Float(f64),
    Text,
}

/// The value of a plain scalar without tag.
pub(super) fn plain(text: &str) -> Result<Value, Reason> {
    value(resolve(text), text)
}

/// The text and the value of a plain scalar without tag that is a key.
pub(super) fn plain_key(text: &str) -> Result<(String, Value), Reason> {
    let resolved = resolve(text);
    let key = key_text(&resolved, text)?;
    // A key that JSON has no number for is still text.
    let value = value(resolved, text).unwrap_or_else(|_| Value::from(text));
    Ok((key, value))
}

/// The value of a scalar with a tag.
pub(super) fn tagged(text: &str, tag: &Tag) -> Result<Value, Reason> {
    value(resolve_tagged(text, tag)?, text).and_then(|value| binary(value, tag))
}

/// The text and the value of a scalar with a tag that is a key.
pub(super) fn tagged_key(text: &str, tag: &Tag) -> Result<(String, Value), Reason> {
    let value = tagged(text, tag)?;
    Ok((key(&value)?, value))
}

/// The text of a key that is an alias.
pub(super) fn key(value: &Value) -> Result<String, Reason> {
    match value {
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(int), _) => Ok(int.to_string()),
            (None, Some(float)) => Ok(float_key(float)),
            (None, None) => Err(Reason::ComplexKey),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => Err(Reason::ComplexKey),
    }
}

/// Whether a tag marks a merge key.
pub(super) fn is_merge(tag: &Tag) -> bool {
    core(tag).as_deref() == Some("merge")
}

/// The rest of a tag in the namespace of YAML.
fn core(tag: &Tag) -> Option<String> {
    let whole = format!("{}{}", tag.handle(), tag.suffix());
    whole.strip_prefix(CORE).map(str::to_owned)
}

fn resolve_tagged(text: &str, tag: &Tag) -> Result<Resolved, Reason> {
    let resolved = resolve(text);
    match (core(tag).as_deref(), resolved) {
        (Some("null"), Resolved::Null) => Ok(Resolved::Null),
        (Some("bool"), resolved @ Resolved::Bool(_)) => Ok(resolved),
        (Some("int"), resolved @ (Resolved::Int(_) | Resolved::Uint(_))) => Ok(resolved),
        (Some("float"), resolved @ (Resolved::Int(_) | Resolved::Uint(_) | Resolved::Float(_))) => {
            Ok(resolved)
        }
        (Some("null" | "bool" | "int" | "float"), _) => Err(mismatch(text, tag)),
        // Tags that YAML does not define make text of a scalar.
        _ => Ok(Resolved::Text),
    }
}

fn binary(value: Value, tag: &Tag) -> Result<Value, Reason> {
    let Value::String(text) = &value else {
        return Ok(value);
    };
    if core(tag).as_deref() != Some("binary") {
        return Ok(value);
    }
    let encoded: String = text.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(encoded);
    let bytes = bytes.map_err(|_| mismatch(text, tag))?;
    Ok(Value::from(String::from_utf8_lossy(&bytes)))
}

fn mismatch(text: &str, tag: &Tag) -> Reason {
    Reason::Tag {
        tag: tag.original(),
        value: text.to_owned(),
    }
}

fn value(resolved: Resolved, text: &str) -> Result<Value, Reason> {
    Ok(match resolved {
        Resolved::Null => Value::Null,
        Resolved::Bool(truth) => Value::Bool(truth),
        Resolved::Int(int) => int.into(),
        // An API server reads numbers beyond the signed ones as floats.
        Resolved::Uint(uint) => (uint as f64).into(),
        Resolved::Float(float) => number(float)
            .map(Value::Number)
            .ok_or_else(|| Reason::NotFinite(text.to_owned()))?,
        Resolved::Text => Value::from(text),
    })
}

/// A float as it is after a passage through JSON, where `1.0` is written `1`.
fn number(float: f64) -> Option<Number> {
    // 2^63: below it every whole float is a signed number.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if float.fract() == 0.0 && (-LIMIT..LIMIT).contains(&float) {
        return Some((float as i64).into());
    }
    Number::from_f64(float)
}

fn key_text(resolved: &Resolved, text: &str) -> Result<String, Reason> {
    Ok(match resolved {
        Resolved::Null | Resolved::Uint(_) => return Err(Reason::ComplexKey),
        Resolved::Bool(truth) => truth.to_string(),
        Resolved::Int(int) => int.to_string(),
        Resolved::Float(float) => float_key(*float),
        Resolved::Text => text.to_owned(),
    })
}

/// A float as a key: the shortest text that gives the same 32-bit float, with an exponent below
/// 1e-4 and from 1e6.
fn float_key(float: f64) -> String {
    let float = float as f32;
    if float.is_nan() {
        return ".nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{float}")
}

fn resolve(text: &str) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Resolved::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Resolved::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Resolved::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Resolved::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Resolved::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let digits = match text.as_bytes().first() {
        Some(b'0'..=b'9' | b'+' | b'-') => text.replace('_', ""),
        Some(b'.') => text.to_owned(),
        _ => return Resolved::Text,
    };
    integer(&digits)
        .or_else(|| float(&digits))
        .unwrap_or(Resolved::Text)
}

/// An integer with an optional sign, in the base that its prefix names.
fn integer(text: &str) -> Option<Resolved> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (radix, digits) = match unsigned.get(..2) {
        Some("0x" | "0X") => (16, unsigned.get(2..)?),
        Some("0o" | "0O") => (8, unsigned.get(2..)?),
        Some("0b" | "0B") => (2, unsigned.get(2..)?),
        _ if unsigned.len() > 1 && unsigned.starts_with('0') => (8, unsigned.get(1..)?),
        _ => (10, unsigned),
    };
    // The parser of the standard library takes another sign.
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let signed = if negative { -magnitude } else { magnitude };
    match i64::try_from(signed) {
        Ok(int) => Some(Resolved::Int(int)),
        Err(_) => u64::try_from(signed).ok().map(Resolved::Uint),
    }
}

fn float(text: &str) -> Option<Resolved> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !is_decimal(unsigned) {
        return None;
    }
    let float: f64 = text.parse().ok()?;
    // Out of range is text, as `kubectl` has it.
    float.is_finite().then_some(Resolved::Float(float))
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
