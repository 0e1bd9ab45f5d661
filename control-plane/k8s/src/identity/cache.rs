//! What is known for a while. Bounded, whatever callers send.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// By the digest of a token.
pub(super) type Key = [u8; 32];

pub(super) struct Cache<T> {
    max: usize,
    entries: HashMap<Key, (T, Instant)>,
}

// === impl Cache ===

impl<T: Clone> Cache<T> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            entries: HashMap::new(),
        }
    }

    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<T> {
        let (value, until) = self.entries.get(key)?;
        (now < *until).then(|| value.clone())
    }

    /// Keeps a value; where there is no room, in place of the one that ends first.
    pub(super) fn put(&mut self, key: Key, value: T, now: Instant, keep: Duration) {
        if self.entries.len() >= self.max && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, until)| now < *until);
        }
        if self.entries.len() >= self.max && !self.entries.contains_key(&key) {
            let first = self.entries.iter().min_by_key(|(_, (_, until))| *until);
            let first = first.map(|(key, _)| *key);
            first.map(|first| self.entries.remove(&first));
        }
        self.entries.insert(key, (value, now + keep));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_ended_is_not_known() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.put([1; 32], "a", now, SECOND);
        assert_eq!(cache.get(&[1; 32], now), Some("a"));
        assert_eq!(cache.get(&[2; 32], now), None);
        assert_eq!(cache.get(&[1; 32], now + SECOND), None);
    }

    #[test]
    fn it_never_grows_beyond_its_bound() {
        let (mut cache, now) = (Cache::new(2), Instant::now());
        cache.put([1; 32], 1, now, SECOND);
        cache.put([2; 32], 2, now, SECOND * 3);
        cache.put([3; 32], 3, now, SECOND * 2);
        assert_eq!(cache.get(&[1; 32], now), None, "it ended first");
        assert_eq!(cache.get(&[2; 32], now), Some(2));
        // One that is there is replaced, and no other leaves for it.
        cache.put([2; 32], 4, now, SECOND);
        assert_eq!(
            (cache.get(&[2; 32], now), cache.get(&[3; 32], now)),
            (Some(4), Some(3))
        );
        for byte in 0..=255 {
            cache.put([byte; 32], 0, now, SECOND);
            assert!(cache.entries.len() <= 2);
        }
    }
}
