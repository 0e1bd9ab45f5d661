//! The book of what exists: identities, generations and revisions, kept on disk.
//!
//! It stands for what an API server would store. Changes are made in memory and written by
//! [`Book::commit`], one file for each policy, so that a small change is a small write.

mod files;
mod record;
mod rollback;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use assent_api::{
    Parsed,
    parse::{self, Object, Rollback},
    revision::Phase,
};
use assent_core::{Digest, PolicyKey};
use jiff::Timestamp;
use uuid::Uuid;

pub use self::record::{Override, Record, Revision};
use crate::{
    decide::{Entry, Objects},
    directory::ModuleFile,
};

/// All policies that there are, those that are being deleted included.
#[derive(Debug)]
pub struct Book {
    directory: PathBuf,
    /// Held while the book is open: two processes must not write one state.
    _lock: fs::File,
    records: BTreeMap<Uuid, Record>,
    live: BTreeMap<PolicyKey, Uuid>,
    dirty: BTreeSet<Uuid>,
    forgotten: BTreeSet<Uuid>,
}

/// What observing a manifest did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new policy, generation 1.
    Created,
    /// The next generation.
    Changed,
    /// Nothing that matters.
    Unchanged,
}

/// A record that could not be read. It was set aside, so that nothing is lost.
#[derive(Debug)]
pub struct Damaged {
    /// The file as it was.
    pub file: PathBuf,
    /// Where it is now.
    pub kept_as: PathBuf,
    /// What was wrong with it.
    pub error: String,
}

/// Why the book could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the state failed.
    #[error("failed to {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another process has it open.
    #[error(
        "the state in {0} is used by another process; end it, or give another --state directory"
    )]
    InUse(PathBuf),
    /// No policy of this name.
    #[error("there is no policy {0}")]
    NoPolicy(PolicyKey),
    /// No revision that a rollback could go to.
    #[error("{policy} has no {wanted}; it has {kept}")]
    NoRevision {
        /// The policy.
        policy: PolicyKey,
        /// What was asked for.
        wanted: String,
        /// What there is.
        kept: String,
    },
}

// === impl Book ===

impl Book {
    /// Opens the state in `directory`, which is made where it is missing. Records that can't
    /// be read are set aside and told; the others are used.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Damaged>), Error> {
        let lock = files::lock(directory)?;
        let (records, damaged) = files::load(directory)?;
        let mut book = Self {
            directory: directory.to_owned(),
            _lock: lock,
            records: BTreeMap::new(),
            live: BTreeMap::new(),
            dirty: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        };
        for record in records {
            if !record.deleting {
                book.live.insert(record.key(), record.uid);
            }
            book.records.insert(record.uid, record);
        }
        Ok((book, damaged))
    }

    /// The policy of this name, unless it is being deleted.
    pub fn get(&self, key: &PolicyKey) -> Option<&Record> {
        self.records.get(self.live.get(key)?)
    }

    /// The policy of this identity, even while it is being deleted.
    pub fn by_uid(&self, uid: Uuid) -> Option<&Record> {
        self.records.get(&uid)
    }

    /// All policies, those that are being deleted included, in order of their names.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        let mut records: Vec<_> = self.records.values().collect();
        records.sort_by(|a, b| (&a.policy, a.uid).cmp(&(&b.policy, b.uid)));
        records.into_iter()
    }

    /// What existed when the book was written: where deciding goes on after a restart. A spec
    /// that this version no longer takes is left out, and so announced as new when it is seen.
    pub fn objects(&self, options: &parse::Options) -> Objects {
        let live = self.live.values().filter_map(|uid| self.records.get(uid));
        live.filter_map(|record| {
            let entry = Entry {
                file: record.file.clone(),
                manifest: record.manifest(options)?,
                module: record.module_file(),
                held: record.held,
            };
            Some((Object::Policy(record.key()), entry))
        })
        .collect()
    }

    /// Takes what a manifest says now. The generation grows when the spec or the bytes of the
    /// module's file differ from the last good ones; a rollback ends with that.
    pub fn observe(
        &mut self,
        file: &str,
        parsed: &Parsed,
        module: Option<&ModuleFile>,
        now: Timestamp,
    ) -> Change {
        let Some(uid) = self.live.get(&parsed.key).copied() else {
            self.create(file, parsed, module, now);
            return Change::Created;
        };
        let record = self
            .records
            .get_mut(&uid)
            .expect("a live policy must have a record");
        let before = record.clone();
        let changed = record.observe(file, parsed, module);
        if *record != before {
            self.dirty.insert(uid);
        }
        match changed {
            true => Change::Changed,
            false => Change::Unchanged,
        }
    }

    fn create(&mut self, file: &str, parsed: &Parsed, module: Option<&ModuleFile>, now: Timestamp) {
        let record = Record::new(Uuid::new_v4(), file, parsed, module, now);
        self.live.insert(parsed.key.clone(), record.uid);
        self.dirty.insert(record.uid);
        self.records.insert(record.uid, record);
    }

    /// Says whether `wanted` in a manifest is a rollback that was not done yet. The manifest
    /// is the user's and is not edited, so it is remembered what was done.
    pub fn new_rollback(&self, key: &PolicyKey, wanted: Option<Rollback>) -> Option<Rollback> {
        let record = self.get(key)?;
        let wanted = wanted?;
        (record.rollback_done.as_deref() != Some(&rollback::text(wanted))).then_some(wanted)
    }

    /// Remembers what a manifest's rollback annotation says, so that it is done only once.
    pub fn rollback_seen(&mut self, key: &PolicyKey, wanted: Option<Rollback>) {
        let text = wanted.map(rollback::text);
        self.edit(key, |record| record.rollback_done = text);
    }

    /// Goes back: the spec of an earlier revision becomes the next generation, with the module
    /// pinned by that revision's digest. It holds until the manifest changes.
    pub fn rollback(&mut self, key: &PolicyKey, to: Rollback) -> Result<i64, Error> {
        let record = self.get(key).ok_or_else(|| Error::NoPolicy(key.clone()))?;
        let revision = rollback::find(record, to)?.clone();
        let mut generation = 0;
        self.edit(key, |record| {
            record.generation += 1;
            generation = record.generation;
            record.overridden = Some(rollback::from(&revision));
        });
        Ok(generation)
    }

    /// Adds a revision of the policy `uid`, as a candidate.
    pub fn add_revision(&mut self, uid: Uuid, revision: Revision) {
        self.edit_uid(uid, |record| {
            record.revisions.retain(|r| r.name != revision.name);
            record.revisions.push(revision);
        });
    }

    /// Points the dispatch of the policy at one of its revisions.
    pub fn set_active(&mut self, uid: Uuid, name: Option<&str>, now: Timestamp) {
        self.edit_uid(uid, |record| {
            if record.active.as_deref() != name {
                record.active = name.map(str::to_owned);
                record.active_since = name.map(|_| now);
            }
        });
    }

    /// Moves a revision to another phase; old ones beyond `revisionHistoryLimit` are dropped.
    pub fn set_phase(&mut self, uid: Uuid, name: &str, phase: Phase) {
        self.edit_uid(uid, |record| {
            for revision in record.revisions.iter_mut().filter(|r| r.name == name) {
                revision.phase = phase;
            }
            record.trim();
        });
    }

    /// Drops a revision, a superseded candidate say.
    pub fn drop_revision(&mut self, uid: Uuid, name: &str) {
        self.edit_uid(uid, |record| {
            if record.active.as_deref() != Some(name) {
                record.revisions.retain(|r| r.name != name);
            }
        });
    }

    /// Remembers which policies are held back, and that no others are: a restart must not
    /// judge anew what is missing.
    pub fn set_held(&mut self, policies: &[PolicyKey]) {
        let live: Vec<PolicyKey> = self.live.keys().cloned().collect();
        for key in live {
            let held = policies.contains(&key);
            self.edit(&key, |record| record.held = held);
        }
    }

    /// Starts the deletion of a policy. Its record stays until [`Book::forget`]; the same name
    /// created meanwhile is another policy.
    pub fn delete(&mut self, key: &PolicyKey) -> Option<Uuid> {
        let uid = self.live.remove(key)?;
        self.edit_uid(uid, |record| record.deleting = true);
        Some(uid)
    }

    /// Ends the deletion of a policy.
    pub fn forget(&mut self, uid: Uuid) {
        if let Some(record) = self.records.get(&uid)
            && record.deleting
        {
            self.records.remove(&uid);
            self.dirty.remove(&uid);
            self.forgotten.insert(uid);
        }
    }

    /// Whether something is not written yet.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || !self.forgotten.is_empty()
    }

    /// Writes what changed. Each file is replaced as a whole, and is on disk when this returns.
    /// What could not be written is tried again by the next call.
    pub fn commit(&mut self) -> Result<(), Error> {
        while let Some(uid) = self.dirty.first().copied() {
            if let Some(record) = self.records.get(&uid) {
                files::write(&self.directory, record)?;
            }
            self.dirty.remove(&uid);
        }
        while let Some(uid) = self.forgotten.first().copied() {
            files::remove(&self.directory, uid)?;
            self.forgotten.remove(&uid);
        }
        Ok(())
    }

    fn edit(&mut self, key: &PolicyKey, edit: impl FnOnce(&mut Record)) {
        if let Some(uid) = self.live.get(key).copied() {
            self.edit_uid(uid, edit);
        }
    }

    fn edit_uid(&mut self, uid: Uuid, edit: impl FnOnce(&mut Record)) {
        let Some(record) = self.records.get_mut(&uid) else {
            return;
        };
        let before = record.clone();
        edit(record);
        if *record != before {
            self.dirty.insert(uid);
        }
    }
}

/// The digest that `text` says, as it stands in a record.
fn read_digest(text: &str) -> Option<Digest> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
