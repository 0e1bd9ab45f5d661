//! Authentication challenges of registries.

/// One `WWW-Authenticate` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User name and password, for the registry itself.
    Basic,
    /// A token, from a token service.
    Bearer {
        realm: String,
        service: Option<String>,
    },
}

// === impl Challenge ===

impl Challenge {
    /// `None` for schemes that are not supported.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameters = parameters(rest);
        let find = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        Some(Self::Bearer {
            realm: find("realm")?,
            service: find("service"),
        })
    }
}

/// `key="value, with \"quotes\"", key=value`
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        let key: String = take_until(&mut chars, '=');
        let key = key.trim_matches([' ', ',', '\t']).to_ascii_lowercase();
        let value = match chars.peek() {
            None => return found,
            Some('"') => {
                chars.next();
                quoted(&mut chars)
            }
            Some(_) => take_until(&mut chars, ',').trim().to_owned(),
        };
        found.push((key, value));
    }
}

/// Consumes the delimiter, too.
fn take_until(chars: &mut impl Iterator<Item = char>, end: char) -> String {
    chars.take_while(|c| *c != end).collect()
}

fn quoted(chars: &mut impl Iterator<Item = char>) -> String {
    let mut value = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, expect: Option<(&str, Option<&str>)>) {
        let expect = expect.map(|(realm, service)| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
        });
        assert_eq!(Challenge::parse(header), expect, "{header}");
    }

    #[test]
    fn bearer_challenge_is_parsed() {
        check(
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
            Some(("https://auth.docker.io/token", Some("registry.docker.io"))),
        );
        check(r#"bearer  REALM=https://a/t"#, Some(("https://a/t", None)));
        check(
            r#"Bearer scope="a,b=c", realm="https://a/t\"q\\", error="x""#,
            Some((r#"https://a/t"q\"#, None)),
        );
    }

    #[test]
    fn other_challenges_are_ignored() {
        for header in [
            "",
            "Bearer",
            "Bearer realm",
            "Digest realm=\"x\"",
            "Bearer ,,,==",
        ] {
            check(header, None);
        }
        check("Bearer realm=\"open", Some(("open", None)));
        assert_eq!(
            Challenge::parse("basic realm=\"x\""),
            Some(Challenge::Basic)
        );
        assert_eq!(Challenge::parse("Basic"), Some(Challenge::Basic));
    }
}
