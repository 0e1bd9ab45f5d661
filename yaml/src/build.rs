//! Builds a value from the events of a document.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use granit_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Value};

use super::{Duplicates, MAX_DEPTH, MAX_NODES, Reason, scalar};

/// A document under construction.
#[derive(Default)]
pub(super) struct Build {
    open: Vec<Frame>,
    anchors: HashMap<usize, Anchor>,
    /// Values so far, including those that aliases expanded to.
    nodes: usize,
    root: Value,
    duplicates: Duplicates,
}

/// A collection that is still open.
struct Frame {
    anchor: usize,
    nodes_before: usize,
    content: Content,
}

enum Content {
    Sequence(Vec<Value>),
    Mapping(Mapping),
}

#[derive(Default)]
struct Mapping {
    map: Map<String, Value>,
    /// The keys that were written in this mapping: merged ones may be overwritten.
    written: HashSet<String>,
    key: Option<Key>,
}

/// A key whose value follows.
enum Key {
    Field(String),
    Merge,
}

/// What an alias refers to, and how many values that is.
struct Anchor {
    value: Value,
    nodes: usize,
}

// === impl Build ===

impl Build {
    pub(super) fn new(duplicates: Duplicates) -> Self {
        Self {
            duplicates,
            ..Self::default()
        }
    }

    pub(super) fn finish(self) -> Value {
        self.root
    }

    pub(super) fn event(&mut self, event: Event<'_>) -> Result<(), Reason> {
        match event {
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag),
            // Tags of collections are ignored, as `kubectl` does.
            Event::SequenceStart(_, anchor, _) => self.open(anchor, Content::Sequence(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                self.open(anchor, Content::Mapping(Mapping::default()))
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor),
            _ => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<Cow<'_, Tag>>,
    ) -> Result<(), Reason> {
        let plain = style == ScalarStyle::Plain;
        if self.wants_key() {
            let merge = match &tag {
                Some(tag) => scalar::is_merge(tag),
                None => plain,
            };
            if merge && text == "<<" {
                return self.key(Key::Merge);
            }
            let (key, value) = match tag {
                Some(tag) => scalar::tagged_key(text, &tag)?,
                None if plain => scalar::plain_key(text)?,
                None => (text.to_owned(), Value::from(text)),
            };
            self.remember(anchor, &value, 1);
            return self.key(Key::Field(key));
        }
        let value = match tag {
            Some(tag) => scalar::tagged(text, &tag)?,
            None if plain => scalar::plain(text)?,
            None => Value::from(text),
        };
        self.count(1)?;
        self.remember(anchor, &value, 1);
        self.put(value)
    }

    fn wants_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Frame {
                content: Content::Mapping(Mapping { key: None, .. }),
                ..
            })
        )
    }

    fn key(&mut self, key: Key) -> Result<(), Reason> {
        let Some(Frame {
            content: Content::Mapping(mapping),
            ..
        }) = self.open.last_mut()
        else {
            return Ok(());
        };
        if let Key::Field(name) = &key
            && self.duplicates == Duplicates::Refused
            && !mapping.written.insert(name.clone())
        {
            return Err(Reason::DuplicateKey(name.clone()));
        }
        mapping.key = Some(key);
        Ok(())
    }

    fn open(&mut self, anchor: usize, content: Content) -> Result<(), Reason> {
        if self.wants_key() {
            return Err(Reason::ComplexKey);
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(Reason::TooDeep);
        }
        let nodes_before = self.nodes;
        self.count(1)?;
        self.open.push(Frame {
            anchor,
            nodes_before,
            content,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Reason> {
        let Some(frame) = self.open.pop() else {
            return Ok(());
        };
        let value = match frame.content {
            Content::Sequence(items) => Value::Array(items),
            Content::Mapping(mapping) => Value::Object(mapping.map),
        };
        self.remember(frame.anchor, &value, self.nodes - frame.nodes_before);
        self.put(value)
    }

    fn alias(&mut self, anchor: usize) -> Result<(), Reason> {
        let Some(Anchor { value, nodes }) = self.anchors.get(&anchor) else {
            return Err(Reason::Recursive);
        };
        if self.wants_key() {
            let key = scalar::key(value)?;
            return self.key(Key::Field(key));
        }
        // Counted before it is copied: a bomb costs nothing.
        let nodes = *nodes;
        if self.nodes + nodes > MAX_NODES {
            return Err(Reason::TooManyNodes);
        }
        if self.open.len() + depth(value) > MAX_DEPTH {
            return Err(Reason::TooDeep);
        }
        let value = value.clone();
        self.nodes += nodes;
        self.put(value)
    }

    fn count(&mut self, nodes: usize) -> Result<(), Reason> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(Reason::TooManyNodes);
        }
        Ok(())
    }

    fn remember(&mut self, anchor: usize, value: &Value, nodes: usize) {
        if anchor != 0 {
            let value = value.clone();
            self.anchors.insert(anchor, Anchor { value, nodes });
        }
    }

    fn put(&mut self, value: Value) -> Result<(), Reason> {
        match self.open.last_mut().map(|frame| &mut frame.content) {
            Some(Content::Sequence(items)) => items.push(value),
            Some(Content::Mapping(mapping)) => {
                match mapping.key.take().expect("a value must follow its key") {
                    Key::Field(name) => {
                        mapping.map.insert(name, value);
                    }
                    Key::Merge => merge(&mut mapping.map, value)?,
                }
            }
            None => self.root = value,
        }
        Ok(())
    }
}

/// Copies the fields of a mapping, or of several of which the first has precedence. Like in
/// `kubectl`, fields that stand before `<<` are overwritten, and those behind it overwrite.
fn merge(map: &mut Map<String, Value>, value: Value) -> Result<(), Reason> {
    match value {
        Value::Object(fields) => {
            map.extend(fields);
            Ok(())
        }
        Value::Array(items) => {
            for item in items.into_iter().rev() {
                let Value::Object(fields) = item else {
                    return Err(Reason::Merge);
                };
                map.extend(fields);
            }
            Ok(())
        }
        _ => Err(Reason::Merge),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
