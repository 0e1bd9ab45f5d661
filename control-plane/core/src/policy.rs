//! One loadable revision of one policy, and the names that things have.

use std::sync::Arc;

use crate::digest::Digest;

mod content;
mod key;
mod requests;
mod revision;
#[cfg(test)]
mod tests;

pub use content::{
    Content, ContextResource, DEFAULT_MEMORY_BYTES, DEFAULT_TIMEOUT_MS, Limits, Mode,
};
pub use key::{PolicyKey, is_dns_subdomain, is_for_requests};
pub use requests::{DEFAULT_ORDER, HeaderMatch, RequestMatch, RequestScope};
pub use revision::{RevisionId, RevisionParts};

/// The PolicyServer of policies and replicas that name none.
pub const DEFAULT_SERVER: &str = "default";

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
        let content = Content::new(Digest::of(&[]), "", Arc::default());
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
