//! The only parser: from an object as a user wrote it to a valid value.
//!
//! All errors are collected, each with the path of its field. Nothing that a user wrote is
//! dropped: a field that is not known is an error.

mod metadata;
mod policy;
mod protected;
mod quantity;
mod reader;
mod rules;
mod server;

use std::{fmt, sync::Arc};

use assent_core::{
    Digest, Mode, PolicyKey,
    policy::{Content, ContextResource, Limits},
};
use serde_json::Value;

pub use self::{
    metadata::{Kind, Object, identify, rollback},
    policy::immutable_fields,
    protected::{NotAResource, ProtectedResources},
    server::ParsedServer,
};
use crate::{
    API_VERSION,
    rules::{FailurePolicy, LabelSelector, MatchCondition, MatchPolicy, Rule, SideEffects},
    tenancy::Reserved,
};

/// What depends on where the object is used.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Without a cluster: `file://` modules are allowed, and a missing namespace is `default`.
    pub standalone: bool,
    /// Namespaces that policies never apply to: a policy in one of them is refused.
    pub excluded_namespaces: Vec<String>,
    /// What mutating namespaced policies must not change. A spec that a revision stored is not checked: what is
    /// enforced stays enforced.
    pub protected_resources: ProtectedResources,
    /// Objects of the control plane that a PolicyServer must not refer to.
    pub reserved: Reserved,
}

/// An object that users write.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// `AdmissionPolicy` or `ClusterAdmissionPolicy`.
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
    /// Canonical JSON.
    pub settings: Arc<[u8]>,
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
    /// What else an evaluation changes.
    pub side_effects: SideEffects,
    /// How long the API server waits for an answer.
    pub timeout_seconds: u32,
    /// How long one evaluation may take, if the policy sets it.
    pub timeout_eval_seconds: Option<u32>,
    /// Replaces the rejection message if it is not empty.
    pub message: String,
    /// Entrypoint of a Rego module; empty is its first.
    pub entrypoint: String,
    /// Kubernetes kinds that the policy may read; cluster policies only.
    pub context_resources: Vec<ContextResource>,
    /// Whether audits of existing objects ask the policy; has no effect.
    pub background_audit: bool,
    /// After this time without success a candidate is stalled.
    pub progress_deadline_seconds: u32,
    /// Retired revisions that are kept.
    pub history_limit: usize,
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
        Kind::AdmissionPolicy | Kind::ClusterAdmissionPolicy => {
            policy(value, options).map(|policy| Manifest::Policy(Box::new(policy)))
        }
    }
}

/// Reads an `AdmissionPolicy` or a `ClusterAdmissionPolicy`.
pub fn policy(value: &Value, options: &Options) -> Result<Parsed, Errors> {
    policy::read(value, options)
}

/// Reads the spec of the policy `key` alone: what a revision kept.
pub fn spec(key: &PolicyKey, spec: &Value, options: &Options) -> Result<Parsed, Errors> {
    policy::read_spec(key, spec, options)
}

/// What an object says and Assent does not do. Looks at what was written: a default is nobody's wish.
pub fn warnings(object: &Value) -> Vec<String> {
    let written = |pointer: &str| object.pointer(pointer).filter(|value| !value.is_null());
    let audit = written("/spec/backgroundAudit").map(|_| {
        "spec.backgroundAudit: has no effect, because existing objects are not audited; remove it"
    });
    let context = written("/spec/contextAwareResources").and_then(Value::as_array);
    let context = context.filter(|kinds| !kinds.is_empty()).map(|_| {
        "spec.contextAwareResources: Kubernetes objects are not replicated to evaluators; the policy will not be accepted"
    });
    let warnings = audit.into_iter().chain(context);
    warnings.map(str::to_owned).collect()
}

// === impl Parsed ===

impl Parsed {
    /// Limits of one evaluation: the policy's deadline goes before the server's.
    pub fn limits(&self, server: Limits) -> Limits {
        let timeout_ms = self
            .timeout_eval_seconds
            .map_or(server.timeout_ms, |seconds| seconds * 1000);
        Limits {
            timeout_ms,
            ..server
        }
    }

    /// Everything of a revision that changes a verdict: the spec, what its module turned out
    /// to be, and resolved limits.
    pub fn content(&self, module: &Module, limits: Limits) -> Content {
        Content {
            module_digest: module.digest,
            abi: module.abi.clone(),
            settings_json: self.settings.clone(),
            mode: self.mode,
            mutating: self.mutating,
            limits,
            context_resources: self.context_resources.clone(),
            host_capabilities: module.host_capabilities.clone(),
            message: self.message.clone(),
            entrypoint: self.entrypoint.clone(),
        }
    }

    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self.key.namespace() {
            Some(_) => Kind::AdmissionPolicy,
            None => Kind::ClusterAdmissionPolicy,
        }
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
