//! Objects by the hash of their keys: two copies are compared bucket by bucket.
//!
//! Hashes are over sorted keys and digests. A sum of digests would be cheaper to keep up to
//! date, but whoever may create objects could choose some whose sum is that of others.

use std::sync::Arc;

use assent_core::{Digest, digest::Framed};

use crate::{Key, Object};

/// Buckets of a collection. A change in 100,000 objects hashes the keys of about 100 of them,
/// and all prefixes fit a message of 8 KiB.
pub const BUCKETS: usize = 1_024;

/// Bytes of a bucket's hash that a client sends.
pub const PREFIX_BYTES: usize = 8;

/// The prefix of each bucket's hash.
pub type Prefixes = Vec<[u8; PREFIX_BYTES]>;

#[derive(Debug)]
pub(super) struct Buckets {
    buckets: Vec<Bucket>,
    root: Option<Digest>,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// Sorted by key.
    objects: Vec<Arc<Object>>,
    /// None if it changed since it was hashed.
    hash: Option<Digest>,
}

// === impl Buckets ===

impl Default for Buckets {
    fn default() -> Self {
        Self {
            buckets: vec![Bucket::default(); BUCKETS],
            root: None,
        }
    }
}

impl Buckets {
    pub(super) fn insert(&mut self, object: &Arc<Object>) {
        let bucket = self.dirty(object.key());
        match bucket.find(object.key()) {
            Ok(at) => bucket.objects[at] = object.clone(),
            Err(at) => bucket.objects.insert(at, object.clone()),
        }
    }

    pub(super) fn remove(&mut self, object: &Object) {
        let bucket = self.dirty(object.key());
        if let Ok(at) = bucket.find(object.key()) {
            bucket.objects.remove(at);
        }
    }

    pub(super) fn root(&mut self) -> Digest {
        if let Some(root) = self.root {
            return root;
        }
        let mut hash = Framed::new("assent.root.v1");
        for bucket in &mut self.buckets {
            hash.raw(&bucket.hash());
        }
        *self.root.insert(hash.digest())
    }

    pub(super) fn prefixes(&mut self) -> Prefixes {
        self.buckets.iter_mut().map(Bucket::prefix).collect()
    }

    pub(super) fn differing<B: AsRef<[u8]>>(&mut self, prefixes: &[B]) -> Option<Vec<u16>> {
        let well_formed = prefixes.iter().all(|p| p.as_ref().len() == PREFIX_BYTES);
        if prefixes.len() != BUCKETS || !well_formed {
            return None;
        }
        let pairs = (0u16..).zip(self.buckets.iter_mut().zip(prefixes));
        let differ = pairs.filter_map(|(number, (own, theirs))| {
            (own.prefix() != theirs.as_ref()).then_some(number)
        });
        Some(differ.collect())
    }

    pub(super) fn objects(&self, bucket: u16) -> &[Arc<Object>] {
        let bucket = self.buckets.get(usize::from(bucket));
        bucket.map_or(&[], |bucket| &bucket.objects)
    }

    fn dirty(&mut self, key: &Key) -> &mut Bucket {
        self.root = None;
        let bucket = &mut self.buckets[usize::from(key.bucket())];
        bucket.hash = None;
        bucket
    }
}

// === impl Bucket ===

impl Bucket {
    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.objects
            .binary_search_by(|object| object.key().cmp(key))
    }

    fn hash(&mut self) -> Digest {
        let objects = &self.objects;
        *self.hash.get_or_insert_with(|| {
            let mut hash = Framed::new("assent.bucket.v1");
            hash.count(objects.len());
            for object in objects {
                hash.field(object.key().namespace().as_bytes());
                hash.field(object.key().name().as_bytes());
                hash.raw(&object.digest());
            }
            hash.digest()
        })
    }

    fn prefix(&mut self) -> [u8; PREFIX_BYTES] {
        let hash = self.hash();
        let mut prefix = [0; PREFIX_BYTES];
        prefix.copy_from_slice(&hash.as_bytes()[..PREFIX_BYTES]);
        prefix
    }
}

// === impl Key ===

impl Key {
    /// The bucket that its object is in.
    pub fn bucket(&self) -> u16 {
        let mut hash = Framed::new("assent.key.v1");
        hash.field(self.namespace().as_bytes());
        hash.field(self.name().as_bytes());
        let digest = hash.digest();
        let [first, second, ..] = digest.as_bytes();
        u16::from_be_bytes([*first, *second]) % BUCKETS as u16
    }
}
