//! URIs, taken apart as Go does.

use std::net::Ipv6Addr;

use regorus::Value;

use super::{Own, string};

/// A URI in its parts; those that it does not have are empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Uri {
    pub(super) scheme: String,
    pub(super) opaque: String,
    /// As written; Rego gets only a part of it.
    pub(super) user: Option<String>,
    /// With the port.
    pub(super) host: String,
    pub(super) path: String,
    /// Where writing the path again would give another text.
    pub(super) raw_path: String,
    pub(super) force_query: bool,
    pub(super) raw_query: String,
    pub(super) fragment: String,
    pub(super) raw_fragment: String,
    pub(super) omit_host: bool,
}

/// Which letters stand for themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Host,
    Path,
    Fragment,
}

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "uri.is_valid" => |args| {
            let valid =
                string(args, 0).is_some_and(|text| !text.is_empty() && Uri::parse(text).is_some());
            Some(Value::Bool(valid))
        },
        "uri.parse" => |args| Uri::parse(string(args, 0)?).map(|uri| uri.value()),
        _ => return None,
    })
}

// === impl Uri ===

impl Uri {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return None;
        }
        let mut uri = Self::default();
        (uri.fragment, uri.raw_fragment) = twice(fragment, Part::Fragment)?;
        if rest == "*" {
            uri.path = rest.to_owned();
            return Some(uri);
        }
        let rest = uri.take_scheme(rest)?;
        let rest = uri.take_query(rest);
        if !rest.starts_with('/') {
            if !uri.scheme.is_empty() {
                uri.opaque = rest.to_owned();
                return Some(uri);
            }
            // A colon there would make it a scheme.
            if rest
                .split('/')
                .next()
                .is_some_and(|first| first.contains(':'))
            {
                return None;
            }
        }
        let rest = uri.take_authority(rest)?;
        (uri.path, uri.raw_path) = twice(rest, Part::Path)?;
        Some(uri)
    }

    fn take_scheme<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' => {}
                b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
                b':' if at == 0 => return None,
                b':' => {
                    self.scheme = text[..at].to_ascii_lowercase();
                    return Some(&text[at + 1..]);
                }
                _ => break,
            }
        }
        Some(text)
    }

    fn take_query<'a>(&mut self, text: &'a str) -> &'a str {
        let Some((rest, query)) = text.split_once('?') else {
            return text;
        };
        self.force_query = query.is_empty();
        self.raw_query = query.to_owned();
        rest
    }

    fn take_authority<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        let bare = self.scheme.is_empty();
        let Some(after) = text
            .strip_prefix("//")
            .filter(|_| !bare || !text.starts_with("///"))
        else {
            self.omit_host = !bare && text.starts_with('/');
            return Some(text);
        };
        let (authority, rest) = after.split_at(after.find('/').unwrap_or(after.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if let Some(user) = user {
            if !user.bytes().all(is_userinfo) {
                return None;
            }
            unescaped(user, Part::Path)?;
            self.user = Some(user.to_owned());
        }
        self.host = host_of(host)?;
        Some(rest)
    }

    /// Name and port.
    fn name_and_port(&self) -> (&str, &str) {
        let (name, port) = match self.host.rfind(':') {
            Some(at) if is_port(&self.host[at..]) => (&self.host[..at], &self.host[at + 1..]),
            _ => (self.host.as_str(), ""),
        };
        let inner = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        (inner.unwrap_or(name), port)
    }

    fn value(&self) -> Value {
        let (name, port) = self.name_and_port();
        let raw_path = if self.raw_path.is_empty() {
            &self.path
        } else {
            &self.raw_path
        };
        let mut value = Value::new_object();
        for (key, part) in [
            ("scheme", self.scheme.as_str()),
            ("hostname", name),
            ("port", port),
            ("path", &self.path),
            ("raw_path", raw_path),
            ("raw_query", &self.raw_query),
            ("fragment", &self.fragment),
        ] {
            if let (false, Ok(fields)) = (part.is_empty(), value.as_object_mut()) {
                fields.insert(Value::from(key), Value::from(part));
            }
        }
        value
    }
}

/// A fragment without its escapes.
pub(super) fn fragment(text: &str) -> Option<String> {
    String::from_utf8(unescaped(text, Part::Fragment)?).ok()
}

/// A part without its escapes, and the original if escaping it again gives another text.
fn twice(text: &str, part: Part) -> Option<(String, String)> {
    let plain = unescaped(text, part)?;
    let raw = if escaped(&plain, part) == text {
        ""
    } else {
        text
    };
    Some((String::from_utf8_lossy(&plain).into_owned(), raw.to_owned()))
}

fn unescaped(text: &str, part: Part) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            if part == Part::Host && byte < 0x80 && !stands(byte, part) {
                return None;
            }
            out.push(byte);
            continue;
        }
        let mut digit = || {
            char::from(bytes.next()?)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        let byte = digit()? << 4 | digit()?;
        // Names may have letters beyond ASCII that way, and nothing else.
        if part == Part::Host && byte < 0x80 && byte != b'%' {
            return None;
        }
        out.push(byte);
    }
    Some(out)
}

fn escaped(plain: &[u8], part: Part) -> String {
    let mut out = String::with_capacity(plain.len());
    for byte in plain {
        if stands(*byte, part) {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Whether a byte needs no escape.
fn stands(byte: u8, part: Part) -> bool {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        return true;
    }
    match part {
        Part::Host => b"!$&'()*+,;=:[]<>\"".contains(&byte),
        Part::Path => b"$&+,/:;=@".contains(&byte),
        Part::Fragment => b"$&+,/:;=?@!()*".contains(&byte),
    }
}

fn is_userinfo(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)
}

/// `:` and digits, or nothing.
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    }
}

fn host_of(host: &str) -> Option<String> {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.rsplit_once(']')?;
        let (plain, zone) = match address.split_once("%25") {
            Some((plain, zone)) => (plain, Some(zone)),
            None => (address, None),
        };
        plain.parse::<Ipv6Addr>().ok().filter(|_| is_port(port))?;
        let zone = match zone {
            Some(zone) => format!(
                "%{}",
                String::from_utf8_lossy(&unescaped(zone, Part::Path)?)
            ),
            None => String::new(),
        };
        return Some(format!("[{plain}{zone}]{port}"));
    }
    if let Some(at) = host.rfind(':')
        && !is_port(&host[at..])
    {
        return None;
    }
    let host = unescaped(host, Part::Host)?;
    Some(String::from_utf8_lossy(&host).into_owned())
}
