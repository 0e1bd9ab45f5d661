//! Named formats of strings. The reasons of a refusal have other words than those of the API server.

use std::any::Any;

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelList, CelOptional, CelString, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use super::url;

static TYPE: Type = Type::new_unspecified_type("kubernetes.NamedFormat");

/// A format, by its place in [`FORMATS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format(usize);

/// The name, whether a string has the format, and what such a string looks like.
type Named = (&'static str, fn(&str) -> bool, &'static str);

const FORMATS: [Named; 13] = [
    (
        "dns1123Label",
        dns1123_label,
        "at most 63 lower case letters, digits and '-', with a letter or digit at both ends",
    ),
    (
        "dns1123Subdomain",
        dns1123_subdomain,
        "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part",
    ),
    (
        "dns1035Label",
        dns1035_label,
        "at most 63 lower case letters, digits and '-', with a letter first and no '-' last",
    ),
    (
        "qualifiedName",
        qualified_name,
        "a name such as my.name, or example.com/my-name",
    ),
    (
        "dns1123LabelPrefix",
        |text| dns1123_label(&without_dash(text)),
        "the beginning of a DNS label",
    ),
    (
        "dns1123SubdomainPrefix",
        |text| dns1123_subdomain(&without_dash(text)),
        "the beginning of a DNS subdomain",
    ),
    (
        "dns1035LabelPrefix",
        |text| dns1035_label(&without_dash(text)),
        "the beginning of a DNS label that starts with a letter",
    ),
    (
        "labelValue",
        label_value,
        "empty, or at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    ),
    ("uri", url::is_request_uri, "an absolute URI or path"),
    ("uuid", uuid, "a UUID"),
    ("byte", base64, "base64"),
    ("date", date, "a date such as 2026-01-31"),
    (
        "datetime",
        datetime,
        "a date and time such as 2026-01-31T12:00:00Z",
    ),
];

/// The function `format.NAME` of each format: an overload is a function pointer, which can't hold the number.
macro_rules! constants {
    ($env:expr, $($number:literal),*) => {$(
        let name = format!("format.{}", FORMATS[$number].0);
        $env.add_overload(&name, &name, vec![], constant::<$number>)?;
    )*};
}
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    cel::add_overload!(env, fn named: (CelString) -> CelOptional, name = "format.named")?;
    cel::add_member_overload!(env, fn validate: (Format, CelString) -> CelOptional)?;
    constants!(env, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    Ok(())
}

fn constant<'b, 'v, const NUMBER: usize>(
    _: Vec<CowVal<'b, 'v>>,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    Ok(CowVal::owned(Format(NUMBER)))
}

impl Val for Format {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other
            .downcast_ref::<Self>()
            .is_some_and(|other| other == self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Format {}

fn named(name: &CelString<'_>) -> CelOptional<'static> {
    let found = FORMATS.iter().position(|(one, _, _)| *one == name.inner());
    found.map_or_else(CelOptional::none, |index| {
        CelOptional::of(Box::new(Format(index)))
    })
}

/// Nothing if the string has the format, and else the reasons.
fn validate(this: &Format, text: &CelString<'_>) -> CelOptional<'static> {
    let (_, valid, form) = FORMATS[this.0];
    if valid(text.inner()) {
        return CelOptional::none();
    }
    let reason: Box<dyn Val> = Box::new(CelString::from(format!("must be {form}")));
    CelOptional::of(Box::new(CelList::from(vec![reason])))
}

/// Characters of one kind, with those of another at both ends.
fn framed(text: &str, first: fn(u8) -> bool, inner: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| first(*byte))
        && bytes.last().is_some_and(|byte| last(*byte))
        && bytes.iter().all(|byte| inner(*byte))
}

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn lower_or_dash(byte: u8) -> bool {
    lower(byte) || byte == b'-'
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn name_part(text: &str) -> bool {
    let inner = |byte: u8| alphanumeric(byte) || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= 63 && framed(text, alphanumeric, inner, alphanumeric)
}

fn dns1123_label(text: &str) -> bool {
    text.len() <= 63 && framed(text, lower, lower_or_dash, lower)
}

fn dns1035_label(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase();
    text.len() <= 63 && framed(text, letter, lower_or_dash, lower)
}

fn dns1123_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text
            .split('.')
            .all(|part| framed(part, lower, lower_or_dash, lower))
}

fn qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => dns1123_subdomain(prefix) && name_part(name),
        None => name_part(text),
    }
}

fn label_value(text: &str) -> bool {
    text.is_empty() || name_part(text)
}

/// A prefix may end with a dash: the API server takes the last two characters for one letter.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut rest = rest.to_owned();
            rest.pop();
            rest + "a"
        }
        _ => text.to_owned(),
    }
}

/// Dashes are optional.
fn uuid(text: &str) -> bool {
    let mut rest = text;
    for (index, digits) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, after)) = rest.split_at_checked(digits) else {
            return false;
        };
        if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

/// With padding; an empty string is none.
fn base64(text: &str) -> bool {
    let data = text.trim_end_matches('=');
    let padding = text.len() - data.len();
    !data.is_empty()
        && padding <= 2
        && text.len().is_multiple_of(4)
        && data
            .bytes()
            .all(|byte| alphanumeric(byte) || matches!(byte, b'+' | b'/'))
}

fn digits(text: &str, length: usize) -> Option<u32> {
    let all = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

fn date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2))
    else {
        return false;
    };
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// What follows a second `t` is not looked at, as in the API server.
fn datetime(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(day), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    date(day) && clock(time).is_some()
}

/// Hours, minutes, seconds, a fraction, and a zone.
fn clock(text: &str) -> Option<()> {
    let part = |range: std::ops::Range<usize>| text.get(range);
    let two = |at: usize, most: u32| digits(part(at..at + 2)?, 2).filter(|value| *value <= most);
    two(0, 23)?;
    two(3, 59)?;
    two(6, 59)?;
    (part(2..3)? == ":" && part(5..6)? == ":").then_some(())?;
    let rest = text.get(8..)?;
    let zone = |rest: &str| {
        rest == "z"
            || rest.len() == 6
                && rest.starts_with(['+', '-'])
                && digits(rest.get(1..3).unwrap_or_default(), 2).is_some()
                && rest.get(3..4) == Some(":")
                && digits(rest.get(4..6).unwrap_or_default(), 2).is_some()
    };
    if zone(rest) {
        return Some(());
    }
    // The separator of a fraction is any character.
    let mut chars = rest.chars();
    chars.next()?;
    let after = chars
        .as_str()
        .trim_start_matches(|char: char| char.is_ascii_digit());
    (after.len() < chars.as_str().len() && zone(after)).then_some(())
}
