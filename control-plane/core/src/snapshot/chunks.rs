//! Sorted entries in chunks, which a snapshot shares with its predecessor.
//!
//! An edit copies the chunks that it changes and a pointer to each of the others. A chunk also
//! keeps its entries as the version covers them: hashing then reads a few contiguous buffers
//! instead of visiting every entry. That costs about 180 bytes per policy and its route.

use std::{cmp::Ordering, slice, sync::Arc};

/// The most entries of a chunk. Smaller ones make an edit copy more pointers to chunks, larger
/// ones more entries of one chunk; with 10,000 policies both are about a hundred.
const MAX_ENTRIES: usize = 128;

/// What a snapshot consists of.
pub(super) trait Entry {
    /// The name by which entries are sorted.
    fn name(&self) -> &str;

    /// Appends what the version covers of the entry.
    fn encode(&self, out: &mut Vec<u8>);
}

/// Entries in the byte order of their names.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    /// None of them is empty.
    chunks: Vec<Arc<Chunk<T>>>,
    len: usize,
}

/// Neighbouring entries.
#[derive(Debug)]
pub(super) struct Chunk<T> {
    entries: Vec<Arc<T>>,
    /// The encoded entries; empty while they are being changed.
    bytes: Vec<u8>,
}

/// Entries in their order.
pub(super) struct Iter<'a, T> {
    chunks: slice::Iter<'a, Arc<Chunk<T>>>,
    entries: slice::Iter<'a, Arc<T>>,
    left: usize,
}

/// A position in a sequence of chunks.
struct Cursor<'a, T> {
    chunks: &'a [Arc<Chunk<T>>],
    /// The next entry of the first chunk.
    at: usize,
}

// === impl Chunks ===

impl<T: Entry> Chunks<T> {
    /// The entries must be sorted, without repetition.
    pub(super) fn from_sorted(entries: impl IntoIterator<Item = Arc<T>>) -> Self {
        let mut new = Self {
            chunks: Vec::new(),
            len: 0,
        };
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            // Half full, so that the first insertions split nothing.
            let some = entries.by_ref().take(MAX_ENTRIES / 2).collect();
            new.chunks.push(Arc::new(Chunk::new(some)));
        }
        new.encode();
        new
    }

    /// The entries with some inserted or replaced, and others removed.
    pub(super) fn with<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<Arc<T>>)>,
    ) -> Self {
        let mut new = self.clone();
        for (name, entry) in changes {
            match entry {
                Some(entry) => new.insert(entry),
                None => new.remove(name),
            }
        }
        new.encode();
        new
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<T>> {
        let chunk = self.chunks.get(self.chunk_of(name))?;
        let at = chunk.find(name).ok()?;
        chunk.entries.get(at)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> Iter<'_, T> {
        Iter {
            chunks: self.chunks.iter(),
            entries: [].iter(),
            left: self.len,
        }
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = &Arc<Chunk<T>>> {
        self.chunks.iter()
    }

    /// Calls `found` with every entry that only one of the two has, and with both if they have
    /// different entries of one name. Chunks that they share are not looked into.
    pub(super) fn compare<'a>(
        old: &'a Self,
        new: &'a Self,
        mut found: impl FnMut(Option<&'a Arc<T>>, Option<&'a Arc<T>>),
    ) {
        let (mut a, mut b) = (Cursor::new(old), Cursor::new(new));
        loop {
            if a.skip_shared(&mut b) {
                continue;
            }
            let (x, y) = (a.peek(), b.peek());
            let order = match (x, y) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(x), Some(y)) => x.name().cmp(y.name()),
            };
            match order {
                Ordering::Less => found(x, None),
                Ordering::Greater => found(None, y),
                Ordering::Equal => {
                    let same = x.zip(y).is_some_and(|(x, y)| Arc::ptr_eq(x, y));
                    if !same {
                        found(x, y);
                    }
                }
            }
            if order != Ordering::Greater {
                a.step();
            }
            if order != Ordering::Less {
                b.step();
            }
        }
    }

    fn insert(&mut self, entry: Arc<T>) {
        let at = self.chunk_of(entry.name());
        let Some(chunk) = self.chunks.get_mut(at) else {
            return self.chunks.push(Arc::new(Chunk::new(vec![entry])));
        };
        let found = chunk.find(entry.name());
        let chunk = Arc::make_mut(chunk);
        chunk.bytes.clear();
        match found {
            Ok(same) => chunk.entries[same] = entry,
            Err(before) => chunk.entries.insert(before, entry),
        }
        if chunk.entries.len() > MAX_ENTRIES {
            let rest = chunk.entries.split_off(MAX_ENTRIES / 2);
            self.chunks.insert(at + 1, Arc::new(Chunk::new(rest)));
        }
    }

    fn remove(&mut self, name: &str) {
        let at = self.chunk_of(name);
        let Some(chunk) = self.chunks.get_mut(at) else {
            return;
        };
        let Ok(found) = chunk.find(name) else { return };
        let chunk = Arc::make_mut(chunk);
        chunk.bytes.clear();
        chunk.entries.remove(found);
        let left = chunk.entries.len();
        if left == 0 {
            self.chunks.remove(at);
            return;
        }
        // Otherwise chunks would become fewer only when they are empty.
        let next = self.chunks.get(at + 1).map(|c| c.entries.len());
        if next.is_some_and(|next| left + next <= MAX_ENTRIES / 2) {
            let next = self.chunks.remove(at + 1);
            let chunk = Arc::make_mut(&mut self.chunks[at]);
            chunk.entries.extend(next.entries.iter().cloned());
        }
    }

    /// Where an entry of this name is, or belongs.
    fn chunk_of(&self, name: &str) -> usize {
        let after = self.chunks.partition_point(|chunk| chunk.first() <= name);
        after.saturating_sub(1)
    }

    /// Encodes the chunks that were changed, and counts all entries.
    fn encode(&mut self) {
        self.len = 0;
        for chunk in &mut self.chunks {
            self.len += chunk.entries.len();
            if chunk.bytes.is_empty() {
                Arc::make_mut(chunk).encode();
            }
        }
    }
}

impl<T> Clone for Chunks<T> {
    fn clone(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            len: self.len,
        }
    }
}

// === impl Chunk ===

impl<T> Chunk<T> {
    fn new(entries: Vec<Arc<T>>) -> Self {
        Self {
            entries,
            bytes: Vec::new(),
        }
    }

    /// What the version covers of the entries.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: Entry> Chunk<T> {
    fn first(&self) -> &str {
        self.entries.first().map_or("", |entry| entry.name())
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.entries
            .binary_search_by(|entry| entry.name().cmp(name))
    }

    fn encode(&mut self) {
        for entry in &self.entries {
            entry.encode(&mut self.bytes);
        }
    }
}

impl<T> Clone for Chunk<T> {
    /// A chunk is copied in order to be changed, so that its encoding is of no use.
    fn clone(&self) -> Self {
        Self::new(self.entries.clone())
    }
}

// === impl Iter ===

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a Arc<T>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.next() {
                self.left -= 1;
                return Some(entry);
            }
            self.entries = self.chunks.next()?.entries.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

// === impl Cursor ===

impl<'a, T> Cursor<'a, T> {
    fn new(chunks: &'a Chunks<T>) -> Self {
        Self {
            chunks: &chunks.chunks,
            at: 0,
        }
    }

    fn peek(&self) -> Option<&'a Arc<T>> {
        self.chunks.first()?.entries.get(self.at)
    }

    fn step(&mut self) {
        self.at += 1;
        let is_last = |chunk: &Arc<Chunk<T>>| chunk.entries.len() == self.at;
        if self.chunks.first().is_some_and(is_last) {
            self.next_chunk();
        }
    }

    fn next_chunk(&mut self) {
        self.chunks = self.chunks.get(1..).unwrap_or_default();
        self.at = 0;
    }

    /// Skips the chunk that both are about to enter, if it is the same one.
    fn skip_shared(&mut self, other: &mut Self) -> bool {
        let shared = match (self.chunks.first(), other.chunks.first()) {
            (Some(a), Some(b)) => self.at == 0 && other.at == 0 && Arc::ptr_eq(a, b),
            _ => false,
        };
        if shared {
            self.next_chunk();
            other.next_chunk();
        }
        shared
    }
}
