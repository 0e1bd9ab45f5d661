//! Replies that are still fresh, of registries and of access reviews. Bounded in time, number and bytes.
//!
//! Hand-written rather than moka: its cache has one bound, on the number or on the weight of
//! entries, enforces it some time after it was exceeded, and may decline a new entry in favour
//! of older ones. Here both bounds are exact, the oldest entry goes first, and tests pass the
//! time as an argument.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use assent_core::Digest;
use bytes::Bytes;

/// A tag that moved, or a signature that was removed, is noticed after this time.
const FRESH: Duration = Duration::from_secs(60);

/// Images that one cluster starts within a minute, several times over.
const MAX_ENTRIES: usize = 4096;

/// Manifests and configurations have some KiB each.
const MAX_BYTES: usize = 16 << 20;

/// Bounds of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How long a reply is used.
    pub(crate) fresh: Duration,
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// Replies by the digest of the request.
pub(crate) struct Cache {
    bounds: Bounds,
    replies: HashMap<Digest, (Bytes, Instant)>,
    /// Oldest first; each is fresh for the same time.
    order: VecDeque<(Digest, Instant)>,
    bytes: usize,
}

// === impl Cache ===

/// For replies of registries.
impl Default for Cache {
    fn default() -> Self {
        Self::new(Bounds {
            fresh: FRESH,
            entries: MAX_ENTRIES,
            bytes: MAX_BYTES,
        })
    }
}

impl Cache {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            replies: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(crate) fn get(&self, key: &Digest, now: Instant) -> Option<&Bytes> {
        let (reply, since) = self.replies.get(key)?;
        self.is_fresh(*since, now).then_some(reply)
    }

    pub(crate) fn put(&mut self, key: Digest, reply: Bytes, now: Instant) {
        // One reply must not evict all others.
        if reply.len() > self.bounds.bytes / 4 || self.get(&key, now).is_some() {
            return;
        }
        self.remove(&key);
        self.bytes += reply.len();
        self.replies.insert(key, (reply, now));
        self.order.push_back((key, now));
        while let Some((oldest, since)) = self.order.front().copied() {
            let full = self.replies.len() > self.bounds.entries || self.bytes > self.bounds.bytes;
            if self.is_fresh(since, now) && !full {
                break;
            }
            self.order.pop_front();
            // A stale entry may have just been replaced.
            if self.replies.get(&oldest).is_some_and(|(_, s)| *s == since) {
                self.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, key: &Digest) {
        if let Some((reply, _)) = self.replies.remove(key) {
            self.bytes -= reply.len();
        }
    }

    fn is_fresh(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) < self.bounds.fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Digest {
        Digest::of(&n.to_be_bytes())
    }

    #[test]
    fn replies_expire() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put(key(1), Bytes::from_static(b"a"), start);
        let almost = start + FRESH - Duration::from_millis(1);
        assert_eq!(cache.get(&key(1), almost), Some(&Bytes::from_static(b"a")));
        assert_eq!(cache.get(&key(1), start + FRESH), None);
        assert_eq!(cache.get(&key(2), start), None);
        // The first reply is kept while it is fresh, and replaced after that.
        for (time, expect) in [(almost, "a"), (start + FRESH, "b")] {
            cache.put(key(1), Bytes::from_static(b"b"), time);
            assert_eq!(cache.get(&key(1), time), Some(&Bytes::from(expect)));
        }
        assert_eq!((cache.bytes, cache.order.len()), (1, 1));
    }

    #[test]
    fn number_of_entries_is_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        for n in 0..MAX_ENTRIES + 10 {
            cache.put(key(n), Bytes::new(), now);
        }
        assert_eq!(cache.replies.len(), MAX_ENTRIES);
        assert_eq!(cache.order.len(), MAX_ENTRIES);
        assert_eq!(cache.get(&key(9), now), None);
        assert!(cache.get(&key(10), now).is_some());
    }

    #[test]
    fn bytes_are_bounded() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let large = Bytes::from(vec![0; MAX_BYTES / 4]);
        for n in 0..8 {
            cache.put(key(n), large.clone(), now);
        }
        assert_eq!(cache.bytes, MAX_BYTES);
        assert_eq!(cache.replies.len(), 4);
        cache.put(key(9), vec![0; MAX_BYTES / 4 + 1].into(), now);
        assert_eq!(cache.get(&key(9), now), None);
    }
}
