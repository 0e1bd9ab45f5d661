//! A bounded cache whose entries expire.
//!
//! Written by hand because callers choose the keys: the bound must hold after every insertion,
//! not only after a background task ran, and each entry has an expiry of its own on a clock that
//! tests control.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::{Duration, Instant},
};

/// At most `max` entries; when it is full, the one that expires first makes room.
pub(super) struct Cache<K, T> {
    max: usize,
    entries: HashMap<K, (T, Instant)>,
    /// The same entries, by when they expire.
    expiries: BTreeSet<(Instant, K)>,
}

// === impl Cache ===

impl<K: Clone + Eq + Hash + Ord, T: Clone> Cache<K, T> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            entries: HashMap::new(),
            expiries: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, key: &K, now: Instant) -> Option<T> {
        let (value, until) = self.entries.get(key)?;
        (now < *until).then(|| value.clone())
    }

    /// Stores a value until `now + keep`.
    pub(super) fn put(&mut self, key: K, value: T, now: Instant, keep: Duration) {
        self.remove(&key);
        while let Some((until, first)) = self.expiries.first().cloned() {
            if until > now && self.entries.len() < self.max {
                break;
            }
            self.remove(&first);
        }
        self.expiries.insert((now + keep, key.clone()));
        self.entries.insert(key, (value, now + keep));
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some((_, until)) = self.entries.remove(key) {
            self.expiries.remove(&(until, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn expired_entry_is_absent() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.put(1, "a", now, SECOND);
        assert_eq!(cache.get(&1, now), Some("a"));
        assert_eq!(cache.get(&2, now), None);
        assert_eq!(cache.get(&1, now + SECOND), None);
    }

    #[test]
    fn cache_never_exceeds_its_bound() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.put(1, 1, now, SECOND);
        cache.put(2, 2, now, SECOND * 3);
        cache.put(3, 3, now, SECOND * 2);
        assert_eq!(cache.get(&1, now), None, "it expires first");
        assert_eq!(cache.get(&2, now), Some(2));
        // Replacing an entry evicts no other.
        cache.put(2, 4, now, SECOND);
        assert_eq!((cache.get(&2, now), cache.get(&3, now)), (Some(4), Some(3)));
        for key in 0..1_000 {
            cache.put(key, 0, now, SECOND);
            assert!(cache.entries.len() <= 2 && cache.expiries.len() <= 2);
        }
    }

    #[test]
    fn insertion_removes_expired_entries() {
        let (mut cache, now) = (Cache::new(100), Instant::now());
        for key in 0..50 {
            cache.put(key, 0, now, SECOND);
        }
        cache.put(50, 0, now + SECOND, SECOND);
        assert_eq!((cache.entries.len(), cache.expiries.len()), (1, 1));
    }
}
