//! Formats of strings.

use std::{net::IpAddr, sync::LazyLock};

use jiff::civil;
use regex::Regex;

use crate::opa::builtins::{pattern::Pattern, uri::Uri};

static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"^([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])(\.([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]{0,61}[a-zA-Z0-9]))*$",
    )
});
static UUID: LazyLock<Regex> =
    LazyLock::new(|| pattern("(?i)^[a-f0-9]{8}(-[a-f0-9]{4}){3}-[a-f0-9]{12}$"));
static POINTER: LazyLock<Regex> = LazyLock::new(|| pattern("^(/([^/~]|~[01])*)*$"));
static RELATIVE_POINTER: LazyLock<Regex> =
    LazyLock::new(|| pattern("^(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)$"));
static TEMPLATE: LazyLock<Regex> = LazyLock::new(|| pattern(r"^([^{]*(\{[^}]*\})?)*$"));
static MAIL: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^[^\s@<>(),;:\[\]]+@([^\s@<>(),;:\[\]]+|\[[^\]]*\])$"));
static OFFSET: LazyLock<Regex> = LazyLock::new(|| pattern("(Z|[+-][0-9]{2}:[0-9]{2})$"));

/// Whether a text has a format; formats that are not known have all texts.
pub(super) fn fits(format: &str, text: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => is_time(text) || is_date(text) || is_moment(text),
        "hostname" => text.len() < 256 && HOSTNAME.is_match(text),
        "email" | "idn-email" => is_mail(text),
        "ipv4" => text.contains('.') && text.parse::<IpAddr>().is_ok(),
        "ipv6" => text.contains(':') && text.parse::<IpAddr>().is_ok(),
        "uri" | "iri" => {
            !text.contains('\\') && Uri::parse(text).is_some_and(|uri| !uri.scheme.is_empty())
        }
        "uri-reference" | "iri-reference" => !text.contains('\\') && Uri::parse(text).is_some(),
        "uri-template" => {
            !text.contains('\\') && Uri::parse(text).is_some_and(|uri| TEMPLATE.is_match(&uri.path))
        }
        "uuid" => UUID.is_match(text),
        "regex" => Pattern::new(text).is_ok(),
        "json-pointer" => POINTER.is_match(text),
        "relative-json-pointer" => RELATIVE_POINTER.is_match(text),
        _ => true,
    }
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of a format must compile")
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && civil::Date::strptime("%Y-%m-%d", text).is_ok()
}

/// With an offset or without.
fn is_time(text: &str) -> bool {
    let time = OFFSET.replace(text, "");
    time.len() >= 8 && time.as_bytes().get(2) == Some(&b':') && time.parse::<civil::Time>().is_ok()
}

fn is_moment(text: &str) -> bool {
    text.as_bytes().get(10) == Some(&b'T')
        && OFFSET.is_match(text)
        && text.parse::<jiff::Timestamp>().is_ok()
}

/// An address, alone or after a name.
fn is_mail(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => rest.trim_end().strip_suffix('>'),
        None => Some(text.trim()),
    };
    address.is_some_and(|address| MAIL.is_match(address))
}
