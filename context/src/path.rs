//! Dotted paths into objects.

use std::{fmt, str::FromStr};

/// The longest path: deeper ones do not exist in Kubernetes.
const MAX_BYTES: usize = 1_024;

/// A path of keys. Lists are transparent: `spec.rules.host` is the host of every rule.
///
/// In text a dot separates keys and `\.` is a dot inside a key, as in `kubectl`'s JSONPath.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<Box<str>>);

/// Why a text is no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Two dots in sequence, a dot at an end, or nothing at all.
    #[error("{0:?} is not a path: a key is empty; write for example spec.rules.host")]
    EmptyKey(String),
    /// An escape other than `\.` and `\\`.
    #[error("{0:?} is not a path: only \\. and \\\\ are escapes")]
    Escape(String),
    /// A list index or a wildcard.
    #[error(
        "{0:?} is not a path: lists are transparent, leave out {1:?}; write for example \
         spec.rules.host"
    )]
    Index(String, char),
    /// Too long.
    #[error("a path is longer than {MAX_BYTES} bytes")]
    TooLong,
}

// === impl FieldPath ===

impl FieldPath {
    /// A path of keys as they are.
    pub fn of<const N: usize>(keys: [&str; N]) -> Self {
        Self(keys.map(Box::from).into())
    }

    /// Its keys.
    pub fn keys(&self) -> &[Box<str>] {
        &self.0
    }

    /// Whether `other` is this path or below it.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl FromStr for FieldPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLong);
        }
        let mut keys = vec![String::new()];
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let key = keys.last_mut().expect("there must be a key");
            match c {
                '.' => keys.push(String::new()),
                '\\' => match chars.next() {
                    Some(c @ ('.' | '\\')) => key.push(c),
                    _ => return Err(Error::Escape(text.to_owned())),
                },
                '[' | ']' | '*' => return Err(Error::Index(text.to_owned(), c)),
                c => key.push(c),
            }
        }
        if keys.iter().any(String::is_empty) {
            return Err(Error::EmptyKey(text.to_owned()));
        }
        Ok(Self(keys.into_iter().map(Box::from).collect()))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, key) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            f.write_str(&key.replace('\\', "\\\\").replace('.', "\\."))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_survive_their_text() {
        let path: FieldPath = "metadata.annotations.example\\.com/owner".parse().unwrap();
        assert_eq!(
            path,
            FieldPath::of(["metadata", "annotations", "example.com/owner"])
        );
        assert_eq!(path.to_string().parse(), Ok(path));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "", ".", ".a", "a.", "a..b", "a[0]", "a.*", "a\\b", "a[*].b", "a\\",
        ] {
            assert!(text.parse::<FieldPath>().is_err(), "{text}");
        }
        assert_eq!("a.".repeat(600).parse::<FieldPath>(), Err(Error::TooLong));
    }

    #[test]
    fn a_path_covers_what_is_below_it() {
        let spec = FieldPath::of(["spec"]);
        assert!(spec.covers(&spec));
        assert!(spec.covers(&FieldPath::of(["spec", "rules"])));
        assert!(!FieldPath::of(["spec", "rules"]).covers(&spec));
        assert!(!spec.covers(&FieldPath::of(["specs"])));
    }
}
