//! One loadable revision of one policy, and the names that things have.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::digest::{Digest, Framed};

/// The evaluation deadline if neither the policy nor its server sets one.
pub const DEFAULT_TIMEOUT_MS: u32 = 2_000;

/// The memory limit of guests if neither the policy nor its server sets one.
pub const DEFAULT_MEMORY_BYTES: u64 = 128 << 20;

/// The PolicyServer of policies and replicas that name none.
pub const DEFAULT_SERVER: &str = "default";

/// Names a policy: `cluster/<name>` or `namespaced/<namespace>/<name>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey(Arc<str>);

/// Names a revision: `<policy>/<generation>-<first 8 of the policy's uid>`. The name is also
/// the path of the revision's route.
///
/// Ids are compared by their text, because snapshots are hashed in the byte order of names.
/// A name that another implementation sent may have a different form: it is kept, and has no
/// [parts](RevisionId::parts).
#[derive(Clone)]
pub struct RevisionId {
    text: Arc<str>,
    parts: Option<Arc<RevisionParts>>,
}

/// What a [`RevisionId`] is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionParts {
    /// The policy.
    pub policy: PolicyKey,
    /// The policy's `metadata.generation`.
    pub generation: i64,
    /// The first eight characters of the policy's uid. They distinguish the policy from an
    /// earlier one of the same name.
    pub uid8: Box<str>,
}

/// One immutable revision: everything that an evaluator needs to load and run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its unique name.
    pub revision: RevisionId,
    /// The policy that it is a revision of.
    pub policy: PolicyKey,
    /// The policy's `metadata.generation`.
    pub generation: i64,
    /// What it does.
    pub content: Content,
    /// The digest over [`Policy::content`].
    pub content_digest: Digest,
    /// Size of the portable module in bytes.
    pub module_size: u64,
}

/// Everything that changes a verdict, and nothing else: no name, no generation. A rollback
/// to old content is recognised by the equal digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The portable Wasm module.
    pub module_digest: Digest,
    /// `wapc`, `opa`, `gatekeeper` or `wasi`; others are for newer evaluators.
    pub abi: String,
    /// Canonical JSON.
    pub settings_json: Arc<[u8]>,
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextResource {
    /// `v1` or `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
}

// === impl PolicyKey ===

impl PolicyKey {
    /// A cluster-wide policy.
    pub fn cluster(name: &str) -> Self {
        Self(format!("cluster/{name}").into())
    }

    /// A policy of one namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self(format!("namespaced/{namespace}/{name}").into())
    }

    /// Reads `cluster/<name>` or `namespaced/<namespace>/<name>`.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let ok = match parts.as_slice() {
            ["cluster", name] => is_dns_subdomain(name),
            ["namespaced", namespace, name] => {
                is_dns_subdomain(namespace) && is_dns_subdomain(name)
            }
            _ => false,
        };
        ok.then(|| Self(text.into()))
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The policy's own name.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The namespace of a namespaced policy.
    pub fn namespace(&self) -> Option<&str> {
        self.0.strip_prefix("namespaced/")?.split('/').next()
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl RevisionId ===

impl RevisionId {
    /// The revision of `policy` at `generation`. `uid` distinguishes the policy from an
    /// earlier one of the same name.
    pub fn new(policy: &PolicyKey, generation: i64, uid: &str) -> Self {
        let uid8: String = uid.chars().filter(|c| *c != '-').take(8).collect();
        let parts = RevisionParts {
            policy: policy.clone(),
            generation,
            uid8: uid8.into(),
        };
        Self {
            text: parts.to_string().into(),
            parts: Some(Arc::new(parts)),
        }
    }

    /// A name that was received from a peer or read from disk.
    pub fn from_wire(text: &str) -> Self {
        Self {
            text: text.into(),
            parts: RevisionParts::parse(text).map(Arc::new),
        }
    }

    /// The whole name, which is also the path of its route.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The last segment, `<generation>-<uid8>`: the name of the stored revision.
    pub fn short(&self) -> &str {
        self.text.rsplit('/').next().unwrap_or_default()
    }

    /// The parts of the name, if it has the usual form.
    pub fn parts(&self) -> Option<&RevisionParts> {
        self.parts.as_deref()
    }

    /// The policy, if the name has the usual form.
    pub fn policy(&self) -> Option<&PolicyKey> {
        self.parts().map(|parts| &parts.policy)
    }

    /// The generation, if the name has the usual form.
    pub fn generation(&self) -> Option<i64> {
        self.parts().map(|parts| parts.generation)
    }
}

impl PartialEq for RevisionId {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RevisionId {}

impl PartialOrd for RevisionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RevisionId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for RevisionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl std::borrow::Borrow<str> for RevisionId {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl RevisionParts ===

impl RevisionParts {
    /// Reads `<policy>/<generation>-<uid8>`; none for a name that [`RevisionId::new`] would
    /// not have written.
    fn parse(text: &str) -> Option<Self> {
        let (policy, last) = text.rsplit_once('/')?;
        let (generation, uid8) = last.split_once('-')?;
        let parts = Self {
            policy: PolicyKey::parse(policy)?,
            generation: generation.parse().ok()?,
            uid8: uid8.into(),
        };
        (!uid8.is_empty() && parts.to_string() == text).then_some(parts)
    }
}

impl fmt::Display for RevisionParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}", self.policy, self.generation, self.uid8)
    }
}

// === impl Policy ===

impl Policy {
    /// Puts a revision together and computes its content digest.
    pub fn new(
        policy: PolicyKey,
        generation: i64,
        uid: &str,
        content: Content,
        module_size: u64,
    ) -> Self {
        Self {
            revision: RevisionId::new(&policy, generation, uid),
            policy,
            generation,
            content_digest: content.digest(),
            content,
            module_size,
        }
    }

    /// A revision of which only name and content digest are known. It can be announced, because
    /// a version is computed from these alone: replicas that hold the revision keep it, and one
    /// that lacks it rejects this revision, because its content cannot be verified.
    pub fn without_content(
        policy: PolicyKey,
        generation: i64,
        uid: &str,
        content_digest: Digest,
    ) -> Self {
        let content = Content {
            module_digest: Digest::of(&[]),
            abi: String::new(),
            settings_json: Arc::from(*b""),
            mode: Mode::default(),
            mutating: false,
            limits: Limits::default(),
            context_resources: Vec::new(),
            host_capabilities: Vec::new(),
            message: String::new(),
            entrypoint: String::new(),
        };
        Self {
            content_digest,
            ..Self::new(policy, generation, uid, content, 0)
        }
    }

    /// False if only name and content digest are known.
    pub fn has_content(&self) -> bool {
        !self.content.abi.is_empty()
    }
}

// === impl Content ===

impl Content {
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
        let context = self.context_resources.iter().map(ToString::to_string);
        sorted(&mut hash, context.collect());
        sorted(&mut hash, self.host_capabilities.clone());
        hash.field(self.message.as_bytes());
        hash.field(self.entrypoint.as_bytes());
        hash.digest()
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

impl fmt::Display for ContextResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version, self.kind)
    }
}

/// Whether `text` is a DNS subdomain as Kubernetes names are: at most 253 characters.
pub fn is_dns_subdomain(text: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn sorted(hash: &mut Framed, mut list: Vec<String>) {
    list.sort_unstable();
    hash.count(list.len());
    for item in &list {
        hash.field(item.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_names_are_parsed_into_their_parts() {
        let key = PolicyKey::namespaced("ns", "no-root");
        let id = RevisionId::new(&key, 12, "5f2a9c1e-0000-4000-8000-000000000000");
        assert_eq!(id.as_str(), "namespaced/ns/no-root/12-5f2a9c1e");
        assert_eq!(id.short(), "12-5f2a9c1e");
        let read = RevisionId::from_wire(id.as_str());
        assert_eq!((&read, read.parts()), (&id, id.parts()));
        assert_eq!((read.policy(), read.generation()), (Some(&key), Some(12)));
    }

    #[test]
    fn names_of_another_form_are_kept_without_parts() {
        for text in [
            "",
            "a",
            "cluster/a",
            "cluster/a/1",
            "cluster/a/1-",
            "cluster/a/01-x",
            "cluster/a/+1-x",
            "cluster/a/x-1",
            "elsewhere/a/1-x",
            "cluster/A/1-x",
        ] {
            let id = RevisionId::from_wire(text);
            assert_eq!((id.as_str(), id.parts()), (text, None));
        }
    }
}
