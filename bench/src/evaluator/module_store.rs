//! Modules for evaluators, with artefacts or without.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use assent_core::Digest;
use assent_grpc::modules::{Artefact, ModuleBytes, ModuleSource, ModuleStat};
use bytes::Bytes;

use super::guests::Guest;

/// What there is to fetch.
pub(crate) struct ModuleStore {
    engine: String,
    items: RwLock<HashMap<Digest, Item>>,
    /// Whether artefacts are offered.
    compiled: AtomicBool,
}

#[derive(Clone)]
struct Item {
    wasm: Bytes,
    artefact: Bytes,
    artefact_digest: Digest,
}

// === impl ModuleStore ===

impl ModuleStore {
    /// Empty; artefacts are for `engine`.
    pub(crate) fn new(engine: &str) -> Self {
        Self {
            engine: engine.to_owned(),
            items: RwLock::default(),
            compiled: AtomicBool::new(true),
        }
    }

    /// Adds a module.
    pub(crate) fn put(&self, guest: &Guest) {
        let item = Item {
            wasm: guest.wasm.clone(),
            artefact: guest.artefact.clone(),
            artefact_digest: Digest::of(&guest.artefact),
        };
        let mut items = self.items.write().unwrap_or_else(PoisonError::into_inner);
        items.insert(Digest::of(&guest.wasm), item);
    }

    /// From now on artefacts are offered, or portable modules only.
    pub(crate) fn offer_artefacts(&self, offer: bool) {
        self.compiled.store(offer, Relaxed);
    }

    fn get(&self, digest: &Digest) -> Option<Item> {
        let items = self.items.read().unwrap_or_else(PoisonError::into_inner);
        items.get(digest).cloned()
    }

    fn has_artefacts(&self, engine: &str) -> bool {
        self.compiled.load(Relaxed) && engine == self.engine
    }
}

#[tonic::async_trait]
impl ModuleSource for ModuleStore {
    async fn stat(&self, digests: &[Digest], engine: &str) -> Vec<ModuleStat> {
        let stat = |digest: &Digest| {
            let Some(item) = self.get(digest) else {
                return ModuleStat::default();
            };
            ModuleStat {
                size: Some(item.wasm.len() as u64),
                artefact: self.has_artefacts(engine).then_some(Artefact {
                    digest: item.artefact_digest,
                    size: item.artefact.len() as u64,
                }),
            }
        };
        digests.iter().map(stat).collect()
    }

    async fn open(&self, digest: Digest, engine: &str) -> Option<ModuleBytes> {
        let item = self.get(&digest)?;
        if engine.is_empty() {
            return Some(ModuleBytes {
                bytes: item.wasm,
                digest,
            });
        }
        self.has_artefacts(engine).then_some(ModuleBytes {
            bytes: item.artefact,
            digest: item.artefact_digest,
        })
    }
}
