//! The content-addressed store of policy modules and their compiled artefacts.
//!
//! Every path is made of digests alone, so nothing a user writes can name a file.
//! Bytes are hashed again whenever they come from disk; what fails is removed and
//! reported as missing, so that the caller fetches it again.

mod cache;
mod disk;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use assent_core::digest::Digest;
use bytes::Bytes;
use prometheus_client::registry::Registry;

use self::{cache::Cache, disk::Disk};

/// The largest module that is stored: the largest that is pulled.
pub const MAX_MODULE_BYTES: usize = assent_oci::MAX_MODULE_BYTES;

/// The largest compiled artefact: native code is about five times the portable size.
pub const MAX_ARTEFACT_BYTES: usize = 5 * MAX_MODULE_BYTES;

/// Verified bytes kept in memory by default: two of the largest modules, or a few
/// dozen ordinary ones, so that a fleet that fetches one module reads it once.
const CACHE_BYTES: usize = 2 * MAX_MODULE_BYTES;

/// A handle to the store; clones share the cache.
#[derive(Clone)]
pub struct Store {
    disk: Arc<Disk>,
    cache: Arc<Mutex<Cache>>,
    /// One cold read at a time: the second of a thousand readers finds the cache filled.
    loading: Arc<tokio::sync::Mutex<()>>,
}

/// A compiled artefact as it is offered to evaluators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactStat {
    /// The digest of the artefact's own bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// What garbage collection must keep.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// Modules in use. Neither they nor their artefacts are ever removed.
    pub modules: HashSet<Digest>,
    /// The fingerprint of the engine that makes artefacts now, if it is known. Artefacts for
    /// other engines go when no evaluator has asked for them for a day.
    pub engine: Option<String>,
    /// Files younger than this stay: a module is stored before anything names it.
    pub younger_than: Duration,
}

/// What garbage collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Modules and artefacts removed.
    pub files: usize,
    /// Bytes they took on disk.
    pub bytes: u64,
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the file system.
    #[error("failed to {action} {}: {source}; {}", path.display(), advice(source))]
    Io {
        /// The action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The blob is larger than the limit.
    #[error("failed to store {what}: its {size} bytes exceed the limit of {limit}")]
    TooLarge {
        /// "module" or "artefact".
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The bytes do not match their digest.
    #[error("failed to store {expected}: the bytes have the digest {actual}; fetch them again")]
    Mismatch {
        /// The expected digest.
        expected: Digest,
        /// The digest of the bytes.
        actual: Digest,
    },
    /// The offset is beyond the end.
    #[error("failed to read at offset {offset}: there are only {size} bytes")]
    OutOfRange {
        /// The offset.
        offset: u64,
        /// The size of the blob.
        size: u64,
    },
}

/// Names one blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Module(Digest),
    /// The digest of the engine's fingerprint, then that of the module.
    Artefact(Digest, Digest),
}

// === impl Store ===

impl Store {
    /// Opens the store below `dir`, creates its directories and removes the remains of
    /// interrupted writes. Blocking: call it at start. A directory has one owner.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::with_cache(dir, CACHE_BYTES)
    }

    /// Like [`Store::open`], keeping at most `cache_bytes` of verified bytes that no
    /// reader holds at the moment.
    pub fn with_cache(dir: &Path, cache_bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            disk: Arc::new(Disk::open(dir)?),
            cache: Arc::new(Mutex::new(Cache::new(cache_bytes))),
            loading: Arc::default(),
        })
    }

    /// Registers the store's metrics; the prefix is the caller's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "modules_damaged",
            "Stored modules and artefacts that did not match their digest and were not served",
            self.disk.damaged().clone(),
        );
    }

    /// A module in the store below `dir`, verified. Changes nothing there, so that the
    /// directory may have another owner meanwhile. Blocking.
    pub fn peek(dir: &Path, digest: Digest) -> Result<Option<Bytes>, Error> {
        Ok(disk::peek_module(dir, digest)?.map(Bytes::from))
    }

    /// Stores a module and returns its digest once it is safely on disk.
    pub async fn put(&self, bytes: Bytes) -> Result<Digest, Error> {
        within("module", bytes.len(), MAX_MODULE_BYTES)?;
        self.blocking(move |disk| {
            let digest = Digest::of(&bytes);
            disk.put_module(digest, &bytes)?;
            Ok(digest)
        })
        .await
    }

    /// Stores a module that must have the digest `expected`.
    pub async fn put_expected(&self, expected: Digest, bytes: Bytes) -> Result<(), Error> {
        within("module", bytes.len(), MAX_MODULE_BYTES)?;
        self.blocking(move |disk| {
            let actual = Digest::of(&bytes);
            if actual != expected {
                return Err(Error::Mismatch { expected, actual });
            }
            disk.put_module(expected, &bytes)
        })
        .await
    }

    /// A module's bytes, verified and shared with every other reader. `None` if it is missing
    /// or damaged.
    pub async fn get(&self, digest: Digest) -> Result<Option<Bytes>, Error> {
        self.load(Key::Module(digest)).await
    }

    /// At most `len` bytes of a module from `offset`, without a copy. An offset at
    /// the end gives no bytes; one beyond it is [`Error::OutOfRange`].
    pub async fn read_at(
        &self,
        digest: Digest,
        offset: u64,
        len: usize,
    ) -> Result<Option<Bytes>, Error> {
        let Some(bytes) = self.get(digest).await? else {
            return Ok(None);
        };
        chunk(&bytes, offset, len).map(Some)
    }

    /// The size of a module, if it is there. Does not read it.
    pub async fn stat(&self, digest: Digest) -> Result<Option<u64>, Error> {
        self.blocking(move |disk| disk.stat_module(digest)).await
    }

    /// The digests of all modules on disk, sorted.
    pub async fn list(&self) -> Result<Vec<Digest>, Error> {
        self.blocking(|disk| disk.list()).await
    }

    /// Stores what the engine with this fingerprint made of `module`, and records
    /// its digest in the same file, so that neither exists without the other.
    pub async fn put_artefact(
        &self,
        engine: &str,
        module: Digest,
        bytes: Bytes,
    ) -> Result<ArtefactStat, Error> {
        within("artefact", bytes.len(), MAX_ARTEFACT_BYTES)?;
        let engine = engine_id(engine);
        let stat = self
            .blocking(move |disk| disk.put_artefact(engine, module, &bytes))
            .await?;
        // Another compilation of the same module may give other bytes.
        self.cache().forget(&Key::Artefact(engine, module));
        Ok(stat)
    }

    /// The artefact of `module` for this engine, verified against its recorded digest.
    pub async fn get_artefact(&self, engine: &str, module: Digest) -> Result<Option<Bytes>, Error> {
        self.load(Key::Artefact(engine_id(engine), module)).await
    }

    /// The recorded digest and size of an artefact, if there is one.
    pub async fn stat_artefact(
        &self,
        engine: &str,
        module: Digest,
    ) -> Result<Option<ArtefactStat>, Error> {
        let engine = engine_id(engine);
        self.blocking(move |disk| disk.stat_artefact(engine, module))
            .await
    }

    /// Removes blobs that are not kept, and temporary files of interrupted writes. `now` is
    /// what the age of files is measured by.
    pub async fn collect(&self, keep: Keep, now: SystemTime) -> Result<Collected, Error> {
        let (collected, removed) = self.blocking(move |disk| disk.collect(&keep, now)).await?;
        let mut cache = self.cache();
        removed.iter().for_each(|key| cache.forget(key));
        Ok(collected)
    }

    async fn load(&self, key: Key) -> Result<Option<Bytes>, Error> {
        if let Some(bytes) = self.cache().get(&key) {
            return Ok(Some(bytes));
        }
        let _turn = self.loading.lock().await;
        if let Some(bytes) = self.cache().get(&key) {
            return Ok(Some(bytes));
        }
        let found = self.blocking(move |disk| disk.read(key)).await?;
        Ok(found.map(|bytes| self.cache().insert(key, bytes)))
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // The cache holds no invariant that a panic elsewhere could break.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || work(&disk))
            .await
            .expect("work on the store must not panic")
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// At most `len` bytes of `bytes` from `offset`, sharing the memory: what a chunked
/// stream sends after one [`Store::get`].
pub fn chunk(bytes: &Bytes, offset: u64, len: usize) -> Result<Bytes, Error> {
    let size = bytes.len();
    let out_of_range = || Error::OutOfRange {
        offset,
        size: size as u64,
    };
    let start = usize::try_from(offset).map_err(|_| out_of_range())?;
    if start > size {
        return Err(out_of_range());
    }
    Ok(bytes.slice(start..start.saturating_add(len).min(size)))
}

/// A fingerprint becomes a directory name by its hash: whatever it contains, the
/// name stays inside the store.
fn engine_id(fingerprint: &str) -> Digest {
    Digest::of(fingerprint.as_bytes())
}

fn within(what: &'static str, size: usize, limit: usize) -> Result<(), Error> {
    if size > limit {
        return Err(Error::TooLarge { what, size, limit });
    }
    Ok(())
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free space on that volume or enlarge it"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "allow this process to read and write that directory"
        }
        _ => "check the volume of the state directory",
    }
}
