//! Canonical JSON: one text for one value, so that digests do not depend on who wrote it.
//!
//! Keys are sorted by their UTF-8 bytes, there is no white space, strings have the shortest
//! escapes, 64-bit integers are exact, and all other numbers are printed as ECMAScript does.

use std::fmt::Write;

use serde_json::{Map, Number, Value};

/// Writes `value` as canonical JSON.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// Writes `value` as the bytes of canonical JSON.
pub fn to_vec(value: &Value) -> Vec<u8> {
    to_string(value).into_bytes()
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_str(out, text),
        Value::Array(items) => write_array(out, items),
        Value::Object(fields) => write_object(out, fields),
    }
}

fn write_array(out: &mut String, items: &[Value]) {
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_value(out, item);
    }
    out.push(']');
}

/// Sorts here, although `serde_json` sorts today: a dependency that switches on its
/// `preserve_order` must not change digests.
fn write_object(out: &mut String, fields: &Map<String, Value>) {
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
    out.push('{');
    for (i, (key, value)) in sorted.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_str(out, key);
        out.push(':');
        write_value(out, value);
    }
    out.push('}');
}

fn write_str(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => push(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_number(out: &mut String, number: &Number) {
    if let Some(n) = number.as_i64() {
        push(out, format_args!("{n}"));
    } else if let Some(n) = number.as_u64() {
        push(out, format_args!("{n}"));
    } else {
        let float = number
            .as_f64()
            .expect("a number must be an integer of 64 bits or a float");
        write_float(out, float);
    }
}

/// `Number::toString` of ECMAScript: the shortest digits that read back as the same number,
/// laid out without exponent between 1e-7 and 1e21.
fn write_float(out: &mut String, float: f64) {
    if float == 0.0 {
        // Negative zero prints as zero there too.
        out.push('0');
        return;
    }
    if float < 0.0 {
        out.push('-');
    }
    let scientific = format!("{:e}", float.abs());
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("scientific notation must have an exponent");
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().expect("an exponent must be a number");
    lay_out(out, &digits, exponent + 1);
}

/// Lays out `0.digits * 10^point`.
fn lay_out(out: &mut String, digits: &str, point: i32) {
    let count = i32::try_from(digits.len()).expect("a float must have at most 17 digits");
    if count <= point && point <= 21 {
        out.push_str(digits);
        (count..point).for_each(|_| out.push('0'));
    } else if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(point.unsigned_abs() as usize);
        push(out, format_args!("{whole}.{fraction}"));
    } else if -6 < point && point <= 0 {
        out.push_str("0.");
        (point..0).for_each(|_| out.push('0'));
        out.push_str(digits);
    } else {
        let (first, rest) = digits.split_at(1);
        let dot = if rest.is_empty() { "" } else { "." };
        push(out, format_args!("{first}{dot}{rest}e{:+}", point - 1));
    }
}

fn push(out: &mut String, args: std::fmt::Arguments<'_>) {
    out.write_fmt(args)
        .expect("a string must take what is written");
}
