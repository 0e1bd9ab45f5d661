//! Looks at the directory, and waits for each file to stop changing before it is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use assent_core::Digest;

use super::{
    Document, Options, Scan, State,
    files::{self, Stamp},
    watch::Files,
};

/// Remembers what each file was, so that only what changed is read again.
#[derive(Debug)]
pub struct Scanner {
    options: Options,
    manifests: BTreeMap<String, Watched<Result<Vec<Document>, String>>>,
    modules: BTreeMap<PathBuf, Watched<Result<Digest, String>>>,
}

/// One file over time. `stamp` is `None` while the file is not there.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    stamp: Option<Stamp>,
    /// When `stamp` was first seen.
    since: Instant,
    /// What was read, and the stamp that it was read at.
    read: Option<(Option<Stamp>, T)>,
}

// === impl Scanner ===

impl Scanner {
    /// Looks at `options.path`; nothing is read yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            manifests: BTreeMap::new(),
            modules: BTreeMap::new(),
        }
    }

    /// Scans once. The second value is when to scan again, if something has not settled.
    pub fn poll(&mut self, now: Instant) -> (Scan, Option<Duration>) {
        let names = match self.list() {
            Ok(names) => names,
            Err(state) => {
                let scan = Scan {
                    state,
                    ..Scan::default()
                };
                return (scan, None);
            }
        };
        self.look_at_manifests(&names, now);
        let mut scan = self.collect();
        self.look_at_modules(&mut scan, now);
        let settle = self.options.settle;
        let manifests = self
            .manifests
            .values()
            .filter_map(|file| file.wait(now, settle));
        let modules = self
            .modules
            .values()
            .filter_map(|file| file.wait(now, settle));
        let again = manifests.chain(modules).min();
        (scan, again)
    }

    /// The watched directory and those of module files.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        let parents = self.modules.keys().filter_map(|path| path.parent());
        let parents = parents.map(Path::to_path_buf);
        parents.chain([self.options.path.clone()]).collect()
    }

    /// Names of the manifests in the directory.
    fn list(&self) -> Result<BTreeSet<String>, State> {
        let names = files::list(&self.options.path);
        names.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => State::Missing,
            _ => State::Unreadable(error.to_string()),
        })
    }

    fn look_at_manifests(&mut self, names: &BTreeSet<String>, now: Instant) {
        for name in names {
            let fresh = || Watched::new(now);
            self.manifests.entry(name.clone()).or_insert_with(fresh);
        }
        let options = &self.options;
        self.manifests.retain(|name, file| {
            let path = options.path.join(name);
            file.look(&path, now, options.settle, |stamp| match stamp {
                None if names.contains(name) => Err("the link leads nowhere".to_owned()),
                None => Ok(Vec::new()),
                Some(_) => read_manifest(&path, name, options),
            });
            // Gone, and long enough.
            !file.is_gone() || names.contains(name)
        });
    }

    fn collect(&self) -> Scan {
        let mut scan = Scan::default();
        for (name, file) in &self.manifests {
            match &file.read {
                Some((_, Ok(documents))) => scan.documents.extend(documents.iter().cloned()),
                Some((_, Err(error))) => {
                    scan.unreadable.insert(name.clone(), error.clone());
                }
                None => {
                    scan.unsettled.insert(name.clone());
                }
            }
        }
        scan
    }

    /// Adds the digests of module files. A document whose module is still being written counts
    /// as not settled: it would only be refused and taken a moment later.
    fn look_at_modules(&mut self, scan: &mut Scan, now: Instant) {
        let directory = std::path::absolute(&self.options.path);
        let directory = directory.unwrap_or_else(|_| self.options.path.clone());
        let settle = self.options.settle;
        let mut wanted = BTreeSet::new();
        for document in &mut scan.documents {
            let Some(path) = files::module_path(document, &directory) else {
                continue;
            };
            let file = self
                .modules
                .entry(path.clone())
                .or_insert_with(|| Watched::new(now));
            if wanted.insert(path.clone()) {
                file.look(&path, now, settle, |_| files::digest(&path));
            }
            match &file.read {
                Some((_, digest)) => document.module = Some(files::module(path, digest.clone())),
                None => {
                    scan.unsettled.insert(document.file.clone());
                }
            }
        }
        let unsettled = &scan.unsettled;
        scan.documents
            .retain(|document| !unsettled.contains(&document.file));
        self.modules.retain(|path, _| wanted.contains(path));
    }
}

fn read_manifest(path: &Path, name: &str, options: &Options) -> Result<Vec<Document>, String> {
    let bytes = files::read(path, super::MAX_FILE_BYTES).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    // Writers that begin by truncating leave this behind when they die or the disk is full.
    if text.trim().is_empty() {
        return Err("it is empty; remove it to remove its policies".to_owned());
    }
    Ok(files::documents(name, &text, &options.parse))
}

impl Files for Scanner {
    type Found = Scan;

    fn poll(&mut self, now: Instant) -> (Scan, Option<Duration>) {
        Scanner::poll(self, now)
    }

    fn directories(&self) -> BTreeSet<PathBuf> {
        Scanner::directories(self)
    }
}

// === impl Watched ===

impl<T> Watched<T> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            stamp: None,
            since: now,
            read: None,
        }
    }

    /// Takes a new stamp, and reads the file once it has kept one for long enough. Until then
    /// what was read before stands.
    pub(crate) fn look(
        &mut self,
        path: &Path,
        now: Instant,
        settle: Duration,
        read: impl FnOnce(Option<Stamp>) -> T,
    ) {
        let stamp = Stamp::of(path).ok();
        if stamp != self.stamp {
            self.stamp = stamp;
            self.since = now;
        }
        if self.is_current() || now.duration_since(self.since) < settle {
            return;
        }
        let content = read(stamp);
        // Written to while it was read: what was read may be half of each.
        if Stamp::of(path).ok() == stamp {
            self.read = Some((stamp, content));
        } else {
            self.since = now;
        }
    }

    /// What was read last.
    pub(crate) fn content(&self) -> Option<&T> {
        self.read.as_ref().map(|(_, content)| content)
    }

    /// Whether the file is not there, and has not been for long enough.
    pub(crate) fn is_gone(&self) -> bool {
        self.stamp.is_none() && self.is_current()
    }

    fn is_current(&self) -> bool {
        matches!(&self.read, Some((stamp, _)) if *stamp == self.stamp)
    }

    /// How long until it may be read, if it must be.
    pub(crate) fn wait(&self, now: Instant, settle: Duration) -> Option<Duration> {
        let left = settle.saturating_sub(now.duration_since(self.since));
        // Never nothing: a file that is written without pause must not make a hot loop.
        (!self.is_current()).then(|| left.max(Duration::from_millis(10)))
    }
}
