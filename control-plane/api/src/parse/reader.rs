//! Reads fields out of JSON, collects what is wrong, and knows what was not read.

use std::{cell::RefCell, ops::RangeInclusive};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Errors, FieldError};

/// Where errors go.
#[derive(Default)]
pub(super) struct Sink(RefCell<Vec<FieldError>>);

/// A value and its path.
#[derive(Clone)]
pub(super) struct Node<'a> {
    pub(super) sink: &'a Sink,
    pub(super) path: String,
    pub(super) value: &'a Value,
}

/// An object whose fields are being read. Fields that were not read are errors when it is closed.
pub(super) struct Fields<'a> {
    sink: &'a Sink,
    path: String,
    map: Option<&'a Map<String, Value>>,
    read: Vec<&'static str>,
}

// === impl Sink ===

impl Sink {
    pub(super) fn error(&self, path: &str, message: impl Into<String>) {
        self.0.borrow_mut().push(FieldError {
            path: path.to_owned(),
            message: message.into(),
        });
    }

    /// Gives `value` if there was no error.
    pub(super) fn result<T>(self, value: Option<T>) -> Result<T, Errors> {
        let errors = self.0.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(Errors(errors)),
        }
    }
}

// === impl Node ===

impl<'a> Node<'a> {
    pub(super) fn error(&self, message: impl Into<String>) {
        self.sink.error(&self.path, message);
    }

    fn mismatch<T>(&self, expected: &str) -> Option<T> {
        self.error(format!("must be {expected}, not {}", describe(self.value)));
        None
    }

    pub(super) fn fields(&self) -> Fields<'a> {
        let map = self.value.as_object();
        if map.is_none() {
            let _: Option<()> = self.mismatch("an object");
        }
        Fields {
            sink: self.sink,
            path: self.path.clone(),
            map,
            read: Vec::new(),
        }
    }

    pub(super) fn string(&self) -> Option<String> {
        match self.value {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => self.mismatch("a string; put it in quotes"),
            _ => self.mismatch("a string"),
        }
    }

    pub(super) fn items(&self) -> Vec<Node<'a>> {
        let Value::Array(items) = self.value else {
            let _: Option<()> = self.mismatch("a list");
            return Vec::new();
        };
        let item = |(i, value)| Node {
            sink: self.sink,
            path: format!("{}[{i}]", self.path),
            value,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Reads one of the names that `T` knows.
    pub(super) fn choice<T: DeserializeOwned>(&self, names: &[&str]) -> Option<T> {
        let text = self.string()?;
        let known = names.contains(&text.as_str());
        let value = serde_json::from_value(Value::String(text.clone()))
            .ok()
            .filter(|_| known);
        if value.is_none() {
            let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
            self.error(format!(
                "must be one of {}, not \"{text}\"",
                names.join(", ")
            ));
        }
        value
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            return name.to_owned();
        }
        format!("{}.{name}", self.path)
    }

    /// The field `name`; null is absent, as everywhere in Kubernetes.
    pub(super) fn get(&mut self, name: &'static str) -> Option<Node<'a>> {
        self.read.push(name);
        let value = self.map?.get(name).filter(|value| !value.is_null())?;
        Some(Node {
            sink: self.sink,
            path: self.path_of(name),
            value,
        })
    }

    /// The field `name`, which must be there.
    pub(super) fn require(&mut self, name: &'static str, hint: &str) -> Option<Node<'a>> {
        let node = self.get(name);
        if node.is_none() && self.map.is_some() {
            self.sink
                .error(&self.path_of(name), format!("must be given; {hint}"));
        }
        node
    }

    pub(super) fn string(&mut self, name: &'static str) -> Option<String> {
        self.get(name)?.string()
    }

    pub(super) fn boolean(&mut self, name: &'static str, default: bool) -> bool {
        let Some(node) = self.get(name) else {
            return default;
        };
        let truth = node.value.as_bool();
        truth
            .or_else(|| node.mismatch("true or false"))
            .unwrap_or(default)
    }

    /// An integer within `range`.
    pub(super) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i32>,
    ) -> Option<i32> {
        let node = self.get(name)?;
        let Some(number) = node.value.as_i64() else {
            return node.mismatch("an integer");
        };
        let fits = i32::try_from(number).ok().filter(|n| range.contains(n));
        if fits.is_none() {
            let (low, high) = (range.start(), range.end());
            node.error(match *high {
                i32::MAX => format!("must be at least {low}, not {number}"),
                _ => format!("must be between {low} and {high}, not {number}"),
            });
        }
        fits
    }

    pub(super) fn choice<T: DeserializeOwned + Default>(
        &mut self,
        name: &'static str,
        names: &[&str],
    ) -> T {
        let node = self.get(name);
        node.and_then(|node| node.choice(names)).unwrap_or_default()
    }

    pub(super) fn items(&mut self, name: &'static str) -> Vec<Node<'a>> {
        self.get(name).map(|node| node.items()).unwrap_or_default()
    }

    /// Reports every field that was not asked for.
    pub(super) fn close(self) {
        for name in self.map.into_iter().flat_map(Map::keys) {
            if !self.read.contains(&name.as_str()) {
                let known = self.read.join(", ");
                let message = format!("unknown field; remove it (known are {known})");
                self.sink.error(&self.path_of(name), message);
            }
        }
    }
}

pub(super) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
