//! Rego values as text: JSON with sets, and with keys of any kind.

use std::fmt::Write as _;

use regorus::Value;

use crate::{
    limits::{JSON_DEPTH, OUTPUT_BYTES},
    opa::deadline,
};

mod parse;

pub(super) use parse::{Error, parse};

/// Writes a value the way the guest's parser reads it.
///
/// Values share their parts, so a small one may be endless as text: the writer stops at the limits.
pub(super) fn write(value: &Value) -> Result<String, Error> {
    let mut writer = Writer {
        text: String::new(),
        comma: ",",
        colon: ":",
    };
    writer.push(value, JSON_DEPTH)?;
    Ok(writer.text)
}

/// Writes a value as OPA prints it in messages; a value that is too large is cut off.
pub(super) fn display(value: &Value) -> String {
    let mut writer = Writer {
        text: String::new(),
        comma: ", ",
        colon: ": ",
    };
    let _ = writer.push(value, JSON_DEPTH);
    writer.text
}

struct Writer {
    text: String,
    comma: &'static str,
    colon: &'static str,
}

impl Writer {
    fn push(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        deadline::tick();
        let inside = || depth.checked_sub(1).ok_or(Error::TooDeep);
        match value {
            Value::Null | Value::Undefined => self.text.push_str("null"),
            Value::Bool(bool) => self.text.push_str(if *bool { "true" } else { "false" }),
            Value::Number(_) => self.text.push_str(&number(value)),
            Value::String(string) => push_string(&mut self.text, string),
            Value::Set(items) if items.is_empty() => self.text.push_str("set()"),
            Value::Array(items) => self.push_items(items.iter(), ['[', ']'], inside()?)?,
            Value::Set(items) => self.push_items(items.iter(), ['{', '}'], inside()?)?,
            Value::Object(fields) => self.push_fields(fields, inside()?)?,
        }
        if self.text.len() > OUTPUT_BYTES {
            Err(Error::TooLarge)
        } else {
            Ok(())
        }
    }

    fn push_items<'v>(
        &mut self,
        items: impl Iterator<Item = &'v Value>,
        [open, close]: [char; 2],
        depth: usize,
    ) -> Result<(), Error> {
        self.text.push(open);
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.text.push_str(self.comma);
            }
            self.push(item, depth)?;
        }
        self.text.push(close);
        Ok(())
    }

    fn push_fields(&mut self, fields: &regorus::value::Object, depth: usize) -> Result<(), Error> {
        self.text.push('{');
        for (index, (key, value)) in fields.iter_sorted().enumerate() {
            if index > 0 {
                self.text.push_str(self.comma);
            }
            self.push(key, depth)?;
            self.text.push_str(self.colon);
            self.push(value, depth)?;
        }
        self.text.push('}');
        Ok(())
    }
}

/// A number as JSON, with all the digits of an integer.
pub(super) fn number(value: &Value) -> String {
    if let Value::Number(number) = value {
        number.format_decimal()
    } else {
        "null".to_owned()
    }
}

fn push_string(text: &mut String, string: &str) {
    text.push('"');
    for char in string.chars() {
        match char {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            control if control < ' ' => {
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            char => text.push(char),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_survive_the_way_there_and_back() {
        for text in [
            "null",
            "true",
            "[]",
            "{}",
            "set()",
            "{1,2,3}",
            r#"{"a":{1},"b":[set(),{}]}"#,
            r#"{1:2,[3]:{"x"}}"#,
            "12345678901234567890123",
            "-0.5",
            r#""\"\\\n\u0001ü""#,
            r#"{{"a"}:1}"#,
        ] {
            assert_eq!(write(&parse(text.as_bytes()).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn messages_have_spaces() {
        let value = parse(br#"{"a":[1,2],"b":{"x","y"}}"#).unwrap();
        assert_eq!(display(&value), r#"{"a": [1, 2], "b": {"x", "y"}}"#);
    }

    #[test]
    fn depth_is_noticed() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(128).as_bytes()).is_ok());
        assert_eq!(parse(nested(129).as_bytes()), Err(Error::TooDeep));
        let mut value = Value::Null;
        for _ in 0..200 {
            value = Value::from(vec![value]);
        }
        assert_eq!(write(&value), Err(Error::TooDeep));
    }

    #[test]
    fn a_small_value_with_endless_text_is_refused() {
        let mut value = Value::from("x");
        for _ in 0..100 {
            value = Value::from(vec![value.clone(), value]);
        }
        assert_eq!(write(&value), Err(Error::TooLarge));
    }
}
