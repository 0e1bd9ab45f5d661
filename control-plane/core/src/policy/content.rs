//! What a revision does: everything that changes a verdict.

use std::{fmt, sync::Arc};

use super::RequestScope;
use crate::digest::{Digest, Framed};

/// The evaluation deadline if neither the policy nor its server sets one.
pub const DEFAULT_TIMEOUT_MS: u32 = 2_000;

/// The memory limit of guests if neither the policy nor its server sets one.
pub const DEFAULT_MEMORY_BYTES: u64 = 128 << 20;

/// Everything that changes a verdict, and nothing else: no name, no generation. A rollback
/// to old content is recognised by the equal digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    /// The portable Wasm module.
    pub module_digest: Digest,
    /// `wapc`, `opa`, `gatekeeper` or `wasi`; others are for newer evaluators.
    pub abi: String,
    /// Canonical JSON.
    pub settings_json: Arc<[u8]>,
    /// Keeps values of Secrets among the settings from being guessed from the digest; empty if
    /// there are none.
    pub settings_salt: Arc<[u8]>,
    /// What a denial does.
    pub mode: Mode,
    /// Whether the policy may change objects.
    pub mutating: bool,
    /// Resolved limits: defaults are filled in.
    pub limits: Limits,
    /// Kubernetes kinds that the policy may read.
    pub context_resources: Vec<ContextResource>,
    /// Host calls that the policy may make.
    pub host_capabilities: Vec<String>,
    /// Replaces the policy's own rejection message, unless it is empty.
    pub message: String,
    /// Entrypoint of a Rego module; empty is its first.
    pub entrypoint: String,
    /// Which requests at Envoy it decides about; none for admission policies.
    pub requests: Option<Arc<RequestScope>>,
}

/// What a denial does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It denies.
    #[default]
    Protect,
    /// It is counted, and the request goes through.
    Monitor,
}

/// Limits of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Deadline in milliseconds.
    pub timeout_ms: u32,
    /// Cap on guest memory.
    pub memory_bytes: u64,
}

/// A Kubernetes kind that a policy may read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextResource {
    /// `v1` or `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// Dotted paths that the policy reads; none: whole objects. Sorted, without duplicates.
    pub fields: Vec<String>,
    /// Only objects of these namespaces; none: all. Sorted, without duplicates.
    pub namespaces: Vec<String>,
    /// Only objects with these labels, as `kubectl` writes selectors; empty: all.
    pub label_selector: String,
}

// === impl Content ===

impl Content {
    /// A module with its settings; everything else has its default.
    pub fn new(module_digest: Digest, abi: &str, settings_json: Arc<[u8]>) -> Self {
        Self {
            module_digest,
            abi: abi.to_owned(),
            settings_json,
            settings_salt: Arc::default(),
            mode: Mode::default(),
            mutating: false,
            limits: Limits::default(),
            context_resources: Vec::new(),
            host_capabilities: Vec::new(),
            message: String::new(),
            entrypoint: String::new(),
            requests: None,
        }
    }

    /// SHA-256 over every field, framed; lists are sorted by bytes.
    pub fn digest(&self) -> Digest {
        let mut hash = Framed::new("assent.policy.v1");
        hash.field(self.module_digest.to_string().as_bytes());
        hash.field(self.abi.as_bytes());
        hash.field(&self.settings_json);
        hash.u8(self.mode.number());
        hash.u8(self.mutating.into());
        hash.u32(self.limits.timeout_ms);
        hash.u64(self.limits.memory_bytes);
        let context = self.context_resources.iter();
        sorted(&mut hash, context.map(ContextResource::hashed).collect());
        let capabilities = self.host_capabilities.iter();
        sorted(&mut hash, capabilities.map(|c| c.clone().into()).collect());
        hash.field(self.message.as_bytes());
        hash.field(self.entrypoint.as_bytes());
        // Fields of later versions are covered only if they differ from their default.
        if self.is_confidential() {
            hash.field(b"settings_salt");
            hash.field(&self.settings_salt);
        }
        if let Some(requests) = &self.requests {
            requests.hash(&mut hash);
        }
        hash.digest()
    }

    /// Whether some of the settings come from Secrets: they must not be shown or written to a
    /// disk in clear.
    pub fn is_confidential(&self) -> bool {
        !self.settings_salt.is_empty()
    }
}

/// Without the settings if they are confidential: formatted content ends up in logs.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = String::from_utf8_lossy(&self.settings_json);
        let settings = match self.is_confidential() {
            true => "(confidential)",
            false => settings.as_ref(),
        };
        f.debug_struct("Content")
            .field("module_digest", &self.module_digest)
            .field("abi", &self.abi)
            .field("settings_json", &settings)
            .field("mode", &self.mode)
            .field("mutating", &self.mutating)
            .field("limits", &self.limits)
            .field("context_resources", &self.context_resources)
            .field("host_capabilities", &self.host_capabilities)
            .field("message", &self.message)
            .field("entrypoint", &self.entrypoint)
            .finish_non_exhaustive()
    }
}

// === impl Mode ===

impl Mode {
    /// The number of the wire's enum.
    pub fn number(self) -> u8 {
        match self {
            Mode::Protect => 1,
            Mode::Monitor => 2,
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout_ms: DEFAULT_TIMEOUT_MS,
            memory_bytes: DEFAULT_MEMORY_BYTES,
        }
    }
}

// === impl ContextResource ===

impl ContextResource {
    /// What the content digest covers. Scope and projection are left out if they are the
    /// default, so that digests of policies without them stay what they were. No name contains
    /// the zero byte that separates them.
    fn hashed(&self) -> Vec<u8> {
        let mut bytes = self.to_string().into_bytes();
        let lists = [&self.fields, &self.namespaces];
        if lists.iter().all(|list| list.is_empty()) && self.label_selector.is_empty() {
            return bytes;
        }
        bytes.push(0);
        for list in lists {
            let mut list: Vec<&str> = list.iter().map(String::as_str).collect();
            list.sort_unstable();
            bytes.extend(length(list.len()));
            for item in list {
                bytes.extend(length(item.len()));
                bytes.extend(item.as_bytes());
            }
        }
        bytes.extend(self.label_selector.as_bytes());
        bytes
    }
}

impl fmt::Display for ContextResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

fn length(length: usize) -> [u8; 4] {
    let length = u32::try_from(length).expect("a declaration must be shorter than 2^32 bytes");
    length.to_be_bytes()
}

fn sorted(hash: &mut Framed, mut list: Vec<Vec<u8>>) {
    list.sort_unstable();
    hash.count(list.len());
    for item in &list {
        hash.field(item);
    }
}
