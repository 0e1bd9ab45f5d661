//! Locks by digest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use assent_core::Digest;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// One lock for each digest that somebody works on: whoever comes second finds the work
/// done.
#[derive(Clone, Debug, Default)]
pub(super) struct DigestLocks(Arc<Mutex<HashMap<Digest, Weak<AsyncMutex<()>>>>>);

// === impl DigestLocks ===

impl DigestLocks {
    pub(super) async fn lock(&self, digest: Digest) -> OwnedMutexGuard<()> {
        self.get(digest).lock_owned().await
    }

    fn get(&self, digest: Digest) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&digest).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(digest, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_digest_is_locked_and_others_are_not() {
        let locks = DigestLocks::default();
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let held = locks.lock(a).now_or_never().unwrap();
        assert!(locks.lock(a).now_or_never().is_none());
        let other = locks.lock(b).now_or_never().unwrap();
        drop((held, other));
        let _again = locks.lock(a).now_or_never().unwrap();
        assert_eq!(locks.0.lock().unwrap().len(), 1);
    }
}
