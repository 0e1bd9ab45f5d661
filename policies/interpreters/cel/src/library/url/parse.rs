//! Splits a URL.

use std::net::Ipv6Addr;

/// The parts of a URL. Equal parts are equal URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) scheme: String,
    /// What follows the scheme of a URL such as `mailto:a@example.com`.
    opaque: String,
    user: Option<String>,
    /// With the port.
    pub(super) host: String,
    /// Escaped.
    pub(super) path: String,
    pub(super) query: String,
    fragment: String,
}

type Result<T> = std::result::Result<T, String>;

impl Parsed {
    /// A reference, which may be relative and may have a fragment.
    pub(super) fn reference(text: &str) -> Result<Self> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let mut parsed = Self::parse(rest, false)?;
        parsed.fragment = unescape(fragment)?;
        Ok(parsed)
    }

    /// An absolute URL or path, as in the first line of a request.
    pub(super) fn request(text: &str) -> Result<Self> {
        Self::parse(text, true)
    }

    fn parse(text: &str, request: bool) -> Result<Self> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err("it has a control character".to_owned());
        }
        if text.is_empty() && request {
            return Err("it is empty".to_owned());
        }
        let mut parsed = Self::default();
        if text == "*" {
            text.clone_into(&mut parsed.path);
            return Ok(parsed);
        }
        let (scheme, rest) = scheme(text)?;
        parsed.scheme = scheme.to_ascii_lowercase();
        let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        query.clone_into(&mut parsed.query);
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                rest.clone_into(&mut parsed.opaque);
                return Ok(parsed);
            }
            if request {
                return Err("it is neither absolute nor a path".to_owned());
            }
            if rest
                .split('/')
                .next()
                .is_some_and(|first| first.contains(':'))
            {
                return Err("the first part of its path has a colon".to_owned());
            }
        }
        let has_authority = !scheme.is_empty() || !request && !rest.starts_with("///");
        if let Some(after) = rest.strip_prefix("//").filter(|_| has_authority) {
            let end = after.find('/').unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            parsed.authority(authority)?;
            rest = path;
        }
        parsed.path = escaped_path(rest)?;
        Ok(parsed)
    }

    fn authority(&mut self, authority: &str) -> Result<()> {
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        self.host = self.checked_host(host)?;
        if let Some(user) = user {
            let valid =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
            if !user.bytes().all(valid) {
                return Err("its user is not valid".to_owned());
            }
            self.user = Some(unescape(user)?);
        }
        Ok(())
    }

    fn checked_host(&self, host: &str) -> Result<String> {
        if let Some(literal) = host.strip_prefix('[') {
            let (literal, port) = literal.rsplit_once(']').ok_or("']' is missing")?;
            check_port(port)?;
            let address = literal.replacen("%25", "%", 1);
            let (digits, zone) = match address.split_once('%') {
                Some((digits, zone)) => (digits, Some(zone)),
                None => (address.as_str(), None),
            };
            let valid =
                digits.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(|zone| !zone.is_empty());
            if !valid || literal.contains('[') {
                return Err("its host in brackets is not an IPv6 address".to_owned());
            }
            return Ok(format!("[{address}]{port}"));
        }
        if host.contains('[') {
            return Err("its host is not valid".to_owned());
        }
        // Lists of hosts with ports are usual in addresses of databases.
        let strict = matches!(&self.scheme[..], "http" | "https");
        let colon = if strict {
            host.find(':')
        } else {
            host.rfind(':')
        };
        if let Some(colon) = colon {
            check_port(&host[colon..])?;
        }
        unescaped_host(host)
    }

    /// The host without its port and brackets, and the port.
    pub(super) fn name_and_port(&self) -> (&str, &str) {
        let (name, port) = match self.host.rfind(':') {
            Some(colon) if check_port(&self.host[colon..]).is_ok() => {
                (&self.host[..colon], &self.host[colon + 1..])
            }
            _ => (&self.host[..], ""),
        };
        let literal = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        (literal.unwrap_or(name), port)
    }
}

/// The scheme, which may be empty, and the rest.
fn scheme(text: &str) -> Result<(&str, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("its scheme is missing".to_owned()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Empty, or a colon and digits.
fn check_port(text: &str) -> Result<()> {
    let digits = match text.strip_prefix(':') {
        Some(digits) => digits,
        None if text.is_empty() => return Ok(()),
        None => return Err("its port is not valid".to_owned()),
    };
    match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(()),
        false => Err("its port is not a number".to_owned()),
    }
}

/// Only characters outside of ASCII may be escaped in a host.
fn unescaped_host(host: &str) -> Result<String> {
    let allowed = |byte: u8| {
        !byte.is_ascii()
            || byte.is_ascii_alphanumeric()
            || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&byte)
    };
    if !host.bytes().all(allowed) {
        return Err("its host has a character that is not valid".to_owned());
    }
    let escapes_ascii = host
        .split('%')
        .skip(1)
        .any(|after| after.starts_with(|char: char| ('0'..='7').contains(&char)));
    if escapes_ascii {
        return Err("its host has an escape that is not valid".to_owned());
    }
    unescape(host)
}

/// The path as it is if it is escaped already.
fn escaped_path(path: &str) -> Result<String> {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte);
    let plain = unescape_bytes(path)?;
    let valid = |byte: u8| unreserved(byte) || b"!'()*[]%".contains(&byte);
    if path.bytes().all(valid) {
        return Ok(path.to_owned());
    }
    Ok(plain
        .into_iter()
        .map(|byte| match unreserved(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect())
}

/// Undoes `%20` and the like.
pub(super) fn unescape(text: &str) -> Result<String> {
    let bytes = unescape_bytes(text)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unescape_bytes(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = |byte: u8| char::from(byte).to_digit(16);
        let digits = after
            .get(..2)
            .and_then(|two| Some((hex(two[0])?, hex(two[1])?)));
        let (high, low) = digits.ok_or("it has an escape that is not valid")?;
        bytes.push(u8::try_from(high * 16 + low).map_err(|error| error.to_string())?);
        rest = &after[2..];
    }
    Ok(bytes)
}
