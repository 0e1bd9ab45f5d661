//! The last good set on disk: written atomically, used only if every hash matches.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use assent_core::{Digest, Policy, Route};

use crate::announced::{Announced, Routes};

mod attempts;
pub(crate) mod fuzz;
mod seal;
#[cfg(test)]
mod tests;

pub(crate) use attempts::{Attempt, Crashed};
pub(crate) use seal::Seal;

/// A directory that belongs to one evaluator.
pub(crate) struct Store {
    root: PathBuf,
    seal: Seal,
    /// Held for the life of the process: two evaluators would overwrite each other's files.
    _lock: File,
}

/// The set that was found at start.
#[derive(Debug, PartialEq)]
pub(crate) struct Restored {
    pub(crate) set: Announced,
    /// Whether every revision of that version was loaded.
    pub(crate) whole: bool,
}

/// Why the directory or its content can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to {verb} {path}: {source}")]
    Io {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("failed to lock {0}: another evaluator uses this state directory")]
    Locked(PathBuf),
    #[error("failed to read {path}: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("failed to write {path}: {why}")]
    Seal { path: PathBuf, why: String },
}

/// The file of the leadership term.
const TERM: &str = "leadership";

/// Far larger than any set that a control plane sends.
const LARGEST: u64 = 1 << 30;

// === impl Store ===

impl Store {
    pub(crate) fn open(root: &Path, seal: Seal) -> Result<Self, Error> {
        for dir in ["", "modules", "attempts", "crashed", "context"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).map_err(io_error("create", &dir))?;
        }
        let path = root.join("lock");
        let lock = File::create(&path).map_err(io_error("create", &path))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Locked(path))?;
        Ok(Self {
            root: root.to_owned(),
            seal,
            _lock: lock,
        })
    }

    /// The set that was in place when the last process ended; none if there was none.
    pub(crate) fn load(&self) -> Result<Option<Restored>, Error> {
        let path = self.root.join("set");
        let bytes = match read_bounded(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        decode(&bytes, &self.seal)
            .map(Some)
            .map_err(|why| Error::Damaged { path, why })
    }

    /// The newest leadership term that an earlier process has seen, if it was kept.
    pub(crate) fn term(&self) -> Result<u64, Error> {
        let path = self.root.join(TERM);
        let text = match read_bounded(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let Some(line) = self.seal.check(TERM, &text) else {
            // Whoever can write here could make this evaluator refuse every leader.
            tracing::warn!(path = %path.display(), "ignoring a leadership term that is not authentic");
            return Ok(0);
        };
        line.trim().parse().map_err(|_| Error::Damaged {
            path,
            why: "it is not a number".into(),
        })
    }

    /// Saves the leadership: after a restart this evaluator must not accept sets of an older leader.
    pub(crate) fn keep_term(&self, term: u64) -> Result<(), Error> {
        match self.term() {
            Ok(kept) if kept == term => Ok(()),
            _ => self.write(TERM, self.seal.sign(TERM, &term.to_string()).as_bytes()),
        }
    }

    /// Keeps a set. Its modules must have been kept before.
    pub(crate) fn save(
        &self,
        policies: &BTreeMap<assent_core::RevisionId, Arc<Policy>>,
        routes: &Routes,
        whole: bool,
    ) -> Result<(), Error> {
        let offers = policies.values().map(|policy| {
            (
                policy.revision.clone(),
                crate::announced::Offer::known(policy),
            )
        });
        let version = Announced::new(offers.collect(), routes.clone()).version();
        let confidential = policies.values().any(|p| p.content.is_confidential());
        let withhold = confidential && !self.seal.is_confidential();
        if withhold {
            tracing::warn!(
                "settings that come from Secrets are not written to disk without a key: give --state-key, so that a \
                 restart without a control plane can serve their policies"
            );
        }
        let write = match withhold {
            true => crate::wire::write_withheld_set,
            false => crate::wire::write_set,
        };
        let policies: Vec<&Arc<Policy>> = policies.values().collect();
        let routes: Vec<&Arc<Route>> = routes.values().collect();
        let body = write(&version, &policies, &routes);
        let file = self.seal.wrap(whole && !withhold, &body);
        let path = self.root.join("set");
        self.write("set", &file.map_err(|why| Error::Seal { path, why })?)
    }

    /// A module by its digest. A file with another digest is removed: the module will be fetched again.
    pub(crate) fn module(&self, digest: &Digest) -> Option<Vec<u8>> {
        let path = self.module_path(digest);
        let bytes = match read_bounded(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "failed to read a stored module");
                }
                return None;
            }
        };
        if Digest::of(&bytes) == *digest {
            return Some(bytes);
        }
        tracing::warn!(path = %path.display(), "a stored module does not match its digest; removing it");
        let _ = fs::remove_file(&path);
        None
    }

    pub(crate) fn has_module(&self, digest: &Digest) -> bool {
        self.module_path(digest).is_file()
    }

    pub(crate) fn keep_module(&self, digest: &Digest, bytes: &[u8]) -> Result<(), Error> {
        if self.has_module(digest) {
            return Ok(());
        }
        self.write(&format!("modules/{}", digest.hex()), bytes)
    }

    /// Removes modules that no kept set needs.
    pub(crate) fn sweep(&self, needed: &HashSet<Digest>) -> Result<(), Error> {
        let dir = self.root.join("modules");
        let names: HashSet<String> = needed.iter().map(Digest::hex).collect();
        for entry in fs::read_dir(&dir).map_err(io_error("list", &dir))? {
            let entry = entry.map_err(io_error("list", &dir))?;
            if !names.contains(entry.file_name().to_string_lossy().as_ref()) {
                fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
            }
        }
        Ok(())
    }

    /// A small file beside the set, such as a certificate.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        read_bounded(&self.root.join(name)).ok()
    }

    /// Writes a file whole or not at all: readable by its owner only, flushed before it
    /// takes its name.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.root.join(name);
        let dir = path.parent().unwrap_or(&self.root);
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(dir)
            .map_err(io_error("create a file for", &path))?;
        file.write_all(bytes).map_err(io_error("write", &path))?;
        file.as_file()
            .sync_all()
            .map_err(io_error("flush", &path))?;
        file.persist(&path)
            .map_err(|error| io_error("replace", &path)(error.error))?;
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(io_error("flush", dir))
    }

    /// Writes a file that only this evaluator's seal opens.
    pub(crate) fn write_sealed(&self, name: &str, body: &[u8]) -> Result<(), Error> {
        let path = self.root.join(name);
        let file = self.seal.wrap(true, body);
        self.write(name, &file.map_err(|why| Error::Seal { path, why })?)
    }

    /// Whether only those who have the key can read what is written sealed.
    pub(crate) fn is_confidential(&self) -> bool {
        self.seal.is_confidential()
    }

    /// Reads a file that [`Store::write_sealed`] wrote; the error says what is wrong with it.
    pub(crate) fn read_sealed(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.root.join(name);
        let bytes = read_bounded(&path).map_err(|error| error.to_string())?;
        let (_, body) = self.seal.open(&bytes)?;
        Ok(body)
    }

    /// The names of files in a directory of the store.
    pub(crate) fn list(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Removes a file that is not needed; one that can't be removed is only waste.
    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.root.join(name));
    }

    fn module_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("modules").join(digest.hex())
    }
}

// === impl Restored ===

impl Restored {
    /// The digests of modules and contents in the set.
    pub(crate) fn digests(&self) -> HashSet<Digest> {
        let policies = self.set.offers().values();
        let policies = policies.filter_map(|offer| offer.body.as_ref().ok());
        policies
            .flat_map(|policy| [policy.content_digest, policy.content.module_digest])
            .collect()
    }
}

fn decode(bytes: &[u8], seal: &Seal) -> Result<Restored, String> {
    let (whole, body) = seal.open(bytes)?;
    let update = crate::wire::read_set(&body)?;
    let set = Announced::default()
        .updated(&update, true)
        .map_err(|error| error.to_string())?;
    Ok(Restored { set, whole })
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn io_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { verb, path, source }
}
