//! Between revisions as the book keeps them and as evaluators get them.

use std::sync::Arc;

use assent_api::{
    Parsed,
    parse::{self, Module},
    revision::Phase,
};
use assent_core::{Policy, PolicyKey, policy::Limits, rollout::Stored};
use assent_local::objects::{Record, Revision};
use jiff::Timestamp;
use tracing::error;

/// Puts a revision together out of a spec and what its module turned out to be.
pub(super) fn make(
    record: &Record,
    parsed: &Parsed,
    module: &Module,
    limits: Limits,
    now: Timestamp,
) -> (Policy, Revision) {
    let content = parsed.content(module, limits);
    let uid = record.uid.to_string();
    let policy = Policy::new(record.key(), record.generation, &uid, content, module.size);
    let revision = Revision {
        name: policy.revision.short().to_owned(),
        generation: record.generation,
        spec: record.effective_spec().to_owned(),
        module_url: module.url.clone(),
        module_digest: module.digest.to_string(),
        module_size: module.size,
        abi: module.abi.clone(),
        content_digest: policy.content_digest.to_string(),
        settings: String::from_utf8_lossy(&parsed.settings).into_owned(),
        host_capabilities: module.host_capabilities.clone(),
        timeout_ms: limits.timeout_ms,
        memory_bytes: limits.memory_bytes,
        phase: Phase::Candidate,
        created_at: now,
    };
    (policy, revision)
}

/// What is stored of a policy, for a rollout to go on from.
pub(super) fn stored(record: &Record, options: &parse::Options) -> Stored {
    let mut stored = Stored::default();
    for revision in &record.revisions {
        let policy = match restore(record, revision, options) {
            Ok(policy) => Arc::new(policy),
            Err(why) => {
                error!(policy = %record.policy, revision = %revision.name, "a stored revision can't be used: {why}");
                continue;
            }
        };
        // The pointer decides what is active; phases are repaired from it.
        if record.active.as_deref() == Some(&revision.name) {
            stored.active = Some(policy);
        } else {
            match revision.phase {
                Phase::Candidate => stored.candidates.push(policy),
                Phase::Active | Phase::Draining => stored.draining.push(policy),
                Phase::History => {}
            }
        }
    }
    stored.candidates.sort_by_key(|p| p.generation);
    stored
}

/// The policy that a stored revision is; its digest must come out as it was.
fn restore(
    record: &Record,
    revision: &Revision,
    options: &parse::Options,
) -> Result<Policy, String> {
    let key = record.key();
    let parsed = read_spec(&key, &revision.spec, options)?;
    let module = Module {
        digest: revision.module_digest.parse().map_err(|e| format!("{e}"))?,
        size: revision.module_size,
        abi: revision.abi.clone(),
        host_capabilities: revision.host_capabilities.clone(),
        url: revision.module_url.clone(),
    };
    let limits = Limits {
        timeout_ms: revision.timeout_ms,
        memory_bytes: revision.memory_bytes,
    };
    let mut content = parsed.content(&module, limits);
    content.settings_json = revision.settings.as_bytes().into();
    let uid = record.uid.to_string();
    let policy = Policy::new(
        key,
        revision.generation,
        &uid,
        content,
        revision.module_size,
    );
    match policy.content_digest.to_string() == revision.content_digest {
        true => Ok(policy),
        false => Err("its content does not match its digest".into()),
    }
}

/// Reads a spec that was kept.
pub(super) fn read_spec(
    key: &PolicyKey,
    spec: &str,
    options: &parse::Options,
) -> Result<Parsed, String> {
    let value = assent_api::json::from_str(spec).map_err(|e| e.to_string())?;
    parse::spec(key, &value, options).map_err(|e| e.to_string())
}
