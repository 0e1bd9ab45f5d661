//! One directive of a format, applied to one argument.

use super::Arg;

/// Flags and sizes of a directive.
#[derive(Default)]
pub(super) struct Spec {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    pub(super) width: Option<usize>,
    pub(super) precision: Option<usize>,
}

/// Digits after the point are no more than a double can have.
const MAX_PRECISION: usize = 1_100;

// === impl Spec ===

impl Spec {
    pub(super) fn flag(&mut self, flag: char) {
        match flag {
            '+' => self.plus = true,
            '-' => self.minus = true,
            '#' => self.sharp = true,
            ' ' => self.space = true,
            _ => self.zero = true,
        }
    }

    pub(super) fn write(&self, out: &mut String, verb: char, arg: &Arg) {
        let (text, numeric) = match (verb, arg) {
            ('T', _) => (type_name(arg).to_owned(), false),
            ('v' | 's', Arg::Text(text)) => (self.cut(text), false),
            ('q', Arg::Text(text)) => (quoted(&self.cut(text)), false),
            ('x' | 'X', Arg::Text(text)) => (hex(text.as_bytes(), verb), false),
            ('v' | 'd', Arg::Int(digits)) => (self.signed(digits), true),
            ('b' | 'o' | 'O' | 'x' | 'X' | 'c' | 'q' | 'U', Arg::Int(digits)) => {
                match self.int(verb, digits) {
                    Some(text) => (text, !matches!(verb, 'c' | 'q' | 'U')),
                    None => return complain(out, verb, arg),
                }
            }
            ('v' | 'g' | 'G' | 'e' | 'E' | 'f' | 'F', Arg::Float(float)) => {
                (self.float(verb, *float), true)
            }
            _ => return complain(out, verb, arg),
        };
        self.pad(out, &text, numeric);
    }

    /// Precision is the most characters of a string.
    fn cut(&self, text: &str) -> String {
        self.precision
            .map_or_else(|| text.to_owned(), |most| text.chars().take(most).collect())
    }

    fn signed(&self, digits: &str) -> String {
        match (digits.starts_with('-'), self.plus, self.space) {
            (false, true, _) => format!("+{digits}"),
            (false, false, true) => format!(" {digits}"),
            _ => digits.to_owned(),
        }
    }

    fn int(&self, verb: char, digits: &str) -> Option<String> {
        let number: i128 = digits.parse().ok()?;
        let (sign, size) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
        let char = || {
            u32::try_from(number)
                .ok()
                .and_then(char::from_u32)
                .unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        let text = match verb {
            'b' => format!("{sign}{size:b}"),
            'o' => format!("{sign}{}{size:o}", if self.sharp { "0" } else { "" }),
            'O' => format!("{sign}0o{size:o}"),
            'x' => format!("{sign}{}{size:x}", if self.sharp { "0x" } else { "" }),
            'X' => format!("{sign}{}{size:X}", if self.sharp { "0X" } else { "" }),
            'U' => return Some(format!("U+{size:04X}")),
            'q' => return Some(format!("'{}'", char().escape_default())),
            _ => return Some(char().to_string()),
        };
        Some(self.signed(&text))
    }

    fn float(&self, verb: char, float: f64) -> String {
        let precision = self.precision.map(|digits| digits.min(MAX_PRECISION));
        let text = match verb {
            'f' | 'F' => format!("{float:.*}", precision.unwrap_or(6)),
            'e' | 'E' => scientific(float, Some(precision.unwrap_or(6))),
            // `%v` prefers plain digits for longer than `%g` does.
            'v' => general(float, precision, 21),
            _ => general(
                float,
                precision,
                precision.map_or(21, |digits| digits.max(1)),
            ),
        };
        let text = if verb.is_ascii_uppercase() {
            text.to_ascii_uppercase()
        } else {
            text
        };
        self.signed(&text)
    }

    fn pad(&self, out: &mut String, text: &str, numeric: bool) {
        let missing = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        if self.minus {
            out.push_str(text);
            out.extend(std::iter::repeat_n(' ', missing));
        } else if self.zero {
            // Zeros go between the sign and the digits.
            let sign = if numeric {
                text.len() - text.trim_start_matches(['-', '+', ' ']).len()
            } else {
                0
            };
            out.push_str(&text[..sign]);
            out.extend(std::iter::repeat_n('0', missing));
            out.push_str(&text[sign..]);
        } else {
            out.extend(std::iter::repeat_n(' ', missing));
            out.push_str(text);
        }
    }
}

fn type_name(arg: &Arg) -> &'static str {
    match arg {
        Arg::Text(_) => "string",
        Arg::Int(_) => "int",
        Arg::Float(_) => "float64",
    }
}

fn complain(out: &mut String, verb: char, arg: &Arg) {
    out.push_str(&format!("%!{verb}({})", arg.described()));
}

fn hex(bytes: &[u8], verb: char) -> String {
    let text = hex::encode(bytes);
    if verb == 'X' {
        text.to_ascii_uppercase()
    } else {
        text
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control.is_ascii_control() => {
                out.push_str(&format!("\\x{:02x}", u32::from(control)))
            }
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

/// Digits and an exponent of at least two digits, as Go writes them.
fn scientific(float: f64, precision: Option<usize>) -> String {
    let text = precision.map_or_else(
        || format!("{float:e}"),
        |digits| format!("{float:.digits$e}"),
    );
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Plain digits for usual exponents, else scientific; without precision the shortest that is exact.
pub(super) fn general(float: f64, precision: Option<usize>, plain_below: usize) -> String {
    let shortest = scientific(float, precision.map(|digits| digits.max(1) - 1));
    let Some((mantissa, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || i64::from(exponent) >= plain_below as i64 {
        let mantissa = if mantissa.contains('.') {
            mantissa.trim_end_matches('0').trim_end_matches('.')
        } else {
            mantissa
        };
        return format!(
            "{mantissa}e{}",
            &shortest[shortest.find('e').map_or(0, |at| at + 1)..]
        );
    }
    let Some(digits) = precision else {
        return format!("{float}");
    };
    let after =
        usize::try_from(i64::try_from(digits.max(1)).unwrap_or(1) - 1 - i64::from(exponent))
            .unwrap_or(0);
    let text = format!("{float:.after$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}
