//! Builds one value out of the events of a document.

use std::{borrow::Cow, collections::HashMap};

use granit_parser::{Event, ScalarStyle, Tag};
use serde_json::{Map, Value, map::Entry};

use super::{MAX_DEPTH, MAX_NODES, Reason, scalar};

/// A document under construction.
#[derive(Default)]
pub(super) struct Build {
    open: Vec<Frame>,
    anchors: HashMap<usize, Anchor>,
    /// Values so far, those that aliases brought included.
    nodes: usize,
    root: Value,
}

/// A collection whose end was not seen yet.
struct Frame {
    anchor: usize,
    nodes_before: usize,
    content: Content,
}

enum Content {
    Sequence(Vec<Value>),
    Mapping(Map<String, Value>, Option<String>),
}

/// What an alias stands for, and how many values that is.
struct Anchor {
    value: Value,
    nodes: usize,
}

// === impl Build ===

impl Build {
    pub(super) fn finish(self) -> Value {
        self.root
    }

    pub(super) fn event(&mut self, event: Event<'_>) -> Result<(), Reason> {
        match event {
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag),
            Event::SequenceStart(_, anchor, tag) => {
                collection_tag(tag, "seq")?;
                self.open(anchor, Content::Sequence(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                collection_tag(tag, "map")?;
                self.open(anchor, Content::Mapping(Map::new(), None))
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
            return self.key(text, plain && tag.is_none());
        }
        let value = match tag {
            Some(tag) => scalar::tagged(text, &tag)?,
            None if plain => scalar::plain(text)?,
            None => Value::from(text),
        };
        self.count(1)?;
        self.remember(anchor, &value, 1);
        self.put(value);
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Frame {
                content: Content::Mapping(_, None),
                ..
            })
        )
    }

    /// Takes a key by its text, as the YAML readers of Kubernetes do with numbers and booleans.
    fn key(&mut self, text: &str, plain: bool) -> Result<(), Reason> {
        if plain && text == "<<" {
            return Err(Reason::MergeKey);
        }
        if plain && scalar::is_null(text) {
            return Err(Reason::ComplexKey);
        }
        let Some(Frame {
            content: Content::Mapping(map, key),
            ..
        }) = self.open.last_mut()
        else {
            return Ok(());
        };
        if map.contains_key(text) {
            return Err(Reason::DuplicateKey(text.to_owned()));
        }
        *key = Some(text.to_owned());
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
            Content::Mapping(map, _) => Value::Object(map),
        };
        self.remember(frame.anchor, &value, self.nodes - frame.nodes_before);
        self.put(value);
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), Reason> {
        if self.wants_key() {
            return Err(Reason::ComplexKey);
        }
        let Some(Anchor { value, nodes }) = self.anchors.get(&anchor) else {
            return Err(Reason::Recursive);
        };
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
        self.put(value);
        Ok(())
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

    fn put(&mut self, value: Value) {
        match self.open.last_mut().map(|frame| &mut frame.content) {
            Some(Content::Sequence(items)) => items.push(value),
            Some(Content::Mapping(map, key)) => {
                let key = key.take().expect("a value must follow its key");
                if let Entry::Vacant(vacant) = map.entry(key) {
                    vacant.insert(value);
                }
            }
            None => self.root = value,
        }
    }
}

fn collection_tag(tag: Option<Cow<'_, Tag>>, expect: &str) -> Result<(), Reason> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(expect) => Err(Reason::Tag {
            tag: tag.original(),
            value: format!("a collection ({expect})"),
        }),
        _ => Ok(()),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
