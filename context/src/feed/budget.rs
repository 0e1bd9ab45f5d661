//! The size of one message.

use crate::{Key, Object};

/// The most bytes of one message (C4): below the 4 MiB that gRPC clients take.
pub const MESSAGE_BYTES: usize = 3 << 20;

/// An object from this size on is sent alone (C4).
pub const ALONE_BYTES: usize = 1 << 20;

/// What a change takes besides its key and object: the collection's id, tags and lengths.
const CHANGE_OVERHEAD: usize = 96;

/// What is left of a message.
#[derive(Debug, Default)]
pub struct Budget {
    used: usize,
    /// It holds one large object, and nothing else fits.
    alone: bool,
}

// === impl Budget ===

impl Budget {
    /// Whether a change fits, which is then counted. The first one always does.
    pub(super) fn take(&mut self, key: &Key, object: Option<&Object>) -> bool {
        let json = object.map_or(0, |object| object.json().len());
        let size = json + key.namespace().len() + key.name().len() + CHANGE_OVERHEAD;
        let is_first = self.used == 0;
        if !is_first && (self.alone || json > ALONE_BYTES || self.used + size > MESSAGE_BYTES) {
            return false;
        }
        self.used += size;
        self.alone = json > ALONE_BYTES;
        true
    }

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}
