//! A strict reader of JSON text: duplicate keys are refused, and floats are rounded correctly.
//!
//! The plain reader of `serde_json` keeps the last of two equal keys and may be one unit off in
//! the last place of a float. Both would make what a user wrote and what is hashed differ.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Number, Value, value::RawValue};

/// Nesting that is read: evaluators accept no more in a request.
pub const MAX_DEPTH: usize = assent_yaml::MAX_DEPTH;

/// Why a text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not JSON, or an object with two equal keys.
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    /// Deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A number that no 64-bit float holds.
    #[error("the number {0} is out of range")]
    OutOfRange(String),
}

/// The fields of one object, values not taken apart yet.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// Reads one JSON text.
pub fn from_str(text: &str) -> Result<Value, Error> {
    let raw: &RawValue = serde_json::from_str(text)?;
    read(raw, 0)
}

/// Reads a value level by level, so that the text of each number is seen.
fn read(raw: &RawValue, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut map = Map::new();
            for (key, value) in serde_json::from_str::<Fields<'_>>(text)?.0 {
                map.insert(key.into_owned(), read(value, depth + 1)?);
            }
            Ok(Value::Object(map))
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            let items = items.into_iter().map(|item| read(item, depth + 1));
            Ok(Value::Array(items.collect::<Result<_, _>>()?))
        }
        Some(b'-' | b'0'..=b'9') => number(text)
            .map(Value::Number)
            .ok_or_else(|| Error::OutOfRange(text.to_owned())),
        _ => Ok(serde_json::from_str(text)?),
    }
}

/// The number that `text` means: exact if 64 bits hold it, else the nearest float.
pub(crate) fn number(text: &str) -> Option<Number> {
    if let Ok(n) = text.parse::<i64>() {
        return Some(n.into());
    }
    if let Ok(n) = text.parse::<u64>() {
        return Some(n.into());
    }
    Number::from_f64(text.parse().ok()?)
}

// === impl Fields ===

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(Key(key)) = map.next_key()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            fields.push((key, map.next_value()?));
        }
        Ok(Fields(fields))
    }
}

/// A key, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ambiguous_json_is_refused() {
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "duplicate key \"a\""),
            (r#"[{"b":{"\u0061":1,"a":2}}]"#, "duplicate key \"a\""),
            ("1e400", "1e400 is out of range"),
            ("{\"a\":}", "expected value"),
            ("{} {}", "trailing characters"),
            ("01", ""),
        ] {
            let error = from_str(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(from_str(&nest(MAX_DEPTH)).is_ok());
        assert!(matches!(
            from_str(&nest(MAX_DEPTH + 2)),
            Err(Error::TooDeep)
        ));
        assert!(from_str(&nest(100_000)).is_err());
    }

    #[test]
    fn values_are_read_exactly() {
        let value = from_str(r#" {"s":"\u00fc","n":[18446744073709551615,-1,0.5,true,null]} "#);
        assert_eq!(
            value.unwrap(),
            serde_json::json!({"s": "ü", "n": [u64::MAX, -1, 0.5, true, null]})
        );
    }
}
