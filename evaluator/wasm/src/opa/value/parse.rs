//! Parses the output of a guest's `opa_value_dump`.

use std::{collections::BTreeMap, collections::BTreeSet};

use regorus::Value;

use crate::{limits::JSON_DEPTH, opa::deadline};

/// Integers with more digits than this are read as floating point: arithmetic on them has no bound.
const MAX_DIGITS: usize = 100;

/// Digits of the largest RSA keys, twice over: beyond floating point, and still quick to read.
const MOST_DIGITS: usize = 10_000;

/// Why text is no value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error("it ends too early")]
    End,
    #[error("unexpected text at byte {0}")]
    Unexpected(usize),
    #[error("it nests deeper than {JSON_DEPTH}")]
    TooDeep,
    #[error("it is too large")]
    TooLarge,
}

/// Reads one value.
pub(crate) fn parse(text: &[u8]) -> Result<Value, Error> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(JSON_DEPTH)?;
    match parser.peek() {
        Err(Error::End) => Ok(value),
        _ => Err(parser.unexpected()),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    /// The next byte that is no white space.
    fn peek(&mut self) -> Result<u8, Error> {
        while let Some(byte) = self.text.get(self.at) {
            if !byte.is_ascii_whitespace() {
                return Ok(*byte);
            }
            self.at += 1;
        }
        Err(Error::End)
    }

    fn unexpected(&self) -> Error {
        Error::Unexpected(self.at)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        deadline::tick();
        match self.peek()? {
            b'{' => self.braces(depth.checked_sub(1).ok_or(Error::TooDeep)?),
            b'[' => self.array(depth.checked_sub(1).ok_or(Error::TooDeep)?),
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Value, Error> {
        let words: [(&[u8], Value); 4] = [
            (b"null", Value::Null),
            (b"true", Value::Bool(true)),
            (b"false", Value::Bool(false)),
            (b"set()", Value::from(BTreeSet::new())),
        ];
        for (word, value) in words {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.unexpected())
    }

    fn array(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.end(b']', items.is_empty())? {
            items.push(self.value(depth)?);
        }
        Ok(Value::from(items))
    }

    /// An object if a colon follows the first value, else a set.
    fn braces(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        if self.end(b'}', true)? {
            return Ok(Value::new_object());
        }
        let first = self.value(depth)?;
        if self.peek()? == b':' {
            self.object(first, depth)
        } else {
            self.set(first, depth)
        }
    }

    fn object(&mut self, first: Value, depth: usize) -> Result<Value, Error> {
        let mut fields = BTreeMap::new();
        let mut key = first;
        loop {
            if self.peek()? != b':' {
                return Err(self.unexpected());
            }
            self.at += 1;
            fields.insert(key, self.value(depth)?);
            if self.end(b'}', false)? {
                return Ok(Value::from(fields));
            }
            key = self.value(depth)?;
        }
    }

    fn set(&mut self, first: Value, depth: usize) -> Result<Value, Error> {
        let mut items = BTreeSet::from([first]);
        while !self.end(b'}', false)? {
            items.insert(self.value(depth)?);
        }
        Ok(Value::from(items))
    }

    /// Whether the bracket closes here; otherwise there must be a comma, except before the first item.
    fn end(&mut self, close: u8, first: bool) -> Result<bool, Error> {
        let next = self.peek()?;
        if next == close {
            self.at += 1;
            return Ok(true);
        }
        if !first {
            if next != b',' {
                return Err(self.unexpected());
            }
            self.at += 1;
        }
        Ok(false)
    }

    fn string(&mut self) -> Result<Value, Error> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.text.get(self.at).ok_or(Error::End)? {
                b'\\' => self.at += 2,
                b'"' => break,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let string: String = serde_json::from_slice(&self.text[start..self.at])
            .map_err(|_| Error::Unexpected(start))?;
        Ok(Value::from(string))
    }

    fn number(&mut self) -> Result<Value, Error> {
        let rest = &self.text[self.at..];
        let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
        let length = rest
            .iter()
            .position(|byte| !is_part(byte))
            .unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..length]).map_err(|_| self.unexpected())?;
        let value = number(text).ok_or_else(|| self.unexpected())?;
        self.at += length;
        Ok(value)
    }
}

fn is_integer(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn number(text: &str) -> Option<Value> {
    if let Ok(small) = text.parse::<i64>() {
        return Some(Value::from(small));
    }
    if text.len() <= MAX_DIGITS && is_integer(text) {
        return Value::from_numeric_string(text).ok();
    }
    match text.parse::<f64>().ok()? {
        float if float.is_finite() => Some(Value::from(float)),
        // The modulus of a key, for example; it may be shown, but is not calculated with.
        _ if is_integer(text) && text.len() <= MOST_DIGITS => Value::from_numeric_string(text).ok(),
        _ => None,
    }
}
