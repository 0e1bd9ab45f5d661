//! Policies, their generations and their revisions, stored on disk.
//!
//! The store is what etcd is to an API server. Changes are made in memory and written by
//! [`StateStore::commit`], one file for each policy, so that a small change is a small write.

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
use assent_controller::action::RollbackTarget;
use assent_core::{Digest, PolicyKey};
use jiff::Timestamp;
use uuid::Uuid;

pub use self::record::{Override, PolicyRecord, RevisionRecord, StoredCondition};
use crate::{
    decide::{Entry, Objects},
    directory::ModuleFile,
};

/// All policies, those that are being deleted included.
#[derive(Debug)]
pub struct StateStore {
    directory: PathBuf,
    /// Held while the store is open: two processes must not write one state.
    _lock: fs::File,
    records: BTreeMap<Uuid, PolicyRecord>,
    live: BTreeMap<PolicyKey, Uuid>,
    dirty: BTreeSet<Uuid>,
    forgotten: BTreeSet<Uuid>,
}

/// The effect of observing a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A new policy, generation 1.
    Created,
    /// The next generation.
    Changed,
    /// No new generation.
    Unchanged,
}

/// A record that could not be read. Its file was renamed, so that nothing is lost.
#[derive(Debug)]
pub struct Damaged {
    /// The file as it was.
    pub file: PathBuf,
    /// Its new name.
    pub kept_as: PathBuf,
    /// What was wrong with it.
    pub error: String,
}

/// Why the store could not be used.
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
}

// === impl StateStore ===

impl StateStore {
    /// Opens the state in `directory`, which is created if it is missing. Records that cannot
    /// be read are set aside and returned; the others are used.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Damaged>), Error> {
        let lock = files::lock(directory)?;
        let (records, damaged) = files::load(directory)?;
        let mut store = Self {
            directory: directory.to_owned(),
            _lock: lock,
            records: BTreeMap::new(),
            live: BTreeMap::new(),
            dirty: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        };
        for record in records {
            if !record.deleting {
                store.live.insert(record.key(), record.uid);
            }
            store.records.insert(record.uid, record);
        }
        Ok((store, damaged))
    }

    /// The policy of this name, unless it is being deleted.
    pub fn get(&self, key: &PolicyKey) -> Option<&PolicyRecord> {
        self.records.get(self.live.get(key)?)
    }

    /// The policy with this uid, even while it is being deleted.
    pub fn by_uid(&self, uid: Uuid) -> Option<&PolicyRecord> {
        self.records.get(&uid)
    }

    /// All policies, those that are being deleted included, in order of their names.
    pub fn records(&self) -> impl Iterator<Item = &PolicyRecord> {
        let mut records: Vec<_> = self.records.values().collect();
        records.sort_by(|a, b| (&a.policy, a.uid).cmp(&(&b.policy, b.uid)));
        records.into_iter()
    }

    /// The objects at the last commit: the state that the first scan after a restart is
    /// compared with. A spec that this version rejects is left out, so that its manifest is
    /// reported as new.
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

    /// Records the present content of a manifest. The generation grows if the spec or the
    /// bytes of the module's file differ from the last valid ones; that ends a rollback.
    pub fn observe(
        &mut self,
        file: &str,
        parsed: &Parsed,
        module: Option<&ModuleFile>,
        now: Timestamp,
    ) -> Observed {
        let Some(uid) = self.live.get(&parsed.key).copied() else {
            self.create(file, parsed, module, now);
            return Observed::Created;
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
            true => Observed::Changed,
            false => Observed::Unchanged,
        }
    }

    fn create(&mut self, file: &str, parsed: &Parsed, module: Option<&ModuleFile>, now: Timestamp) {
        let record = PolicyRecord::new(Uuid::new_v4(), file, parsed, module, now);
        self.live.insert(parsed.key.clone(), record.uid);
        self.dirty.insert(record.uid);
        self.records.insert(record.uid, record);
    }

    /// The rollback that a manifest's annotation asks for, unless it was done already. The
    /// manifest belongs to the user and is not edited, so the store remembers what was done.
    pub fn new_rollback(&self, key: &PolicyKey, wanted: Option<Rollback>) -> Option<Rollback> {
        let record = self.get(key)?;
        let wanted = wanted?;
        (record.rollback_done.as_deref() != Some(&rollback::text(wanted))).then_some(wanted)
    }

    /// Remembers a manifest's rollback annotation, so that it is acted on only once.
    pub fn set_rollback_done(&mut self, key: &PolicyKey, wanted: Option<Rollback>) {
        let text = wanted.map(rollback::text);
        self.edit(key, |record| record.rollback_done = text);
    }

    /// Makes the spec of an earlier revision the next generation, with the module pinned to
    /// that revision's digest. It holds until the manifest changes. Returns the generation.
    pub fn roll_back(&mut self, key: &PolicyKey, target: &RollbackTarget) -> Option<i64> {
        let mut generation = None;
        self.edit(key, |record| {
            record.generation += 1;
            generation = Some(record.generation);
            record.overridden = Some(rollback::to(target));
        });
        generation
    }

    /// Adds a revision of the policy `uid`.
    pub fn add_revision(&mut self, uid: Uuid, revision: RevisionRecord) {
        self.edit_uid(uid, |record| {
            record.revisions.retain(|r| r.name != revision.name);
            record.revisions.push(revision);
        });
    }

    /// Points the dispatch of the policy at one of its revisions, or at none.
    pub fn set_active(&mut self, uid: Uuid, name: Option<&str>, now: Timestamp) {
        self.edit_uid(uid, |record| {
            if record.active.as_deref() != name {
                record.active = name.map(str::to_owned);
                record.active_since = name.map(|_| now);
            }
        });
    }

    /// Records the phase of a revision.
    pub fn set_phase(&mut self, uid: Uuid, name: &str, phase: Phase) {
        self.edit_uid(uid, |record| {
            for revision in record.revisions.iter_mut().filter(|r| r.name == name) {
                revision.phase = phase;
            }
        });
    }

    /// Deletes a revision, unless the dispatch points at it.
    pub fn delete_revision(&mut self, uid: Uuid, name: &str) {
        self.edit_uid(uid, |record| {
            if record.active.as_deref() != Some(name) {
                record.revisions.retain(|r| r.name != name);
            }
        });
    }

    /// Stores since when the policy's conditions have their status.
    pub fn set_conditions(&mut self, uid: Uuid, conditions: Vec<StoredCondition>) {
        self.edit_uid(uid, |record| record.conditions = conditions);
    }

    /// Remembers which policies are held back, and that no others are: a restart must not
    /// reconsider what is missing.
    pub fn set_held(&mut self, policies: &[PolicyKey]) {
        let live: Vec<PolicyKey> = self.live.keys().cloned().collect();
        for key in live {
            let held = policies.contains(&key);
            self.edit(&key, |record| record.held = held);
        }
    }

    /// Starts the deletion of a policy. Its record stays until [`StateStore::forget`]; a
    /// policy of the same name that is created meanwhile is another policy.
    pub fn delete(&mut self, key: &PolicyKey) -> Option<Uuid> {
        let uid = self.live.remove(key)?;
        self.edit_uid(uid, |record| record.deleting = true);
        Some(uid)
    }

    /// Ends the deletion of a policy; false if it is not being deleted.
    pub fn forget(&mut self, uid: Uuid) -> bool {
        if !self.records.get(&uid).is_some_and(|r| r.deleting) {
            return false;
        }
        self.records.remove(&uid);
        self.dirty.remove(&uid);
        self.forgotten.insert(uid)
    }

    /// Whether something is not written yet.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || !self.forgotten.is_empty()
    }

    /// Writes what changed. Each file is replaced as a whole, and is on disk when this
    /// returns. The next call retries what could not be written.
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

    fn edit(&mut self, key: &PolicyKey, edit: impl FnOnce(&mut PolicyRecord)) {
        if let Some(uid) = self.live.get(key).copied() {
            self.edit_uid(uid, edit);
        }
    }

    fn edit_uid(&mut self, uid: Uuid, edit: impl FnOnce(&mut PolicyRecord)) {
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

/// A digest as it stands in a record.
fn read_digest(text: &str) -> Option<Digest> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
