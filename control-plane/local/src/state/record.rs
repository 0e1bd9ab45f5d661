//! One policy in the store.

use std::path::PathBuf;

use assent_api::{
    Manifest, Parsed, PolicyRevisionSpec, PolicyStatus, canonical, json, parse,
    revision::{Phase, PolicyRef},
    status::ActiveRevision,
};
use assent_core::{PolicyKey, RevisionId};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::read_digest;
use crate::directory::ModuleFile;

/// Everything that is stored of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRecord {
    /// `cluster/<name>` or `namespaced/<namespace>/<name>`.
    pub policy: String,
    /// Distinguishes it from deleted policies of the same name.
    pub uid: Uuid,
    /// Counts changes of the effective spec.
    pub generation: i64,
    /// When it was first seen.
    pub created_at: Timestamp,
    /// The file that owns it.
    pub file: String,
    /// Canonical JSON of the manifest's last valid spec.
    pub spec: String,
    /// The module's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_path: Option<PathBuf>,
    /// Digest of that file when it could last be read.
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
    /// Its manifest is gone, and the removal was held back.
    #[serde(default)]
    pub held: bool,
    /// Its manifest is gone; it drains.
    #[serde(default)]
    pub deleting: bool,
    /// In the order in which they were made.
    #[serde(default)]
    pub revisions: Vec<RevisionRecord>,
    /// Since when conditions have their status. Reasons, messages and counters are computed
    /// again after a restart; storing them would write the file with every report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StoredCondition>,
}

/// What a rollback put in the place of the manifest's spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// Canonical JSON of the spec; the module is pinned if its URL can express that.
    pub spec: String,
    /// The module, whatever its URL resolves to now.
    pub module_digest: String,
    /// The generation that it was copied from.
    pub from_generation: i64,
}

/// One immutable, resolved generation of a policy: a `PolicyRevision`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevisionRecord {
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
    /// Fingerprint of the key that signed the module, if a signature was required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Evaluation deadline as it was resolved: the server's default may change later.
    pub timeout_ms: u32,
    /// Guest memory limit as it was resolved.
    pub memory_bytes: u64,
    /// Its phase; the record's `active` decides what is active.
    pub phase: Phase,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Since when a condition has its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredCondition {
    /// The condition's type.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When the status last changed.
    pub last_transition_time: Timestamp,
}

// === impl PolicyRecord ===

impl PolicyRecord {
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
            conditions: Vec::new(),
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

    /// The effective spec, parsed; or the error message of the parser.
    pub fn effective(&self, options: &parse::Options) -> Result<Parsed, String> {
        parse_spec(&self.key(), self.effective_spec(), options)
    }

    /// The module that a rollback pinned.
    pub fn pinned_digest(&self) -> Option<&str> {
        self.overridden.as_ref().map(|o| o.module_digest.as_str())
    }

    /// The revision that the dispatch points at.
    pub fn active_revision(&self) -> Option<&RevisionRecord> {
        self.revision(self.active.as_deref()?)
    }

    /// One of its revisions.
    pub fn revision(&self, name: &str) -> Option<&RevisionRecord> {
        self.revisions.iter().find(|revision| revision.name == name)
    }

    /// Route path of the active revision.
    pub fn active_path(&self) -> Option<String> {
        let revision = self.active_revision()?;
        Some(format!("{}/{}", self.policy, revision.name))
    }

    /// As much of the status as is stored.
    pub fn stored_status(&self) -> PolicyStatus {
        let active = self.active_revision().map(|revision| ActiveRevision {
            generation: revision.generation,
            revision: revision.name.clone(),
            since: self.active_since.map(Time),
            digest: Some(revision.module_digest.clone()),
        });
        let conditions = self.conditions.iter().map(|c| Condition {
            type_: c.r#type.clone(),
            status: c.status.clone(),
            reason: String::new(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(c.last_transition_time),
        });
        PolicyStatus {
            active,
            conditions: conditions.collect(),
            ..PolicyStatus::default()
        }
    }

    pub(super) fn manifest(&self, options: &parse::Options) -> Option<Manifest> {
        let parsed = parse_spec(&self.key(), &self.spec, options).ok()?;
        Some(Manifest::Policy(Box::new(parsed)))
    }

    pub(super) fn module_file(&self) -> Option<ModuleFile> {
        let digest = self.module_digest.as_deref().and_then(read_digest);
        Some(ModuleFile {
            path: self.module_path.clone()?,
            digest: digest.ok_or_else(|| "not read yet".to_owned()),
        })
    }

    /// Records the present content of the manifest; true if it is a new generation.
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

    /// Bytes that cannot be read now are unknown, which is no change. Bytes that were never
    /// known make no generation either: nothing was built from them.
    fn observe_module(&mut self, module: Option<&ModuleFile>) -> bool {
        let path = module.map(|module| module.path.clone());
        if self.module_path != path {
            // The digest is of another file.
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
}

// === impl RevisionRecord ===

impl RevisionRecord {
    /// A revision as the store keeps it.
    pub fn new(spec: &PolicyRevisionSpec, name: &str, created_at: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            generation: spec.generation,
            spec: canonical::to_string(&Value::Object(spec.policy.clone())),
            module_url: spec.module_url.clone(),
            module_digest: spec.module_digest.clone(),
            module_size: spec.module_size,
            abi: spec.abi.clone(),
            content_digest: spec.content_digest.clone(),
            settings: spec.settings.clone(),
            host_capabilities: spec.host_capabilities.clone(),
            signer: spec.signer.clone(),
            timeout_ms: spec.timeout_ms,
            memory_bytes: spec.memory_bytes,
            phase: Phase::Candidate,
            created_at,
        }
    }

    /// The revision as an object of `policy`; `None` if its spec is not a JSON object.
    pub fn spec(&self, policy: &PolicyRecord) -> Option<PolicyRevisionSpec> {
        let key = policy.key();
        let spec = json::from_str(&self.spec).ok()?;
        let kind = match key.namespace() {
            Some(_) => "AdmissionPolicy",
            None => "ClusterAdmissionPolicy",
        };
        Some(PolicyRevisionSpec {
            policy_ref: PolicyRef {
                kind: kind.to_owned(),
                name: key.name().to_owned(),
                uid: policy.uid.to_string(),
            },
            generation: self.generation,
            module_url: self.module_url.clone(),
            module_digest: self.module_digest.clone(),
            module_size: self.module_size,
            abi: self.abi.clone(),
            content_digest: self.content_digest.clone(),
            settings: self.settings.clone(),
            // Only in a cluster can settings come from Secrets.
            sealed_settings: None,
            settings_version: None,
            host_capabilities: self.host_capabilities.clone(),
            signer: self.signer.clone(),
            timeout_ms: self.timeout_ms,
            memory_bytes: self.memory_bytes,
            policy: spec.as_object()?.clone(),
        })
    }

    /// The spec that the revision was made from.
    pub fn parsed(&self, key: &PolicyKey, options: &parse::Options) -> Result<Parsed, String> {
        parse_spec(key, &self.spec, options)
    }
}

fn parse_spec(key: &PolicyKey, spec: &str, options: &parse::Options) -> Result<Parsed, String> {
    let value = json::from_str(spec).map_err(|e| e.to_string())?;
    parse::spec(key, &value, options).map_err(|e| e.to_string())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
