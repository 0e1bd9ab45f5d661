//! The objects of one collection, and the digests by which two copies of it are compared.

use std::{collections::BTreeSet, sync::Arc};

use assent_core::Digest;
use bytes::Bytes;
use serde_json::Value;

use self::buckets::Buckets;
use crate::{CollectionSpec, Key, Object, Projection, Snapshot, canonical, objects::Objects};

mod buckets;

pub use buckets::{BUCKETS, PREFIX_BYTES, Prefixes};

/// The largest object: etcd takes no larger one.
pub const MAX_OBJECT_BYTES: usize = 4 << 20;

/// A changing set of objects. Readers get [snapshots](Collection::snapshot).
#[derive(Debug)]
pub struct Collection {
    spec: Arc<CollectionSpec>,
    projection: Projection,
    objects: Objects,
    buckets: Buckets,
    bytes: u64,
}

/// The key of an object, and its projected JSON if the collection selects it.
pub type Projected = (Key, Option<Vec<u8>>);

/// How much a collection holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects.
    pub objects: u64,
    /// Bytes of their projected JSON.
    pub bytes: u64,
}

/// Why an object cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a JSON object, or without a name that Kubernetes allows.
    #[error("an object has no valid metadata.name and metadata.namespace")]
    Key,
    /// The scope of kind and object differ.
    #[error("{0}: a namespaced object needs a namespace, and another one must not have it")]
    Scope(Key),
    /// Of another version or kind.
    #[error("{key} is {found} and not {expected}")]
    Kind {
        /// The object.
        key: Key,
        /// What it is.
        found: String,
        /// What the collection is.
        expected: String,
    },
    /// Too large.
    #[error("{0} has more than {MAX_OBJECT_BYTES} bytes; declare the fields that are read")]
    TooLarge(Key),
    /// What came over the wire is not an object of that name.
    #[error("{0} is not an object of that name in JSON")]
    Malformed(Key),
}

// === impl Collection ===

impl Collection {
    /// An empty collection.
    pub fn new(spec: Arc<CollectionSpec>) -> Self {
        Self {
            projection: spec.projection(),
            spec,
            objects: Objects::default(),
            buckets: Buckets::default(),
            bytes: 0,
        }
    }

    /// What the collection is.
    pub fn spec(&self) -> &Arc<CollectionSpec> {
        &self.spec
    }

    /// Takes an object as the API server has it: projects it and applies the scope. Returns its
    /// key if that changed the collection, in whichever way: [`Collection::get`] tells.
    pub fn observe(&mut self, object: Value) -> Result<Option<Key>, Error> {
        let Some((key, json)) = self.project(object)? else {
            return Ok(None);
        };
        let changed = match json {
            Some(json) => self.insert(key.clone(), json.into()),
            None => self.remove(&key),
        };
        Ok(changed.then_some(key))
    }

    /// The key of an object and its projected form, none if it is outside of the scope of
    /// labels; nothing at all if it is in another namespace than those of the collection.
    pub fn project(&self, mut object: Value) -> Result<Option<Projected>, Error> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let key = Key::new(text("namespace"), text("name")).ok_or(Error::Key)?;
        if key.namespace().is_empty() == self.spec.namespaced() {
            return Err(Error::Scope(key));
        }
        if !self.spec.has_namespace(key.namespace()) {
            return Ok(None);
        }
        self.set_kind(&key, &mut object)?;
        if !self.selects(&object) {
            return Ok(Some((key, None)));
        }
        let json = canonical::to_vec(&self.projection.project(object));
        if json.len() > MAX_OBJECT_BYTES {
            return Err(Error::TooLarge(key));
        }
        Ok(Some((key, Some(json))))
    }

    /// Takes an object that was projected by the other side. Returns whether that changed the
    /// collection. The bytes are copied: those of a message keep the whole message.
    pub fn put(&mut self, key: Key, json: &[u8]) -> Result<bool, Error> {
        if json.len() > MAX_OBJECT_BYTES {
            return Err(Error::TooLarge(key));
        }
        if key.namespace().is_empty() == self.spec.namespaced() {
            return Err(Error::Scope(key));
        }
        if !is_named(json, &key) {
            return Err(Error::Malformed(key));
        }
        Ok(self.insert(key, Bytes::copy_from_slice(json)))
    }

    /// Returns whether the object was there.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some(removed) = self.objects.remove(key.as_str()) else {
            return false;
        };
        self.buckets.remove(&removed);
        self.bytes -= removed.json().len() as u64;
        true
    }

    /// Removes every object whose key is not in `keys`, the result of a complete list, and
    /// returns the removed keys.
    pub fn retain(&mut self, keys: &BTreeSet<Key>) -> Vec<Key> {
        let gone = self.objects.iter().map(|object| object.key());
        let gone: Vec<Key> = gone.filter(|key| !keys.contains(key)).cloned().collect();
        gone.iter().for_each(|key| {
            self.remove(key);
        });
        gone
    }

    /// One object.
    pub fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(key.as_str())
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter()
    }

    /// How much it holds.
    pub fn totals(&self) -> Totals {
        Totals {
            objects: self.objects.len() as u64,
            bytes: self.bytes,
        }
    }

    /// SHA-256 over all buckets. Only buckets that changed since the last call are hashed.
    pub fn root(&mut self) -> Digest {
        self.buckets.root()
    }

    /// The first bytes of the hash of each bucket, for a peer that finds what differs. They do
    /// not prove equality: the root does.
    pub fn bucket_prefixes(&mut self) -> Prefixes {
        self.buckets.prefixes()
    }

    /// The buckets in which a peer's copy differs. None if `prefixes` are not those of
    /// [`BUCKETS`] buckets.
    pub fn differing_buckets<B: AsRef<[u8]>>(&mut self, prefixes: &[B]) -> Option<Vec<u16>> {
        self.buckets.differing(prefixes)
    }

    /// The objects of a bucket, in the order of their keys; none from [`BUCKETS`] on.
    pub fn bucket(&self, bucket: u16) -> &[Arc<Object>] {
        self.buckets.objects(bucket)
    }

    /// The state as readers see it. Later changes do not touch it.
    pub fn snapshot(&mut self) -> Snapshot {
        Snapshot {
            spec: self.spec.clone(),
            objects: self.objects.clone(),
            root: self.root(),
            totals: self.totals(),
        }
    }

    fn insert(&mut self, key: Key, json: Bytes) -> bool {
        let digest = Digest::of(&json);
        if self.get(&key).is_some_and(|old| old.digest() == digest) {
            return false;
        }
        let object = Arc::new(Object::new(key, digest, json));
        self.buckets.insert(&object);
        self.bytes += object.json().len() as u64;
        if let Some(old) = self.objects.insert(object) {
            self.bytes -= old.json().len() as u64;
        }
        true
    }

    /// Items of a list have neither version nor kind.
    fn set_kind(&self, key: &Key, object: &mut Value) -> Result<(), Error> {
        for (field, expected) in [
            ("apiVersion", self.spec.api_version()),
            ("kind", self.spec.kind()),
        ] {
            match &object[field] {
                Value::Null => object[field] = expected.into(),
                Value::String(found) if found == expected => {}
                found => {
                    return Err(Error::Kind {
                        key: key.clone(),
                        found: found.to_string(),
                        expected: expected.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn selects(&self, object: &Value) -> bool {
        let selector = self.spec.selector();
        if selector.is_empty() {
            return true;
        }
        let labels = object["metadata"]["labels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        selector.matches(&labels.collect())
    }
}

/// Whether `json` is an object of that name: a reader must not find one object under the name of
/// another.
fn is_named(json: &[u8], key: &Key) -> bool {
    #[derive(serde::Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow)]
        name: std::borrow::Cow<'a, str>,
        #[serde(borrow, default)]
        namespace: std::borrow::Cow<'a, str>,
    }
    let named: Option<Named<'_>> = serde_json::from_slice(json).ok();
    named.is_some_and(|named| {
        named.metadata.name == key.name() && named.metadata.namespace == key.namespace()
    })
}

#[cfg(test)]
mod tests;
