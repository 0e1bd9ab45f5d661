//! One policy in the book.

use std::path::PathBuf;

use assent_api::{Manifest, Parsed, parse, revision::Phase};
use assent_core::{PolicyKey, RevisionId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::read_digest;
use crate::directory::ModuleFile;

/// Everything that is kept of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// `cluster/<name>` or `namespaced/<namespace>/<name>`.
    pub policy: String,
    /// Tells it from one of the same name that was deleted before.
    pub uid: Uuid,
    /// Grows with each change of what is wanted.
    pub generation: i64,
    /// When it was first seen.
    pub created_at: Timestamp,
    /// The file that owns it.
    pub file: String,
    /// Canonical JSON of the manifest's last good spec.
    pub spec: String,
    /// The module's file, and the digest of its bytes when they could last be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_path: Option<PathBuf>,
    /// See `module_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_digest: Option<String>,
    /// What a rollback put in the place of the manifest's spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Override>,
    /// The rollback annotation that was acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_done: Option<String>,
    /// Name of the revision that the dispatch points at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Timestamp>,
    /// Its manifest is gone, and that was held back.
    #[serde(default)]
    pub held: bool,
    /// Its manifest is gone; it drains.
    #[serde(default)]
    pub deleting: bool,
    /// In the order in which they were made.
    #[serde(default)]
    pub revisions: Vec<Revision>,
}

/// What a rollback put in the place of the manifest's spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// Canonical JSON of the spec, the module pinned where its URL can say so.
    pub spec: String,
    /// The module, whatever its URL leads to now.
    pub module_digest: String,
    /// The generation that it was copied from.
    pub from_generation: i64,
}

/// One immutable, resolved generation of a policy, as `PolicyRevision` is in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Revision {
    /// `<generation>-<first 8 of the uid>`.
    pub name: String,
    /// The policy's generation.
    pub generation: i64,
    /// Canonical JSON of the spec.
    pub spec: String,
    /// Where the module came from.
    pub module_url: String,
    /// `sha256:<hex>` of the module.
    pub module_digest: String,
    /// Size of the module in bytes.
    pub module_size: u64,
    /// `wapc`, `opa`, `gatekeeper` or `wasi`.
    pub abi: String,
    /// `sha256:<hex>` over everything that changes a verdict.
    pub content_digest: String,
    /// Canonical JSON.
    pub settings: String,
    /// Host calls that the policy may make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_capabilities: Vec<String>,
    /// Evaluation deadline as it was resolved: the server's default may change later.
    pub timeout_ms: u32,
    /// Guest memory cap as it was resolved.
    pub memory_bytes: u64,
    /// Where it is in its life.
    pub phase: Phase,
    /// When it was made.
    pub created_at: Timestamp,
}

// === impl Record ===

impl Record {
    pub(super) fn new(
        uid: Uuid,
        file: &str,
        parsed: &Parsed,
        module: Option<&ModuleFile>,
        now: Timestamp,
    ) -> Self {
        let mut record = Self {
            policy: parsed.key.to_string(),
            uid,
            generation: 1,
            created_at: now,
            file: file.to_owned(),
            spec: text(&parsed.spec_json),
            module_path: None,
            module_digest: None,
            overridden: None,
            rollback_done: None,
            active: None,
            active_since: None,
            held: false,
            deleting: false,
            revisions: Vec::new(),
        };
        record.observe_module(module);
        record
    }

    /// The policy's name.
    pub fn key(&self) -> PolicyKey {
        PolicyKey::parse(&self.policy).expect("a record's name was checked when it was read")
    }

    /// Name of the revision that the present generation is or will be.
    pub fn revision_id(&self) -> RevisionId {
        RevisionId::new(&self.key(), self.generation, &self.uid.to_string())
    }

    /// The spec that is wanted now: the manifest's, or the one of a rollback.
    pub fn effective_spec(&self) -> &str {
        match &self.overridden {
            Some(overridden) => &overridden.spec,
            None => &self.spec,
        }
    }

    /// What is wanted now, read by the one parser.
    pub fn effective(&self, options: &parse::Options) -> Option<Parsed> {
        self.read(self.effective_spec(), options)
    }

    /// The module that a rollback pinned.
    pub fn pinned_digest(&self) -> Option<&str> {
        self.overridden.as_ref().map(|o| o.module_digest.as_str())
    }

    /// The revision that the dispatch points at.
    pub fn active_revision(&self) -> Option<&Revision> {
        let name = self.active.as_deref()?;
        self.revisions.iter().find(|revision| revision.name == name)
    }

    /// Route path of the active revision.
    pub fn active_path(&self) -> Option<String> {
        let revision = self.active_revision()?;
        Some(format!("{}/{}", self.policy, revision.name))
    }

    pub(super) fn manifest(&self, options: &parse::Options) -> Option<Manifest> {
        let parsed = self.read(&self.spec, options)?;
        Some(Manifest::Policy(Box::new(parsed)))
    }

    pub(super) fn module_file(&self) -> Option<ModuleFile> {
        let digest = self.module_digest.as_deref().and_then(read_digest);
        Some(ModuleFile {
            path: self.module_path.clone()?,
            digest: digest.ok_or_else(|| "not read yet".to_owned()),
        })
    }

    fn read(&self, spec: &str, options: &parse::Options) -> Option<Parsed> {
        let value: Value = assent_api::json::from_str(spec).ok()?;
        parse::spec(&self.key(), &value, options).ok()
    }

    /// Takes what the manifest says now; says whether that makes a new generation.
    pub(super) fn observe(
        &mut self,
        file: &str,
        parsed: &Parsed,
        module: Option<&ModuleFile>,
    ) -> bool {
        self.file = file.to_owned();
        let spec = text(&parsed.spec_json);
        let other_spec = self.spec != spec;
        self.spec = spec;
        let other_module = self.observe_module(module);
        // With another spec the module may be another too: that is one change, not two.
        let changed = other_spec || other_module;
        if changed {
            self.generation += 1;
            self.overridden = None;
        }
        changed
    }

    /// Bytes that can't be read now are unknown, which is no change. Bytes that were never
    /// known make no generation either: nothing was built from them.
    fn observe_module(&mut self, module: Option<&ModuleFile>) -> bool {
        let path = module.map(|module| module.path.clone());
        if self.module_path != path {
            // Bytes of another file say nothing of this one.
            self.module_path = path;
            self.module_digest = None;
        }
        let Some(module) = module else {
            return false;
        };
        let Ok(digest) = &module.digest else {
            return false;
        };
        let before = self.module_digest.replace(digest.to_string());
        before.is_some() && before != self.module_digest
    }

    /// Keeps what is in use, and of the rest the newest `revisionHistoryLimit`.
    pub(super) fn trim(&mut self) {
        let limit = self.history_limit();
        let mut old: Vec<i64> = self
            .revisions
            .iter()
            .filter(|r| r.phase == Phase::History && self.active.as_ref() != Some(&r.name))
            .map(|r| r.generation)
            .collect();
        old.sort_unstable_by(|a, b| b.cmp(a));
        let dropped: Vec<i64> = old.into_iter().skip(limit).collect();
        self.revisions
            .retain(|r| r.phase != Phase::History || !dropped.contains(&r.generation));
    }

    fn history_limit(&self) -> usize {
        let spec: Option<Value> = serde_json::from_str(self.effective_spec()).ok();
        let limit = spec.and_then(|spec| spec["revisionHistoryLimit"].as_u64());
        let default = assent_api::policy::DEFAULT_HISTORY_LIMIT.unsigned_abs();
        usize::try_from(limit.unwrap_or(default.into())).unwrap_or(usize::MAX)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
