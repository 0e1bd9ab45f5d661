//! Field selectors: `path=value`, `path==value`, `path!=value`, joined by commas.

use std::str::FromStr;

use super::{Error, MAX_BYTES};
use crate::FieldPath;

/// Requirements that the fields of an object must all meet. Unlike at the API server every path
/// is supported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// A field and its value. A path through a list has several values: it equals each of them. An
/// absent field has the empty value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldRequirement {
    pub(crate) path: FieldPath,
    pub(crate) value: String,
    pub(crate) equal: bool,
}

// === impl FieldSelector ===

impl FieldSelector {
    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The paths that it reads.
    pub fn paths(&self) -> impl Iterator<Item = &FieldPath> {
        self.requirements.iter().map(|r| &r.path)
    }

    pub(crate) fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }
}

impl FromStr for FieldSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLong);
        }
        let mut requirements = Vec::new();
        for term in terms(text).filter(|term| !term.is_empty()) {
            requirements.push(requirement(term)?);
        }
        Ok(Self { requirements })
    }
}

/// The text between commas that are not escaped.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let split = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        split
    })
}

fn requirement(term: &str) -> Result<FieldRequirement, Error> {
    let unexpected = |found: &str, expected| Error::Unexpected {
        selector: term.to_owned(),
        found: found.to_owned(),
        expected,
    };
    let at = term.find(['=', '!']);
    let at = at.ok_or_else(|| unexpected("no operator", "=, == or !="))?;
    let (path, rest) = term.split_at(at);
    let (value, equal) = if let Some(value) = rest.strip_prefix("!=") {
        (value, false)
    } else if let Some(value) = rest.strip_prefix("==").or(rest.strip_prefix('=')) {
        (value, true)
    } else {
        return Err(unexpected("'!'", "=, == or !="));
    };
    let value = unescape(value);
    Ok(FieldRequirement {
        path: path.trim().parse()?,
        value: value.ok_or_else(|| unexpected("a '\\' or '='", "\\\\, \\, or \\="))?,
        equal,
    })
}

/// `\\`, `\,` and `\=` are the escapes of Kubernetes.
fn unescape(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            '=' => return None,
            c => text.push(c),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn selectors_are_read_with_their_escapes() {
        let selector: FieldSelector = "metadata.name=a\\,b\\=\\\\,,spec.x!=,y==1".parse().unwrap();
        let read: Vec<_> = selector
            .requirements
            .iter()
            .map(|r| (r.path.to_string(), r.value.as_str(), r.equal))
            .collect();
        assert_eq!(
            read,
            [
                ("metadata.name".into(), "a,b=\\", true),
                ("spec.x".into(), "", false),
                ("y".into(), "1", true)
            ]
        );
        assert!("".parse::<FieldSelector>().unwrap().is_empty());
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["a", "a!b", "=b", "a..b=c", "a=b=c", "a=\\x", "a in (b)"] {
            assert!(text.parse::<FieldSelector>().is_err(), "{text}");
        }
    }
}
