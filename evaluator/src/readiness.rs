//! Whether requests should be sent here.

use std::sync::{
    RwLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::tls::Certificates;

/// Why an evaluator is ready or not. Once a complete set was in place it stays so: a policy
/// that fails later is a matter of that policy.
#[derive(Default)]
pub(crate) struct Readiness {
    set: AtomicBool,
    /// The control plane has spoken: what it said decides.
    confirmed: AtomicBool,
    draining: AtomicBool,
    certificates: RwLock<Option<Certificates>>,
}

// === impl Readiness ===

impl Readiness {
    /// From now on a certificate must be valid too.
    pub(crate) fn require(&self, certificates: Certificates) {
        let mut slot = self
            .certificates
            .write()
            .expect("the lock must not be poisoned");
        *slot = Some(certificates);
    }

    /// No certificate is needed after all.
    pub(crate) fn waive(&self) {
        *self
            .certificates
            .write()
            .expect("the lock must not be poisoned") = None;
    }

    /// The control plane stands behind the set in place; `complete`: with all that is active.
    pub(crate) fn confirmed(&self, complete: bool) {
        self.confirmed.store(true, Relaxed);
        if complete {
            self.set_complete();
        }
    }

    /// No control plane in time: a complete set from disk is good enough.
    pub(crate) fn unconfirmed(&self) {
        if !self.confirmed.load(Relaxed) {
            self.set_complete();
        }
    }

    fn set_complete(&self) {
        if !self.set.swap(true, Relaxed) {
            tracing::info!("ready: a complete set is in place");
        }
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Why not, in words.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.draining.load(Relaxed) {
            return Err("shutting down");
        }
        if !self.set.load(Relaxed) {
            return Err("no complete set of policies has been loaded yet");
        }
        let certificates = self
            .certificates
            .read()
            .expect("the lock must not be poisoned");
        match &*certificates {
            Some(certificates) if !certificates.is_valid() => {
                Err("there is no valid certificate yet")
            }
            _ => Ok(()),
        }
    }
}
