//! A short name for everything that decides whether compiled code fits an engine.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

/// wasmtime's own compatibility hash (version, target, CPU features, settings) and what is added to modules,
/// in a readable form.
pub(super) fn of(engine: &wasmtime::Engine) -> String {
    let mut hasher = Sha256Hasher(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    crate::headroom::PAGES.hash(&mut hasher);
    let hash = hex::encode(&hasher.0.finalize()[..8]);
    format!("wasmtime-{}-{hash}", std::env::consts::ARCH)
}

/// `std`'s hasher is 64 bits and may change with the compiler; fingerprints are compared across builds.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_be_bytes(*digest.first_chunk().expect("a SHA-256 must have 32 bytes"))
    }
}
