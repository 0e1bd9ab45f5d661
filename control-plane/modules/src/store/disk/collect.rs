//! Removal of what nothing names any more.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use assent_core::digest::Digest;

use super::{Disk, fail, named_digest};
use crate::store::{Collected, Error, Keep, Key, engine_id};

// === impl Disk ===

impl Disk {
    pub(in crate::store) fn collect(&self, keep: &Keep) -> Result<(Collected, Vec<Key>), Error> {
        let mut collected = Collected::default();
        let mut removed = Vec::new();
        for path in self.entries(&self.modules)? {
            let digest = named_digest(&path);
            if digest.is_some_and(|digest| keep.modules.contains(&digest)) {
                continue;
            }
            if self.remove_old(&path, keep.younger_than, &mut collected)? {
                removed.extend(digest.map(Key::Module));
            }
        }
        for dir in self.entries(&self.artefacts)? {
            self.collect_engine(&dir, keep, &mut collected, &mut removed)?;
        }
        for path in self.entries(&self.temporary)? {
            self.remove_old(&path, keep.younger_than, &mut collected)?;
        }
        Ok((collected, removed))
    }

    fn collect_engine(
        &self,
        dir: &Path,
        keep: &Keep,
        collected: &mut Collected,
        removed: &mut Vec<Key>,
    ) -> Result<(), Error> {
        let engine = named_digest(dir);
        let offered = engine.is_some_and(|engine| is_offered(keep, engine));
        for path in self.entries(dir)? {
            let module = named_digest(&path);
            if offered && module.is_some_and(|module| keep.modules.contains(&module)) {
                continue;
            }
            if self.remove_old(&path, keep.younger_than, collected)? {
                removed.extend(engine.zip(module).map(|(e, m)| Key::Artefact(e, m)));
            }
        }
        if !offered {
            // Fails while something young is inside: the next collection takes it.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    /// Under the naming lock, so that a write that just made it young is seen.
    fn remove_old(
        &self,
        path: &PathBuf,
        younger_than: Duration,
        collected: &mut Collected,
    ) -> Result<bool, Error> {
        let _naming = self.naming();
        let Ok(meta) = fs::metadata(path) else {
            return Ok(false);
        };
        let modified = meta.modified().map_err(fail("inspect", path))?;
        // A clock that went back makes an age of zero: kept.
        let age = SystemTime::now()
            .duration_since(modified)
            .unwrap_or_default();
        if !meta.is_file() || age < younger_than {
            return Ok(false);
        }
        fs::remove_file(path).map_err(fail("remove", path))?;
        collected.files += 1;
        collected.bytes += meta.len();
        Ok(true)
    }
}

fn is_offered(keep: &Keep, engine: Digest) -> bool {
    keep.engines.iter().any(|name| engine_id(name) == engine)
}
