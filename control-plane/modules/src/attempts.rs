//! Remembers modules that brought the process down while they were vetted.
//!
//! A child that takes too much memory can end the whole container, in which case nobody is
//! left to refuse its module. Therefore an attempt leaves a mark on disk for as long as it
//! runs. A mark that is found at the start was left by a process that died.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use assent_core::digest::Digest;
use serde::{Deserialize, Serialize};

/// Deaths after which a module is refused. After the first one it is tried again with less
/// memory: the process may have been killed for another reason.
const MAX_DEATHS: u32 = 2;

/// How long a module stays refused: long enough that the process does not restart over and
/// over, short enough that two coincidences are forgotten.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// The attempts of this process and of those before it with the same directory.
#[derive(Clone, Debug)]
pub struct Attempts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    /// Memory of a child. More of it is a reason to try again.
    memory_bytes: u64,
    /// Attempts that run, by content.
    running: Mutex<HashMap<Digest, usize>>,
}

/// An attempt that runs. Dropped, it has survived, whatever came of it.
#[derive(Debug)]
pub struct Attempt {
    attempts: Attempts,
    digest: Digest,
    deaths: u32,
}

/// Why a module is not tried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Vetting it ended the process more than once.
    #[error(
        "brought the control plane down while being vetted, {deaths} times; raise the memory limit \
         of the control plane, or use a smaller module"
    )]
    Refused {
        /// How often.
        deaths: u32,
    },
    /// The mark can not be written.
    #[error("failed to {action} {}: {source}; check the volume of the state directory", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The content of a mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    running: bool,
    deaths: u32,
    /// Of this program: another version may do better.
    version: String,
    memory_bytes: u64,
}

// === impl Attempts ===

impl Attempts {
    /// Opens the directory and counts the attempts that were running when an earlier process
    /// ended. `memory_bytes` is what a child may use, `now` what the age of marks is measured
    /// by. Blocking: call it at start.
    pub fn open(state: &Path, memory_bytes: u64, now: SystemTime) -> Result<Self, Error> {
        let dir = state.join("attempts");
        fs::create_dir_all(&dir).map_err(fail("create directory", &dir))?;
        let attempts = Self(Arc::new(Shared {
            dir,
            memory_bytes,
            running: Mutex::default(),
        }));
        attempts.count_deaths(now)?;
        Ok(attempts)
    }

    /// Marks that an attempt begins, durably. Blocking.
    pub fn begin(&self, digest: Digest) -> Result<Attempt, Error> {
        let mut running = self.running();
        let deaths = self.read(digest).map_or(0, |mark| mark.deaths);
        if deaths >= MAX_DEATHS {
            return Err(Error::Refused { deaths });
        }
        let mark = Mark {
            running: true,
            deaths,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            memory_bytes: self.0.memory_bytes,
        };
        self.write(digest, &mark)?;
        *running.entry(digest).or_default() += 1;
        Ok(Attempt {
            attempts: self.clone(),
            digest,
            deaths,
        })
    }

    fn count_deaths(&self, now: SystemTime) -> Result<(), Error> {
        let dir = &self.0.dir;
        let entries = fs::read_dir(dir).map_err(fail("list", dir))?;
        for entry in entries {
            let entry = entry.map_err(fail("list", dir))?;
            let path = entry.path();
            let digest = path.file_name().and_then(|name| name.to_str());
            let digest = digest.and_then(|name| format!("sha256:{name}").parse().ok());
            let mark = digest.and_then(|digest| Some((digest, self.read(digest)?)));
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let age = modified.map(|modified| now.duration_since(modified).unwrap_or_default());
            match mark {
                Some((digest, mark)) if mark.running => {
                    let deaths = mark.deaths + 1;
                    tracing::warn!(%digest, deaths, "the process ended while vetting a module");
                    let counted = Mark {
                        running: false,
                        deaths,
                        ..mark
                    };
                    self.write(digest, &counted)?;
                }
                Some(_) if age.is_ok_and(|age| age < REMEMBERED) => {}
                // Old, outdated, or the remains of a write that was cut short.
                _ => fs::remove_file(&path).map_err(fail("remove", &path))?,
            }
        }
        Ok(())
    }

    /// The mark of a module, unless it says nothing about this program with its memory.
    fn read(&self, digest: Digest) -> Option<Mark> {
        let bytes = fs::read(self.path(digest)).ok()?;
        let mark: Mark = serde_json::from_slice(&bytes).ok()?;
        let is_same = mark.version == env!("CARGO_PKG_VERSION");
        (is_same && self.0.memory_bytes <= mark.memory_bytes).then_some(mark)
    }

    /// Writes beside the mark, makes it durable, then gives it its name.
    fn write(&self, digest: Digest, mark: &Mark) -> Result<(), Error> {
        let path = self.path(digest);
        let temporary = path.with_extension("new");
        let json = serde_json::to_vec(mark).expect("a mark must be representable as JSON");
        let written = File::create(&temporary)
            .and_then(|mut file| file.write_all(&json).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, &path))
            .and_then(|()| File::open(&self.0.dir)?.sync_all());
        written.map_err(fail("write", &path))
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.0.dir.join(digest.hex())
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Digest, usize>> {
        // Each change is complete before anything can panic.
        let running = self.0.running.lock();
        running.unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Attempt ===

impl Attempt {
    /// Whether the process died at the last attempt. A careful attempt uses less memory.
    pub fn is_careful(&self) -> bool {
        self.deaths > 0
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut running = self.attempts.running();
        let left = running.get_mut(&self.digest).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            running.remove(&self.digest);
            let path = self.attempts.path(self.digest);
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), "failed to remove a mark: {error}");
            }
        }
    }
}

fn fail<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
