//! Removal of what nothing names any more.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use assent_core::digest::Digest;

use super::{Disk, fail, named_digest};
use crate::store::{Collected, Error, Keep, Key, engine_id};

/// How long an artefact for another engine outlives its last use. During an upgrade
/// evaluators of the old version start again and fetch what they have always fetched; a day
/// later they are upgraded, or rolled back.
const UNUSED: Duration = Duration::from_secs(24 * 3600);

/// One collection.
struct Collection<'a> {
    keep: &'a Keep,
    now: SystemTime,
    collected: Collected,
    removed: Vec<Key>,
}

// === impl Disk ===

impl Disk {
    pub(in crate::store) fn collect(
        &self,
        keep: &Keep,
        now: SystemTime,
    ) -> Result<(Collected, Vec<Key>), Error> {
        let mut collection = Collection {
            keep,
            now,
            collected: Collected::default(),
            removed: Vec::new(),
        };
        for path in self.entries(&self.modules)? {
            let digest = named_digest(&path);
            if digest.is_some_and(|digest| keep.modules.contains(&digest)) {
                continue;
            }
            if self.remove_old(&path, keep.younger_than, &mut collection)? {
                collection.removed.extend(digest.map(Key::Module));
            }
        }
        for dir in self.entries(&self.artefacts)? {
            self.collect_engine(&dir, &mut collection)?;
        }
        for path in self.entries(&self.temporary)? {
            self.remove_old(&path, keep.younger_than, &mut collection)?;
        }
        Ok((collection.collected, collection.removed))
    }

    fn collect_engine(&self, dir: &Path, collection: &mut Collection<'_>) -> Result<(), Error> {
        let keep = collection.keep;
        let engine = named_digest(dir);
        let is_current = engine.is_some_and(|engine| is_current(keep, engine));
        for path in self.entries(dir)? {
            let module = named_digest(&path);
            let is_named = module.is_some_and(|module| keep.modules.contains(&module));
            let age = match (is_named, is_current) {
                (true, true) => continue,
                (true, false) => UNUSED.max(keep.younger_than),
                (false, _) => keep.younger_than,
            };
            if self.remove_old(&path, age, collection)? {
                let key = engine.zip(module).map(|(e, m)| Key::Artefact(e, m));
                collection.removed.extend(key);
            }
        }
        if !is_current {
            // Fails while something is inside: a later collection takes it.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Under the naming lock, so that a write that just made it young is seen.
    fn remove_old(
        &self,
        path: &PathBuf,
        younger_than: Duration,
        collection: &mut Collection<'_>,
    ) -> Result<bool, Error> {
        let _naming = self.naming();
        let Ok(meta) = fs::metadata(path) else {
            return Ok(false);
        };
        let modified = meta.modified().map_err(fail("inspect", path))?;
        // A clock that went back makes an age of zero: kept.
        let age = collection.now.duration_since(modified).unwrap_or_default();
        if !meta.is_file() || age < younger_than {
            return Ok(false);
        }
        fs::remove_file(path).map_err(fail("remove", path))?;
        collection.collected.files += 1;
        collection.collected.bytes += meta.len();
        Ok(true)
    }
}

/// Whether artefacts of this engine are made now. If that is not known they may be.
fn is_current(keep: &Keep, engine: Digest) -> bool {
    let current = keep.engine.as_ref();
    current.is_none_or(|fingerprint| engine_id(fingerprint) == engine)
}
