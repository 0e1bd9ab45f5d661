//! Modules of the server under test: as large as they are asked to be, with nothing in them.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use assent_core::Digest;
use assent_grpc::modules::{ModuleBytes, ModuleSource, ModuleStat};
use bytes::Bytes;

/// What there is to fetch.
#[derive(Debug, Default)]
pub(super) struct Blobs(RwLock<HashMap<Digest, Bytes>>);

// === impl Blobs ===

impl Blobs {
    /// Makes a module that nobody has seen, of `size` bytes.
    pub(super) fn make(&self, seed: i64, size: usize) -> Digest {
        let seed = seed.to_be_bytes();
        let bytes: Vec<u8> = seed.into_iter().cycle().take(size).collect();
        let digest = Digest::of(&bytes);
        let mut blobs = self.0.write().unwrap_or_else(PoisonError::into_inner);
        blobs.insert(digest, bytes.into());
        digest
    }

    fn get(&self, digest: Digest) -> Option<Bytes> {
        let blobs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        blobs.get(&digest).cloned()
    }
}

#[tonic::async_trait]
impl ModuleSource for Blobs {
    async fn stat(&self, digests: &[Digest], _: &str) -> Vec<ModuleStat> {
        let stat = |digest: &Digest| ModuleStat {
            size: self.get(*digest).map(|bytes| bytes.len() as u64),
            artefact: None,
        };
        digests.iter().map(stat).collect()
    }

    async fn open(&self, digest: Digest, engine: &str) -> Option<ModuleBytes> {
        let bytes = self.get(digest).filter(|_| engine.is_empty())?;
        Some(ModuleBytes { bytes, digest })
    }
}
