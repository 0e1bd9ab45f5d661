//! Label selectors in their string form.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use serde_json::Value;

use super::{
    Error, MAX_BYTES,
    lexer::{Lexer, Token},
    object,
};

/// Requirements that labels must all meet; none: everything is selected. Equal selectors print
/// equally, whatever their order was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    Greater(i64),
    Less(i64),
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads the object form, with `matchLabels` and `matchExpressions`.
    pub fn from_object(object: &Value) -> Result<Self, Error> {
        object::read(object).and_then(Self::new)
    }

    pub(super) fn new(mut requirements: Vec<Requirement>) -> Result<Self, Error> {
        requirements.iter().try_for_each(Requirement::check)?;
        requirements.sort_unstable();
        requirements.dedup();
        Ok(Self { requirements })
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether `labels` meet every requirement.
    pub fn matches<K, V>(&self, labels: &BTreeMap<K, V>) -> bool
    where
        K: Borrow<str> + Ord,
        V: AsRef<str>,
    {
        let requirements = &mut self.requirements.iter();
        requirements.all(|r| r.matches(labels.get(r.key.as_str()).map(AsRef::as_ref)))
    }
}

impl FromStr for LabelSelector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLong);
        }
        let mut parser = Parser {
            text,
            tokens: Lexer::new(text),
        };
        Self::new(parser.requirements()?)
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

// === impl Requirement ===

impl Requirement {
    fn check(&self) -> Result<(), Error> {
        if !is_key(&self.key) {
            return Err(Error::Key(self.key.clone()));
        }
        let (Operator::In(values) | Operator::NotIn(values)) = &self.operator else {
            return Ok(());
        };
        if values.is_empty() {
            return Err(Error::NoValues(self.key.clone()));
        }
        match values.iter().find(|value| !is_value(value)) {
            Some(value) => Err(Error::Value(value.clone())),
            None => Ok(()),
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            // An object without the label is selected, as in Kubernetes.
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Greater(than) => number().is_some_and(|number| number > *than),
            Operator::Less(than) => number().is_some_and(|number| number < *than),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let list = |f: &mut fmt::Formatter<'_>, one, many, values: &BTreeSet<String>| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            match values.as_slice() {
                [value] => write!(f, "{key}{one}{value}"),
                values => write!(f, "{key} {many} ({})", values.join(",")),
            }
        };
        match &self.operator {
            Operator::In(values) => list(f, "=", "in", values),
            Operator::NotIn(values) => list(f, "!=", "notin", values),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Greater(than) => write!(f, "{key}>{than}"),
            Operator::Less(than) => write!(f, "{key}<{than}"),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Lexer<'a>,
}

impl Parser<'_> {
    fn requirements(&mut self) -> Result<Vec<Requirement>, Error> {
        let mut requirements = Vec::new();
        if self.tokens.peek() == Token::End {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.tokens.next() {
                Token::Comma => {}
                Token::End => return Ok(requirements),
                other => return self.unexpected(other, "',' or the end"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        if self.tokens.peek() == Token::Not {
            self.tokens.next();
            let key = self.key()?;
            let operator = Operator::DoesNotExist;
            return Ok(Requirement { key, operator });
        }
        let key = self.key()?;
        if matches!(self.tokens.peek(), Token::End | Token::Comma) {
            let operator = Operator::Exists;
            return Ok(Requirement { key, operator });
        }
        let operator = match self.tokens.next() {
            Token::Equals => Operator::In(BTreeSet::from([self.value()?])),
            Token::NotEquals => Operator::NotIn(BTreeSet::from([self.value()?])),
            Token::Word("in") => Operator::In(self.values()?),
            Token::Word("notin") => Operator::NotIn(self.values()?),
            Token::Greater => Operator::Greater(self.integer()?),
            Token::Less => Operator::Less(self.integer()?),
            other => return self.unexpected(other, "=, ==, !=, in, notin, < or >"),
        };
        Ok(Requirement { key, operator })
    }

    fn key(&mut self) -> Result<String, Error> {
        match self.tokens.next() {
            // Keywords are no keys, as at the API server.
            Token::Word(key) if !matches!(key, "in" | "notin") => Ok(key.to_owned()),
            other => self.unexpected(other, "the key of a label"),
        }
    }

    /// Nothing is the empty value.
    fn value(&mut self) -> Result<String, Error> {
        match self.tokens.peek() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Word(value) => {
                self.tokens.next();
                Ok(value.to_owned())
            }
            other => self.unexpected(other, "a value"),
        }
    }

    fn integer(&mut self) -> Result<i64, Error> {
        let value = self.value()?;
        // A sign is no part of a label's value.
        let digits = value.bytes().all(|b| b.is_ascii_digit());
        let integer = value.parse().ok().filter(|_| digits);
        integer.ok_or(Error::Integer(value))
    }

    fn values(&mut self) -> Result<BTreeSet<String>, Error> {
        match self.tokens.next() {
            Token::Open => {}
            other => return self.unexpected(other, "'(' with values"),
        }
        let mut values = BTreeSet::new();
        if self.tokens.peek() == Token::Close {
            self.tokens.next();
            return Ok(values);
        }
        // Between two commas is an empty value.
        loop {
            let value = match self.tokens.peek() {
                Token::Word(value) => {
                    self.tokens.next();
                    value
                }
                _ => "",
            };
            values.insert(value.to_owned());
            match self.tokens.next() {
                Token::Comma => {}
                Token::Close => return Ok(values),
                other => return self.unexpected(other, "',' or ')'"),
            }
        }
    }

    fn unexpected<T>(&self, found: Token<'_>, expected: &'static str) -> Result<T, Error> {
        Err(Error::Unexpected {
            selector: self.text.to_owned(),
            found: found.describe(),
            expected,
        })
    }
}

/// A qualified name: an optional DNS subdomain and a name of at most 63 characters.
fn is_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    !name.is_empty() && is_value(name) && prefix.is_none_or(assent_core::policy::is_dns_subdomain)
}

fn is_value(value: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|b| inner(*b))
        && edge(bytes.first())
        && edge(bytes.last())
}

#[cfg(test)]
mod tests;
