//! Writes JSON values as block YAML that people can read. The same value always gives the same
//! text: keys are sorted.

use serde_json::{Map, Value};

/// Words that a reader of YAML 1.1 or 1.2 takes for something else than text.
const WORDS: &[&str] = &[
    "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~",
];

/// `value` as one document.
pub fn emit(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => object(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => array(&mut out, items, 0),
        scalar => {
            out.push_str(&inline(scalar));
            out.push('\n');
        }
    }
    out
}

fn object(out: &mut String, map: &Map<String, Value>, indent: usize) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| key.as_str());
    for (i, (key, value)) in entries.into_iter().enumerate() {
        // The first key of an item stands behind its dash.
        if i > 0 || !out.ends_with("- ") {
            pad(out, indent);
        }
        out.push_str(&text(key));
        out.push(':');
        entry(out, value, indent);
    }
}

/// What follows a key.
fn entry(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            object(out, map, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            array(out, items, indent);
        }
        Value::String(text) if is_block(text) => block(out, text, indent + 2),
        scalar => {
            out.push(' ');
            out.push_str(&inline(scalar));
            out.push('\n');
        }
    }
}

fn array(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        if !out.ends_with("- ") {
            pad(out, indent);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => object(out, map, indent + 2),
            Value::Array(items) if !items.is_empty() => array(out, items, indent + 2),
            scalar => {
                out.push_str(&inline(scalar));
                out.push('\n');
            }
        }
    }
}

/// Several lines as they are.
fn block(out: &mut String, text: &str, indent: usize) {
    out.push_str(" |-\n");
    for line in text.split('\n') {
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
        out.push('\n');
    }
}

/// Whether a literal block gives `text` back exactly.
fn is_block(text: &str) -> bool {
    let printable = |c: char| c == '\n' || !c.is_control();
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with('\n')
        && text.chars().all(printable)
        && text.split('\n').all(|line| line.trim_end() == line)
}

/// A value on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Number(number) => match number.as_f64() {
            // Types with floats write 0.0 if a person writes 0; these are exact.
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
                format!("{float:.0}")
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// Text on one line: plain if it is not ambiguous, else as in JSON.
fn text(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_./,;'()=<>+$\"".contains(c);
    let starts = |c: char| c.is_ascii_alphabetic() || c == '/' || c == '$';
    let safe = text.starts_with(starts)
        && text.chars().all(plain)
        && !text.ends_with(' ')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    match safe {
        true => text.to_owned(),
        false => Value::String(text.to_owned()).to_string(),
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

#[cfg(test)]
mod tests;
