//! `sprintf` with the verbs of Go's `fmt`, which is what policies are written for.

use regorus::Value;

use super::{Own, value};
use crate::limits::OUTPUT_BYTES;

mod verb;

use verb::Spec;

/// Go calls wider fields bad.
const MAX_WIDTH: usize = 1_000_000;

/// An argument as OPA hands it to `fmt`: numbers and strings, everything else as its text.
pub(super) enum Arg {
    Text(String),
    /// Any integer, in decimal.
    Int(String),
    Float(f64),
}

/// Arguments with the next one to be used.
struct Args<'a> {
    list: &'a [Arg],
    next: usize,
    /// Whether arguments were named by number: then unused ones are no mistake.
    reordered: bool,
}

pub(super) fn find(name: &str) -> Option<Own> {
    (name == "sprintf").then_some(builtin as Own)
}

/// A value inside of a message: strings without quotes.
pub(super) fn text(value: &Value) -> String {
    if let Value::String(string) = value {
        string.to_string()
    } else {
        value::display(value)
    }
}

fn builtin(args: &[Value]) -> Option<Value> {
    let (Value::String(format), Value::Array(items)) = (args.first()?, args.get(1)?) else {
        return None;
    };
    let list: Vec<_> = items.iter().map(Arg::new).collect();
    sprintf(format, &list).map(Value::from)
}

/// Formats; none if the result is too large.
fn sprintf(format: &str, list: &[Arg]) -> Option<String> {
    let mut args = Args {
        list,
        next: 0,
        reordered: false,
    };
    let mut out = String::new();
    let mut rest = format;
    while let Some(percent) = rest.find('%') {
        out.push_str(&rest[..percent]);
        rest = directive(&mut out, &rest[percent + 1..], &mut args);
        if out.len() > OUTPUT_BYTES {
            return None;
        }
    }
    out.push_str(rest);
    args.complain_about_rest(&mut out);
    Some(out)
}

/// Writes one directive; returns the rest of the format.
fn directive<'f>(out: &mut String, after: &'f str, args: &mut Args<'_>) -> &'f str {
    let mut chars = after.chars().peekable();
    let mut spec = Spec::default();
    while let Some(flag) = chars.next_if(|char| "+-# 0".contains(*char)) {
        spec.flag(flag);
    }
    let mut bad_index = !args.index(&mut chars);
    spec.width = size(&mut chars, args, out);
    if chars.next_if_eq(&'.').is_some() {
        bad_index |= !args.index(&mut chars);
        spec.precision = Some(size(&mut chars, args, out).unwrap_or(0));
    }
    bad_index |= !args.index(&mut chars);
    match chars.next() {
        None => out.push_str("%!(NOVERB)"),
        Some('%') => out.push('%'),
        Some(verb) if bad_index => out.push_str(&format!("%!{verb}(BADINDEX)")),
        Some(verb) => match args.take() {
            Some(arg) => spec.write(out, verb, arg),
            None => out.push_str(&format!("%!{verb}(MISSING)")),
        },
    }
    let left: usize = chars.map(char::len_utf8).sum();
    &after[after.len() - left..]
}

type Chars<'f> = std::iter::Peekable<std::str::Chars<'f>>;

/// A width or precision: digits, or `*` for the next argument.
fn size(chars: &mut Chars<'_>, args: &mut Args<'_>, out: &mut String) -> Option<usize> {
    if chars.next_if_eq(&'*').is_some() {
        let size = match args.take() {
            Some(Arg::Int(digits)) => digits.parse().ok().filter(|size| *size <= MAX_WIDTH),
            _ => None,
        };
        if size.is_none() {
            out.push_str("%!(BADWIDTH)");
        }
        return size;
    }
    digits(chars).map(|size| size.min(MAX_WIDTH))
}

fn digits(chars: &mut Chars<'_>) -> Option<usize> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
        chars.next();
        number = Some(
            number
                .unwrap_or(0_usize)
                .saturating_mul(10)
                .saturating_add(digit as usize),
        );
    }
    number
}

// === impl Args ===

impl<'a> Args<'a> {
    fn take(&mut self) -> Option<&'a Arg> {
        let arg = self.list.get(self.next)?;
        self.next += 1;
        Some(arg)
    }

    /// Reads `[n]`, which chooses the next argument; false if it chooses none.
    fn index(&mut self, chars: &mut Chars<'_>) -> bool {
        if chars.next_if_eq(&'[').is_none() {
            return true;
        }
        self.reordered = true;
        let number = digits(chars);
        let closed = chars.next_if_eq(&']').is_some();
        match number.and_then(|number| number.checked_sub(1)) {
            Some(index) if closed && index < self.list.len() => {
                self.next = index;
                true
            }
            _ => false,
        }
    }

    fn complain_about_rest(&self, out: &mut String) {
        let rest = self.list.get(self.next..).unwrap_or_default();
        if self.reordered || rest.is_empty() {
            return;
        }
        let list: Vec<_> = rest.iter().map(Arg::described).collect();
        out.push_str(&format!("%!(EXTRA {})", list.join(", ")));
    }
}

// === impl Arg ===

impl Arg {
    fn new(value: &Value) -> Self {
        match value {
            Value::String(string) => Self::Text(string.to_string()),
            Value::Number(_) => {
                let text = value::number(value);
                let is_int = text
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'-');
                match text.parse::<f64>() {
                    Ok(float) if !is_int => Self::Float(float),
                    _ => Self::Int(text),
                }
            }
            other => Self::Text(value::display(other)),
        }
    }

    /// Type and value, as in Go's complaints.
    fn described(&self) -> String {
        match self {
            Self::Text(text) => format!("string={text}"),
            Self::Int(digits) => format!("int={digits}"),
            Self::Float(float) => format!("float64={}", verb::general(*float, None, 21)),
        }
    }
}

#[cfg(test)]
mod tests;
