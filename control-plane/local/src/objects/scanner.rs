//! Looks at a directory of objects, and waits for each file to stop changing before it is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_core::digest::Framed;

use super::{FileContent, Objects, assemble, read_file};
use crate::directory::{files, scanner::Watched, watch::Files};

/// Remembers what each file was, so that only what changed is read again.
pub(super) struct ObjectsScanner {
    path: PathBuf,
    settle: Duration,
    files: BTreeMap<String, Watched<Result<Option<FileContent>, String>>>,
    last: Option<Objects>,
}

// === impl ObjectsScanner ===

impl ObjectsScanner {
    /// Looks at `path`; nothing is read yet.
    pub(super) fn new(path: PathBuf, settle: Duration) -> Self {
        Self {
            path,
            settle,
            files: BTreeMap::new(),
            last: None,
        }
    }

    fn look(&mut self, names: &BTreeSet<String>, now: Instant) {
        for name in names {
            let fresh = || Watched::new(now);
            self.files.entry(name.clone()).or_insert_with(fresh);
        }
        let (directory, settle) = (&self.path, self.settle);
        self.files.retain(|name, file| {
            let path = directory.join(name);
            file.look(&path, now, settle, |stamp| match stamp {
                None if names.contains(name) => Err(format!("{name}: the link leads nowhere")),
                None => Ok(None),
                Some(_) => match read_file(&path, name) {
                    Ok(content) => Ok(Some(content)),
                    Err(error) => Err(error.to_string()),
                },
            });
            !file.is_gone() || names.contains(name)
        });
    }

    /// What all files hold together.
    fn collect(&self) -> Objects {
        let mut version = Framed::new("assent.objects.v1");
        let mut read = Vec::new();
        let mut problem = None;
        for (name, file) in &self.files {
            version.field(name.as_bytes());
            match file.content() {
                Some(Ok(Some(content))) => {
                    version.field(content.digest.hex().as_bytes());
                    read.push(content);
                }
                Some(Ok(None)) => {}
                Some(Err(error)) => drop(problem.get_or_insert_with(|| error.clone())),
                None => drop(problem.get_or_insert_with(|| format!("{name} keeps changing"))),
            }
        }
        let version = version.digest();
        if let Some(problem) = problem {
            let content = Err(problem);
            return Objects { content, version };
        }
        if let Some(last) = &self.last
            && last.version == version
            && last.content.is_ok()
        {
            return last.clone();
        }
        let content = assemble(read).map(Arc::new);
        Objects {
            content: content.map_err(|error| error.to_string()),
            version,
        }
    }
}

impl Files for ObjectsScanner {
    type Found = Objects;

    fn poll(&mut self, now: Instant) -> (Objects, Option<Duration>) {
        let names = match files::list(&self.path) {
            Ok(names) => names,
            Err(error) => {
                let why = format!("failed to read {}: {error}", self.path.display());
                let version = Framed::new("assent.objects.v1").digest();
                let content = Err(why);
                return (Objects { content, version }, None);
            }
        };
        self.look(&names, now);
        let objects = self.collect();
        self.last = Some(objects.clone());
        let waits = self.files.values();
        let again = waits.filter_map(|file| file.wait(now, self.settle)).min();
        (objects, again)
    }

    fn directories(&self) -> BTreeSet<PathBuf> {
        [self.path.clone()].into()
    }
}
