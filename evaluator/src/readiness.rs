//! Whether this evaluator is ready for requests.

use std::sync::{
    RwLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::tls::Certificates;

/// The conditions of readiness. Once a complete set was in place this condition stays true: a policy that fails
/// later does not make the evaluator unready.
#[derive(Default)]
pub(crate) struct Readiness {
    set: AtomicBool,
    /// Whether the control plane has confirmed or replaced the set: from then on only its sets count.
    confirmed: AtomicBool,
    draining: AtomicBool,
    /// Whether the review port did not answer its last checks.
    silent: AtomicBool,
    certificates: RwLock<Option<Certificates>>,
}

// === impl Readiness ===

impl Readiness {
    /// Makes a valid certificate a condition.
    pub(crate) fn require(&self, certificates: Certificates) {
        let mut slot = self
            .certificates
            .write()
            .expect("the lock must not be poisoned");
        *slot = Some(certificates);
    }

    /// Removes the condition of a valid certificate.
    pub(crate) fn waive(&self) {
        *self
            .certificates
            .write()
            .expect("the lock must not be poisoned") = None;
    }

    /// The control plane has confirmed the set in place. `complete`: every active route is answered.
    pub(crate) fn confirmed(&self, complete: bool) {
        self.confirmed.store(true, Relaxed);
        if complete {
            self.set_complete();
        }
    }

    /// No control plane was reachable in time: a complete set from disk is sufficient.
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

    /// Whether the review port answers.
    pub(crate) fn set_answering(&self, answering: bool) {
        if self.silent.swap(!answering, Relaxed) == answering {
            tracing::warn!(answering, "the review port has changed");
        }
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// The error says why the evaluator is not ready.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.draining.load(Relaxed) {
            return Err("shutting down");
        }
        if !self.set.load(Relaxed) {
            return Err("no complete set of policies has been loaded yet");
        }
        if self.silent.load(Relaxed) {
            return Err("the review port does not answer");
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
