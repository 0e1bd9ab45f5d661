//! The only parser: from an object as a user wrote it to a valid value.
//!
//! All errors are collected, each with the path of its field. Nothing that a user wrote is
//! dropped: a field that is not known is an error.

mod context;
mod metadata;
mod policy;
mod protected;
mod reader;
mod requests;
mod rules;
mod server;
mod settings;
mod source;

use std::{fmt, sync::Arc};

use assent_core::{
    Digest, Mode, PolicyKey,
    policy::{Content, ContextResource, Limits, RequestScope},
};
use serde_json::Value;

pub use self::{
    metadata::{Kind, Object, identify, rollback},
    policy::immutable_fields,
    protected::{NotAResource, ProtectedResources},
    server::{ContextLimits, ParsedServer},
};
use crate::{
    API_VERSION,
    rules::{FailurePolicy, LabelSelector, MatchCondition, MatchPolicy, Rule, SideEffects},
    settings::{SecretSettings, SettingsKey, SettingsSource},
    tenancy::Reserved,
};

/// Options that depend on where the object is used.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Without a cluster: `file://` modules are allowed, and a missing namespace is `default`.
    pub standalone: bool,
    /// Namespaces that policies never apply to: a policy in one of them is refused.
    pub excluded_namespaces: Vec<String>,
    /// What mutating namespaced policies must not change. A spec that a revision stored is not checked: what is
    /// enforced stays enforced.
    pub protected_resources: ProtectedResources,
    /// Objects of the control plane that PolicyServers and policies must not refer to.
    pub reserved: Reserved,
    /// Encrypts settings that come from Secrets; without it there are none.
    pub settings_key: Option<SettingsKey>,
}

/// An object that users write.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// A policy of any kind.
    Policy(Box<Parsed>),
    /// `PolicyServer`.
    Server(Box<ParsedServer>),
}

/// A valid policy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// Its name.
    pub key: PolicyKey,
    /// The PolicyServer that runs it.
    pub server: String,
    /// URL of the module; always with a scheme.
    pub module: String,
    /// Canonical JSON, without the values of Secrets.
    pub settings: Arc<[u8]>,
    /// Settings that come from Secrets.
    pub settings_from: Vec<SettingsSource>,
    /// Requests that it sees; at least one rule.
    pub rules: Vec<Rule>,
    /// Whether it may change objects.
    pub mutating: bool,
    /// What a denial does.
    pub mode: Mode,
    /// What happens to a request when no evaluator answers.
    pub failure_policy: FailurePolicy,
    /// Whether requests by equivalent API versions are seen too.
    pub match_policy: MatchPolicy,
    /// Conditions in CEL; not compiled here.
    pub match_conditions: Vec<MatchCondition>,
    /// Labels that the object must have.
    pub object_selector: Option<LabelSelector>,
    /// Labels that the object's namespace must have; cluster policies only.
    pub namespace_selector: Option<LabelSelector>,
    /// Side effects of an evaluation.
    pub side_effects: SideEffects,
    /// How long the API server waits for an answer.
    pub timeout_seconds: u32,
    /// How long one evaluation may take, if the policy sets it.
    pub timeout_eval_ms: Option<u32>,
    /// Replaces the rejection message if it is not empty.
    pub message: String,
    /// Entrypoint of a Rego module; empty is its first.
    pub entrypoint: String,
    /// Kubernetes kinds that the policy may read; a namespaced policy reads its own namespace.
    pub context_resources: Vec<ContextResource>,
    /// Whether audits of existing objects ask the policy; has no effect.
    pub background_audit: bool,
    /// After this time without success a candidate is stalled.
    pub progress_deadline_seconds: u32,
    /// Retired revisions that are kept.
    pub history_limit: usize,
    /// Which requests at Envoy it decides about; none for admission policies, which have rules.
    pub requests: Option<Arc<RequestScope>>,
    /// A requested rollback.
    pub rollback: Option<Rollback>,
    /// Canonical JSON of the spec with every default filled in: what a generation is counted
    /// by, and what a revision keeps.
    pub spec_json: Arc<[u8]>,
}

/// What a policy's module turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Digest of the portable module.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// How it is called.
    pub abi: String,
    /// Host calls that it may make.
    pub host_capabilities: Vec<String>,
    /// Fingerprint of the key that signed it, if a signature was required.
    pub signer: Option<String>,
    /// Where the same module can be pulled again.
    pub url: String,
    /// The settings that it accepted, if some come from Secrets.
    pub secret_settings: Option<SecretSettings>,
}

/// Where a rollback goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// The last revision that was active before.
    Previous,
    /// The revision of this generation.
    Generation(i64),
}

/// Everything that is wrong with an object; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Errors(pub Vec<FieldError>);

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.rules[0].resources`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Reads an object of any kind that users write.
pub fn manifest(value: &Value, options: &Options) -> Result<Manifest, Errors> {
    match metadata::kind(value)? {
        Kind::PolicyServer => {
            server::read(value, options).map(|server| Manifest::Server(Box::new(server)))
        }
        _ => policy(value, options).map(|policy| Manifest::Policy(Box::new(policy))),
    }
}

/// Reads a policy of any kind.
pub fn policy(value: &Value, options: &Options) -> Result<Parsed, Errors> {
    policy::read(value, options)
}

/// Reads the spec of the policy `key` alone: what a revision kept.
pub fn spec(key: &PolicyKey, spec: &Value, options: &Options) -> Result<Parsed, Errors> {
    policy::read_spec(key, spec, options)
}

/// Fields that have no effect. Only fields that the user wrote count, not defaults.
pub fn warnings(object: &Value) -> Vec<String> {
    let written = |pointer: &str| object.pointer(pointer).filter(|value| !value.is_null());
    let audit = written("/spec/backgroundAudit").map(|_| {
        "spec.backgroundAudit: has no effect, because existing objects are not audited; remove it"
    });
    audit.map(str::to_owned).into_iter().collect()
}

// === impl Parsed ===

impl Parsed {
    /// Limits of one evaluation: the policy's deadline overrides the server's.
    pub fn limits(&self, server: Limits) -> Limits {
        Limits {
            timeout_ms: self.timeout_eval_ms.unwrap_or(server.timeout_ms),
            ..server
        }
    }

    /// Everything of a revision that changes a verdict: the spec, what its module turned out
    /// to be, and resolved limits.
    pub fn content(&self, module: &Module, limits: Limits) -> Content {
        let secret = module.secret_settings.as_ref();
        Content {
            module_digest: module.digest,
            abi: module.abi.clone(),
            settings_json: secret.map_or_else(|| self.settings.clone(), |s| s.json.clone()),
            settings_salt: secret.map(|s| s.salt.clone()).unwrap_or_default(),
            mode: self.mode,
            mutating: self.mutating,
            limits,
            context_resources: self.context_resources.clone(),
            host_capabilities: module.host_capabilities.clone(),
            message: self.message.clone(),
            entrypoint: self.entrypoint.clone(),
            requests: self.requests.clone(),
        }
    }

    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.key)
    }
}

// === impl Errors ===

impl Errors {
    pub(crate) fn one(path: &str, message: impl Into<String>) -> Self {
        Self(vec![FieldError {
            path: path.to_owned(),
            message: message.into(),
        }])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.path, self.message)
    }
}

#[cfg(test)]
mod tests;
