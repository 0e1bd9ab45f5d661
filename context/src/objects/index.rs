//! Hash indexes of one chunk: positions by the value of a field.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Chunk;
use crate::FieldPath;

/// Paths that are indexed at a time. A module that makes up paths does not make the evaluator
/// grow: a further path replaces the oldest.
const MAX_PATHS: usize = 16;

/// Positions in the chunk by value, ascending. An object without the field has the value "", as
/// in field selectors of Kubernetes.
pub(crate) type ByValue = HashMap<Box<str>, Vec<u16>>;

/// Built for a path when it is used first.
#[derive(Default)]
pub(crate) struct Indexes(RwLock<Vec<(FieldPath, Arc<ByValue>)>>);

// === impl Indexes ===

impl Indexes {
    pub(crate) fn get(&self, path: &FieldPath, chunk: &Chunk) -> Arc<ByValue> {
        let read = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, index)) = read.iter().find(|(indexed, _)| indexed == path) {
            return index.clone();
        }
        drop(read);
        // Two readers may build the same index: the second replaces an equal one.
        let index = Arc::new(build(path, chunk));
        let mut write = self.0.write().unwrap_or_else(PoisonError::into_inner);
        write.retain(|(indexed, _)| indexed != path);
        if write.len() == MAX_PATHS {
            write.remove(0);
        }
        write.push((path.clone(), index.clone()));
        index
    }
}

impl fmt::Debug for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Indexes")
    }
}

fn build(path: &FieldPath, chunk: &Chunk) -> ByValue {
    let mut index = ByValue::new();
    for (at, object) in (0u16..).zip(chunk.objects()) {
        let mut values = values(object.json(), path);
        if values.is_empty() {
            values.push(String::new());
        }
        values.sort_unstable();
        values.dedup();
        for value in values {
            index.entry(value.into()).or_default().push(at);
        }
    }
    index
}

/// Scalars at `path` as text. Everything else of the object is skipped without being read.
pub(crate) fn values(json: &[u8], path: &FieldPath) -> Vec<String> {
    let mut values = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let seed = Extract {
        keys: path.keys(),
        values: &mut values,
    };
    // What is stored is JSON: it was checked when it came.
    let _ = seed.deserialize(&mut reader);
    values
}

struct Extract<'a> {
    keys: &'a [Box<str>],
    values: &'a mut Vec<String>,
}

impl Extract<'_> {
    fn scalar<E>(self, value: impl ToString) -> Result<(), E> {
        if self.keys.is_empty() {
            self.values.push(value.to_string());
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Extract<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Extract<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.keys.split_first() {
                Some((first, below)) if **first == *key => map.next_value_seed(Extract {
                    keys: below,
                    values: self.values,
                })?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Extract { keys, values } = self;
        while seq.next_element_seed(Extract { keys, values })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.scalar(value)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
