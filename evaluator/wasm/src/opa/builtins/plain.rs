//! Small builtins that need no bound.

use std::collections::BTreeSet;

use regorus::Value;

use super::{Own, rego, string};

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "cast_array" => |args| match args.first()? {
            array @ Value::Array(_) => Some(array.clone()),
            Value::Set(items) => Some(Value::from(items.iter().cloned().collect::<Vec<_>>())),
            _ => None,
        },
        "cast_set" => |args| match args.first()? {
            set @ Value::Set(_) => Some(set.clone()),
            Value::Array(items) => {
                Some(Value::from(items.iter().cloned().collect::<BTreeSet<_>>()))
            }
            _ => None,
        },
        "cast_boolean" => |args| only(args, |value| matches!(value, Value::Bool(_))),
        "cast_null" => |args| only(args, |value| matches!(value, Value::Null)),
        "cast_object" => |args| only(args, |value| matches!(value, Value::Object(_))),
        "cast_string" => |args| only(args, |value| matches!(value, Value::String(_))),
        "glob.quote_meta" => |args| Some(Value::from(quote_meta(string(args, 0)?))),
        "opa.runtime" => |_| Some(Value::new_object()),
        "rand.intn" => rand_intn,
        "strings.split_n" => split_n,
        "trace" => |_| Some(Value::Bool(true)),
        "uuid.parse" => |args| rego::delegate("uuid.parse", args),
        "uuid.rfc4122" => |_| Some(Value::from(uuid())),
        _ => return None,
    })
}

/// The argument, if it is of the kind.
fn only(args: &[Value], is: fn(&Value) -> bool) -> Option<Value> {
    args.first().filter(|value| is(value)).cloned()
}

/// A backslash before every letter that means something in a glob.
fn quote_meta(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if "*?\\[]{}".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// The first `n` parts, or the last if `n` is negative.
fn split_n(args: &[Value]) -> Option<Value> {
    let (text, by) = (string(args, 0)?, string(args, 1)?);
    let Value::Number(count) = args.get(2)? else {
        return None;
    };
    let count = count.as_i64()?;
    let most = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let parts: Vec<&str> = if by.is_empty() {
        text.split("").filter(|part| !part.is_empty()).collect()
    } else {
        text.split(by).collect()
    };
    let kept = if count < 0 {
        &parts[parts.len().saturating_sub(most)..]
    } else {
        &parts[..parts.len().min(most)]
    };
    Some(Value::from(
        kept.iter()
            .map(|part| Value::from(*part))
            .collect::<Vec<_>>(),
    ))
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
