//! All objects of a collection in the order of their keys, as a persistent list of chunks.
//!
//! Written here, because the maps with structural sharing on crates.io are either not permissively
//! licensed or no longer kept, and because indexes live in chunks: a change rebuilds the index of
//! one chunk and not of the collection.

use std::sync::Arc;

use self::index::Indexes;
use crate::{Key, Object};

pub(crate) mod index;

/// Objects of a chunk. A change copies the pointers of one chunk and of the list of chunks:
/// with 100,000 objects these two are about equally long.
const MAX: usize = 256;

/// A sorted list that copies share. Copying costs one pointer, changing a copy one chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    chunks: Arc<Vec<Arc<Chunk>>>,
    len: usize,
}

/// A part of the list, never empty.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    objects: Vec<Arc<Object>>,
    indexes: Indexes,
}

// === impl Objects ===

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Object>> {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let at = chunk.find(key).ok()?;
        chunk.objects.get(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.chunks.iter().flat_map(|chunk| &chunk.objects)
    }

    /// Chunks that may hold keys from `start` on.
    pub(crate) fn chunks_from(&self, start: &str) -> &[Arc<Chunk>] {
        &self.chunks[self.chunk_of(start)..]
    }

    /// Returns the object that was there before.
    pub(crate) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        let at = self.chunk_of(object.key().as_str());
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(at) else {
            chunks.push(Arc::new(Chunk::of(vec![object])));
            self.len += 1;
            return None;
        };
        let chunk = Arc::make_mut(chunk);
        chunk.indexes = Indexes::default();
        match chunk.find(object.key().as_str()) {
            Ok(found) => Some(std::mem::replace(&mut chunk.objects[found], object)),
            Err(free) => {
                chunk.objects.insert(free, object);
                self.len += 1;
                if chunk.objects.len() > MAX {
                    let upper = chunk.objects.split_off(MAX / 2);
                    chunks.insert(at + 1, Arc::new(Chunk::of(upper)));
                }
                None
            }
        }
    }

    /// Returns the object that was removed.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Arc<Object>> {
        let at = self.chunk_of(key);
        let found = self.chunks.get(at)?.find(key).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[at]);
        chunk.indexes = Indexes::default();
        let removed = chunk.objects.remove(found);
        self.len -= 1;
        merge(chunks, at);
        Some(removed)
    }

    /// The chunk in which `key` is or would be: the last that starts at or before it.
    fn chunk_of(&self, key: &str) -> usize {
        let after = self.chunks.partition_point(|chunk| chunk.first() <= key);
        after.saturating_sub(1)
    }
}

/// Puts a chunk that became small to the one before it, so that deletions do not leave a list of
/// nearly empty chunks.
fn merge(chunks: &mut Vec<Arc<Chunk>>, at: usize) {
    if chunks[at].objects.is_empty() {
        chunks.remove(at);
        return;
    }
    let (Some(before), len) = (at.checked_sub(1), chunks[at].objects.len()) else {
        return;
    };
    if chunks[before].objects.len() + len > MAX / 2 {
        return;
    }
    let merged = chunks.remove(at);
    let chunk = Arc::make_mut(&mut chunks[before]);
    chunk.indexes = Indexes::default();
    chunk.objects.extend(merged.objects.iter().cloned());
}

// === impl Chunk ===

impl Chunk {
    fn of(objects: Vec<Arc<Object>>) -> Self {
        Self {
            objects,
            indexes: Indexes::default(),
        }
    }

    pub(crate) fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    pub(crate) fn indexes(&self) -> &Indexes {
        &self.indexes
    }

    fn first(&self) -> &str {
        self.objects.first().map_or("", |o| o.key().as_str())
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.objects
            .binary_search_by(|object| object.key().as_str().cmp(key))
    }

    /// The first object at or after `key`.
    pub(crate) fn position(&self, key: &str) -> usize {
        self.find(key).unwrap_or_else(|at| at)
    }
}

/// A copy is about to change: its indexes are not copied.
impl Clone for Chunk {
    fn clone(&self) -> Self {
        Self::of(self.objects.clone())
    }
}

impl Key {
    /// The first text that no key of the namespace of `start` reaches.
    pub(crate) fn end_of(namespace: &str) -> String {
        format!("{namespace}\u{1}")
    }
}
