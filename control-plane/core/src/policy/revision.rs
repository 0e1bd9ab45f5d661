//! Names of revisions.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::PolicyKey;

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
