//! Builtins whose usual form has no bound, with one.

use regex::Regex;
use regorus::Value;

use super::{Own, rego, string};
use crate::limits::OUTPUT_BYTES;

/// Comparisons in one call: some 10 ms.
const MAX_WORK: usize = 1_000_000;

/// Each `copy` of a patch may double the document.
const MAX_COPIES: usize = 8;

/// Digits and a unit.
const MAX_QUANTITY: usize = 64;

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "strings.any_prefix_match" => |args| any_match(args, |text, part| text.starts_with(part)),
        "strings.any_suffix_match" => |args| any_match(args, |text, part| text.ends_with(part)),
        "object.subset" => |args| within_work(args, "object.subset"),
        "json.patch" => json_patch,
        "regex.replace" => regex_replace,
        "units.parse" => |args| quantity(args, "units.parse"),
        "units.parse_bytes" => |args| quantity(args, "units.parse_bytes"),
        "rand.intn" => rand_intn,
        "uuid.rfc4122" => |_| Some(Value::from(uuid())),
        "uuid.parse" => |args| rego::delegate("uuid.parse", args),
        "opa.runtime" => |_| Some(Value::new_object()),
        "trace" => |_| Some(Value::Bool(true)),
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

fn any_match(args: &[Value], matches: fn(&str, &str) -> bool) -> Option<Value> {
    let (texts, parts) = (strings(args.first()?)?, strings(args.get(1)?)?);
    if texts.len().saturating_mul(parts.len()) > MAX_WORK {
        return None;
    }
    let found = texts
        .iter()
        .any(|text| parts.iter().any(|part| matches(text, part)));
    Some(Value::Bool(found))
}

fn within_work(args: &[Value], name: &str) -> Option<Value> {
    let size = |value: &Value| match value {
        Value::Array(items) => items.len(),
        _ => 1,
    };
    let work = size(args.first()?).saturating_mul(size(args.get(1)?));
    if work > MAX_WORK {
        None
    } else {
        rego::delegate(name, args)
    }
}

fn json_patch(args: &[Value]) -> Option<Value> {
    let Value::Array(operations) = args.get(1)? else {
        return None;
    };
    let operation = Value::from("op");
    let is_copy = |item: &&Value| match item {
        Value::Object(fields) => fields.get(&operation).and_then(as_str) == Some("copy"),
        _ => false,
    };
    let copies = operations.iter().filter(is_copy).count();
    if copies > MAX_COPIES || operations.len() > MAX_WORK {
        None
    } else {
        rego::delegate("json.patch", args)
    }
}

fn regex_replace(args: &[Value]) -> Option<Value> {
    let (text, pattern, with) = (string(args, 0)?, string(args, 1)?, string(args, 2)?);
    let regex = Regex::new(pattern).ok()?;
    let (mut out, mut last) = (String::new(), 0);
    for captures in regex.captures_iter(text) {
        let whole = captures.get(0)?;
        out.push_str(&text[last..whole.start()]);
        captures.expand(with, &mut out);
        last = whole.end();
        if out.len() > OUTPUT_BYTES {
            return None;
        }
    }
    out.push_str(&text[last..]);
    Some(Value::from(out))
}

/// Exponents make numbers that take forever to write.
fn quantity(args: &[Value], name: &str) -> Option<Value> {
    let text = string(args, 0)?;
    let exponent = text
        .to_ascii_lowercase()
        .split_once('e')
        .map_or(0, |(_, rest)| rest.trim_matches(['+', '-', '"']).len());
    if text.len() > MAX_QUANTITY || exponent > 2 {
        None
    } else {
        rego::delegate(name, args)
    }
}

/// OPA's is the same for the same seed within one evaluation; so is this one, without state.
fn rand_intn(args: &[Value]) -> Option<Value> {
    let seed = string(args, 0)?;
    let below = match args.get(1)? {
        Value::Number(number) => number.as_i64()?.unsigned_abs(),
        _ => return None,
    };
    if below == 0 {
        return Some(Value::from(0_i64));
    }
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(seed.as_bytes());
    let random = u64::from_be_bytes(*digest.first_chunk()?);
    Some(Value::from(random % below))
}

/// A random identifier, version 4.
fn uuid() -> String {
    let mut bytes = [0_u8; 16];
    rand::fill(&mut bytes[..]);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex::encode(bytes);
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
