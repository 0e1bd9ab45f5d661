//! Verified bytes that readers share.
//!
//! Hand-written rather than moka: what a reader still holds is found here even when it was
//! evicted or is larger than the whole budget, so that a fleet that fetches one module never
//! has it in memory twice. moka would drop it and read it again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use bytes::Bytes;

use super::Key;

/// Finds blobs that a reader still holds, and keeps the most recently used within a budget.
pub(super) struct Cache {
    budget: usize,
    kept: usize,
    /// Most recently used last.
    recent: VecDeque<(Key, Arc<Vec<u8>>)>,
    live: HashMap<Key, Weak<Vec<u8>>>,
}

/// Makes a `Bytes` keep the allocation that the cache refers to.
struct Shared(Arc<Vec<u8>>);

// === impl Cache ===

impl Cache {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            kept: 0,
            recent: VecDeque::new(),
            live: HashMap::new(),
        }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Bytes> {
        let blob = self.live.get(key)?.upgrade()?;
        self.keep(*key, blob.clone());
        Some(Bytes::from_owner(Shared(blob)))
    }

    pub(super) fn insert(&mut self, key: Key, bytes: Vec<u8>) -> Bytes {
        let blob = Arc::new(bytes);
        self.live.retain(|_, blob| blob.strong_count() > 0);
        self.live.insert(key, Arc::downgrade(&blob));
        self.keep(key, blob.clone());
        Bytes::from_owner(Shared(blob))
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.live.remove(key);
        self.drop_recent(key);
    }

    fn keep(&mut self, key: Key, blob: Arc<Vec<u8>>) {
        self.drop_recent(&key);
        if blob.len() > self.budget {
            return;
        }
        self.kept += blob.len();
        self.recent.push_back((key, blob));
        while self.kept > self.budget {
            let (_, oldest) = self
                .recent
                .pop_front()
                .expect("kept bytes must belong to an entry");
            self.kept -= oldest.len();
        }
    }

    fn drop_recent(&mut self, key: &Key) {
        if let Some(at) = self.recent.iter().position(|(held, _)| held == key)
            && let Some((_, blob)) = self.recent.remove(at)
        {
            self.kept -= blob.len();
        }
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use assent_core::digest::Digest;

    use super::*;

    fn key(name: &str) -> Key {
        Key::Module(Digest::of(name.as_bytes()))
    }

    #[test]
    fn readers_share_one_allocation() {
        let mut cache = Cache::new(10);
        let first = cache.insert(key("a"), vec![1; 10]);
        let second = cache.get(&key("a")).unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr());
    }

    #[test]
    fn least_recently_used_is_evicted_first() {
        let mut cache = Cache::new(10);
        cache.insert(key("a"), vec![1; 5]);
        cache.insert(key("b"), vec![2; 5]);
        assert!(cache.get(&key("a")).is_some());
        cache.insert(key("c"), vec![3; 5]);
        assert!(cache.get(&key("b")).is_none());
        assert!(cache.get(&key("a")).is_some());
        assert!(cache.get(&key("c")).is_some());
        assert_eq!(cache.kept, 10);
    }

    #[test]
    fn blob_larger_than_the_budget_is_shared_while_it_is_held() {
        let mut cache = Cache::new(4);
        let held = cache.insert(key("a"), vec![1; 5]);
        assert_eq!(cache.get(&key("a")).unwrap().as_ptr(), held.as_ptr());
        drop(held);
        assert!(cache.get(&key("a")).is_none());
        assert_eq!(cache.kept, 0);
    }

    #[test]
    fn forgotten_blob_is_not_found() {
        let mut cache = Cache::new(10);
        let _held = cache.insert(key("a"), vec![1; 5]);
        cache.forget(&key("a"));
        assert!(cache.get(&key("a")).is_none());
        assert_eq!(cache.kept, 0);
    }
}
