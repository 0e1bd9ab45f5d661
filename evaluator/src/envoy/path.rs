//! Paths and queries of requests: how policies are matched with them, and how documents show them.

use std::{borrow::Cow, collections::BTreeMap};

/// Why a path is refused: it can't be read, or servers differ in what they make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("the path has a '%' that is not followed by two hexadecimal digits")]
    Escape,
    #[error("the path has a control character")]
    Control,
}

/// Names with their values, in the order of names.
pub(crate) type Parameters = BTreeMap<String, Vec<String>>;

/// A path and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// Without query and fragment.
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
}

/// Bytes that are special even if they are escaped: some servers unescape them before they look for segments.
const SPECIAL: &[u8] = b"/\\%";

// === impl Target ===

impl<'a> Target<'a> {
    /// Splits what Envoy calls the path.
    pub(crate) fn split(text: &'a str) -> Self {
        let text = text.split_once('#').map_or(text, |(before, _)| before);
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        Self { path, query }
    }

    /// The unescaped segments, as OPA's Envoy plugin splits them. A path that begins with two slashes is a path here,
    /// not a host.
    pub(crate) fn segments(&self) -> Result<Vec<String>, Error> {
        let path = unescape(self.path, &[])?;
        let path = String::from_utf8_lossy(&path);
        let segments = path.trim_start_matches('/').split('/');
        Ok(segments.map(str::to_owned).collect())
    }

    /// What servers may take the path for. All are equal for a path without escapes that are special, dot segments
    /// and empty segments; policies that match any of them are asked.
    pub(crate) fn readings(&self) -> Result<Vec<String>, Error> {
        let text = |bytes: Cow<'_, [u8]>| String::from_utf8_lossy(&bytes).into_owned();
        let literal = text(unescape(self.path, SPECIAL)?);
        let unescaped = text(unescape(self.path, &[])?).replace('\\', "/");
        let mut readings = vec![normalise(&literal), literal, normalise(&unescaped)];
        readings.dedup();
        if readings.len() > 1 && readings.first() == readings.last() {
            readings.pop();
        }
        Ok(readings)
    }
}

/// Parses a query as Go does: parameters that can't be read are left out.
pub(crate) fn query(text: &str) -> Parameters {
    let mut parameters = Parameters::new();
    for (name, value) in pairs(text).flatten() {
        parameters.entry(name).or_default().push(value);
    }
    parameters
}

/// Parses a form: one parameter that can't be read makes it unreadable.
pub(crate) fn form(text: &str) -> Option<Parameters> {
    let mut parameters = Parameters::new();
    for pair in pairs(text) {
        let (name, value) = pair?;
        parameters.entry(name).or_default().push(value);
    }
    Some(parameters)
}

fn pairs(text: &str) -> impl Iterator<Item = Option<(String, String)>> {
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts.map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (!part.contains(';')).then_some(())?;
        Some((component(name)?, component(value)?))
    })
}

fn component(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let bytes = unescape_any(&spaced, &[]).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Unescapes a path, but for the bytes in `keep`. Control characters are refused, escaped or not.
fn unescape<'a>(text: &'a str, keep: &[u8]) -> Result<Cow<'a, [u8]>, Error> {
    let bytes = unescape_any(text, keep)?;
    match bytes.iter().any(|byte| byte.is_ascii_control()) {
        true => Err(Error::Control),
        false => Ok(bytes),
    }
}

fn unescape_any<'a>(text: &'a str, keep: &[u8]) -> Result<Cow<'a, [u8]>, Error> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let (digits, after) = tail.split_at_checked(2).ok_or(Error::Escape)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = digit(digits[0])
            .zip(digit(digits[1]))
            .ok_or(Error::Escape)?;
        let byte = u8::try_from(high * 16 + low).map_err(|_| Error::Escape)?;
        if keep.contains(&byte) {
            bytes.push(b'%');
            bytes.extend(digits.to_ascii_uppercase());
        } else {
            bytes.push(byte);
        }
        rest = after;
    }
    Ok(Cow::Owned(bytes))
}

/// Removes empty and dot segments; a slash at the end stays.
fn normalise(path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let mut segments: Vec<&str> = Vec::new();
    let mut directory = false;
    for segment in path.split('/') {
        directory = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut normal = String::with_capacity(path.len());
    for segment in &segments {
        normal.push('/');
        normal.push_str(segment);
    }
    if directory {
        normal.push('/');
    }
    normal
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check_readings(path: &str, expected: &[&str]) {
        assert_eq!(Target::split(path).readings().unwrap(), expected, "{path}");
    }

    #[test]
    fn plain_paths_have_one_reading() {
        for path in ["/", "/a", "/a/", "/a/b.c/~d", "*", ""] {
            check_readings(path, &[path]);
        }
        check_readings("/a?b=../c", &["/a"]);
        check_readings("/a#/../b", &["/a"]);
        check_readings("/%61/caf%C3%A9", &["/a/café"]);
    }

    #[test]
    fn ambiguous_paths_have_every_reading() {
        check_readings(
            "/public/../admin",
            &["/admin", "/public/../admin", "/admin"][..2],
        );
        check_readings("//admin//x", &["/admin/x", "//admin//x"]);
        check_readings("/a%2Fb", &["/a%2Fb", "/a/b"]);
        check_readings("/a%2f..%2Fadmin", &["/a%2F..%2Fadmin", "/admin"]);
        check_readings("/a/%2e%2e/admin", &["/admin", "/a/../admin"]);
        check_readings("/a%5Cadmin", &["/a%5Cadmin", "/a/admin"]);
        check_readings("/a\\admin", &["/a\\admin", "/a/admin"]);
        check_readings("/../../etc", &["/etc", "/../../etc"]);
        check_readings("/a/./", &["/a/", "/a/./"]);
    }

    #[test]
    fn unreadable_paths_are_refused() {
        for (path, error) in [
            ("/a%", Error::Escape),
            ("/a%2", Error::Escape),
            ("/a%zz", Error::Escape),
            ("/a%é", Error::Escape),
            ("/a%00", Error::Control),
            ("/a%0d%0ab", Error::Control),
            ("/a\u{7f}", Error::Control),
        ] {
            assert_eq!(Target::split(path).readings(), Err(error), "{path:?}");
            assert_eq!(Target::split(path).segments(), Err(error), "{path:?}");
        }
    }

    #[test]
    fn segments_are_unescaped() {
        let check = |path: &str, expected: &[&str]| {
            assert_eq!(Target::split(path).segments().unwrap(), expected, "{path}");
        };
        check("/api/v1/products?x=1", &["api", "v1", "products"]);
        check("/", &[""]);
        check("", &[""]);
        check("/a/", &["a", ""]);
        check("/a//b", &["a", "", "b"]);
        check("//a/b", &["a", "b"]);
        check("/a%20b/c%2Fd", &["a b", "c", "d"]);
        check("/a/../b", &["a", "..", "b"]);
    }

    #[test]
    fn queries_keep_every_value() {
        let parsed = query("lang=en&lang=de&a=1%202+3&b&=c&bad=%zz&x;y=1&&d=%FF");
        let expected: Parameters = [
            ("", vec!["c"]),
            ("a", vec!["1 2 3"]),
            ("b", vec![""]),
            ("d", vec!["\u{fffd}"]),
            ("lang", vec!["en", "de"]),
        ]
        .into_iter()
        .map(|(name, values)| (name.into(), values.into_iter().map(Into::into).collect()))
        .collect();
        assert_eq!(parsed, expected);
        assert_eq!(form("a=%zz"), None);
        assert_eq!(form("a=1&a=2").unwrap()["a"], ["1", "2"]);
    }
}
