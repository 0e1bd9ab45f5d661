//! Files of the store. Blocking.

mod collect;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use assent_core::digest::Digest;
use prometheus_client::metrics::counter::Counter;

use super::{ArtefactStat, Error, Key, MAX_ARTEFACT_BYTES, MAX_MODULE_BYTES};

/// The directory of modules.
const MODULES: &str = "modules";

/// An artefact's file begins with the digest of what follows.
const HEADER: usize = 32;

pub(super) struct Disk {
    modules: PathBuf,
    artefacts: PathBuf,
    temporary: PathBuf,
    names: AtomicU64,
    /// Held where a file gets or loses its name, so that a removal never meets a
    /// write of the same name half-way.
    naming: Mutex<()>,
    damaged: Counter,
}

// === impl Disk ===

impl Disk {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let disk = Self {
            modules: dir.join(MODULES),
            artefacts: dir.join("artefacts"),
            temporary: dir.join("tmp"),
            names: AtomicU64::new(0),
            naming: Mutex::new(()),
            damaged: Counter::default(),
        };
        for dir in [&disk.modules, &disk.artefacts, &disk.temporary] {
            fs::create_dir_all(dir).map_err(fail("create directory", dir))?;
        }
        for entry in disk.entries(&disk.temporary)? {
            fs::remove_file(&entry).map_err(fail("remove temporary file", &entry))?;
        }
        Ok(disk)
    }

    pub(super) fn put_module(&self, digest: Digest, bytes: &[u8]) -> Result<(), Error> {
        // What is there and sound needs no room on a full disk; what is damaged is replaced.
        if self.touch(&self.path(Key::Module(digest))) && self.read(Key::Module(digest))?.is_some()
        {
            return Ok(());
        }
        self.write(Key::Module(digest), &[bytes])
    }

    pub(super) fn put_artefact(
        &self,
        engine: Digest,
        module: Digest,
        bytes: &[u8],
    ) -> Result<ArtefactStat, Error> {
        let digest = Digest::of(bytes);
        self.write(Key::Artefact(engine, module), &[digest.as_bytes(), bytes])?;
        Ok(ArtefactStat {
            digest,
            size: bytes.len() as u64,
        })
    }

    pub(super) fn stat_module(&self, digest: Digest) -> Result<Option<u64>, Error> {
        let path = self.path(Key::Module(digest));
        match fs::metadata(&path) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(source) => absent(source, "inspect module", &path),
        }
    }

    pub(super) fn stat_artefact(
        &self,
        engine: Digest,
        module: Digest,
    ) -> Result<Option<ArtefactStat>, Error> {
        let path = self.path(Key::Artefact(engine, module));
        // Evaluators ask before they fetch: it is in use.
        self.touch(&path);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(source) => return absent(source, "open artefact", &path),
        };
        let size = file
            .metadata()
            .map_err(fail("inspect artefact", &path))?
            .len();
        let mut header = [0; HEADER];
        match file.read_exact(&mut header) {
            Ok(()) => Ok(Some(ArtefactStat {
                digest: Digest::from_raw(header),
                size: size.saturating_sub(HEADER as u64),
            })),
            // Cut short: of no use, and replaced by the next write.
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(fail("read artefact", &path)(source)),
        }
    }

    pub(super) fn list(&self) -> Result<Vec<Digest>, Error> {
        let mut digests: Vec<Digest> = self
            .entries(&self.modules)?
            .iter()
            .filter_map(|path| named_digest(path))
            .collect();
        digests.sort_unstable();
        Ok(digests)
    }

    /// The verified content, without an artefact's header. What is damaged is removed
    /// and counts as missing.
    pub(super) fn read(&self, key: Key) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path(key);
        let Some(bytes) = read_file(key, &path)? else {
            return Ok(None);
        };
        match verified(key, bytes) {
            Some(content) => Ok(Some(content)),
            None => self.discard(key, &path),
        }
    }

    /// A write may have replaced the damaged file since it was read: look again while
    /// no write can.
    fn discard(&self, key: Key, path: &Path) -> Result<Option<Vec<u8>>, Error> {
        let _naming = self.naming();
        let Some(bytes) = read_file(key, path)? else {
            return Ok(None);
        };
        if let Some(content) = verified(key, bytes) {
            return Ok(Some(content));
        }
        fs::remove_file(path).map_err(fail("remove damaged file", path))?;
        self.damaged.inc();
        tracing::warn!(path = %path.display(), "removed a damaged file; it must be fetched again");
        Ok(None)
    }

    /// Writes beside the store, makes it durable, then gives it its name.
    fn write(&self, key: Key, parts: &[&[u8]]) -> Result<(), Error> {
        let target = self.path(key);
        let dir = target
            .parent()
            .expect("a file of the store must have a directory");
        fs::create_dir_all(dir).map_err(fail("create directory", dir))?;
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let temporary = self
            .temporary
            .join(format!("{}-{number}", std::process::id()));
        let written = write_durably(&temporary, parts).and_then(|()| {
            let _naming = self.naming();
            fs::rename(&temporary, &target).map_err(fail("name", &target))
        });
        if written.is_err() {
            // It may never have been made; what counts is the first failure.
            let _ = fs::remove_file(&temporary);
        }
        written?;
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(fail("sync directory", dir))
    }

    /// Makes a file young again for garbage collection. False if it does not exist.
    fn touch(&self, path: &Path) -> bool {
        let _naming = self.naming();
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .is_ok()
    }

    fn entries(&self, dir: &Path) -> Result<Vec<PathBuf>, Error> {
        fs::read_dir(dir)
            .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect())
            .map_err(fail("list", dir))
    }

    fn path(&self, key: Key) -> PathBuf {
        match key {
            Key::Module(digest) => self.modules.join(digest.hex()),
            Key::Artefact(engine, module) => self.artefacts.join(engine.hex()).join(module.hex()),
        }
    }

    /// Files that were found damaged.
    pub(super) fn damaged(&self) -> &Counter {
        &self.damaged
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The verified module, without a store: what is damaged counts as missing and stays.
pub(super) fn peek_module(dir: &Path, digest: Digest) -> Result<Option<Vec<u8>>, Error> {
    let path = dir.join(MODULES).join(digest.hex());
    let bytes = read_file(Key::Module(digest), &path)?;
    Ok(bytes.and_then(|bytes| verified(Key::Module(digest), bytes)))
}

fn write_durably(path: &Path, parts: &[&[u8]]) -> Result<(), Error> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(fail("create", path))?;
    for part in parts {
        file.write_all(part).map_err(fail("write", path))?;
    }
    file.sync_all().map_err(fail("sync", path))
}

/// Reads at most one byte more than a sound file has: a grown one costs no memory.
fn read_file(key: Key, path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let limit = match key {
        Key::Module(_) => MAX_MODULE_BYTES,
        Key::Artefact(..) => MAX_ARTEFACT_BYTES + HEADER,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(source) => return absent(source, "open", path),
    };
    let expected = file.metadata().map_err(fail("inspect", path))?.len();
    let expected = usize::try_from(expected).unwrap_or(usize::MAX).min(limit);
    let mut bytes = Vec::with_capacity(expected + 1);
    file.take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(fail("read", path))?;
    Ok(Some(bytes))
}

fn verified(key: Key, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    match key {
        Key::Module(digest) => (Digest::of(&bytes) == digest).then_some(bytes),
        Key::Artefact(..) => {
            let (header, content) = bytes.split_first_chunk::<HEADER>()?;
            if Digest::of(content).as_bytes() != header {
                return None;
            }
            bytes.drain(..HEADER);
            Some(bytes)
        }
    }
}

fn named_digest(path: &Path) -> Option<Digest> {
    let name = path.file_name()?.to_str()?;
    format!("sha256:{name}").parse().ok()
}

fn fail<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

fn absent<T>(source: io::Error, action: &'static str, path: &Path) -> Result<Option<T>, Error> {
    match source.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(fail(action, path)(source)),
    }
}
