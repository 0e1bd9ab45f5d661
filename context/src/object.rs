//! One object of a collection.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use assent_core::Digest;
use bytes::Bytes;
use serde::Deserialize;

/// Separates namespace and name: it sorts before every character that they may have.
const SEPARATOR: char = '\0';

/// Namespace and name. Keys are ordered by namespace, then by name.
///
/// One allocation that all copies share: the control plane keeps keys per client.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// An object as it was projected, in canonical JSON. It is never kept as a tree, which takes
/// several times as much memory.
#[derive(Debug)]
pub struct Object {
    key: Key,
    digest: Digest,
    json: Bytes,
    /// Read when a selector needs them first.
    labels: OnceLock<BTreeMap<Box<str>, Box<str>>>,
}

// === impl Key ===

impl Key {
    /// The key of an object; `namespace` is empty for cluster-scoped kinds. None if either
    /// cannot be a name of Kubernetes: no name contains a control character or a slash.
    pub fn new(namespace: &str, name: &str) -> Option<Self> {
        let valid = |text: &str| {
            text.len() <= 253 && !text.contains(|c: char| c.is_control() || c == '/' || c == '%')
        };
        if name.is_empty() || !valid(name) || !valid(namespace) {
            return None;
        }
        Some(Self(format!("{namespace}{SEPARATOR}{name}").into()))
    }

    /// Empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        let parts = self.0.split_once(SEPARATOR);
        parts.expect("a key must have a separator")
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Sorts before every key of `namespace` and after those of earlier ones.
    pub(crate) fn start_of(namespace: &str) -> String {
        format!("{namespace}{SEPARATOR}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            ("", name) => f.write_str(name),
            (namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Object ===

impl Object {
    pub(crate) fn new(key: Key, digest: Digest, json: Bytes) -> Self {
        Self {
            key,
            digest,
            json,
            labels: OnceLock::new(),
        }
    }

    /// Its namespace and name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The digest of [`Object::json`].
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The projected object, in canonical JSON.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// `metadata.labels`. Values that are not text are no labels.
    pub fn labels(&self) -> &BTreeMap<Box<str>, Box<str>> {
        self.labels.get_or_init(|| read_labels(&self.json))
    }
}

fn read_labels(json: &[u8]) -> BTreeMap<Box<str>, Box<str>> {
    #[derive(Deserialize)]
    struct Labelled {
        metadata: Option<Metadata>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        labels: Option<BTreeMap<Box<str>, Box<str>>>,
    }
    let object: Option<Labelled> = serde_json::from_slice(json).ok();
    let labels = object.and_then(|object| object.metadata?.labels);
    labels.unwrap_or_default()
}
