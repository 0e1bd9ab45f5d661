//! What the controller asks for, and what it is told of kinds and collections.

use std::sync::Arc;

use assent_api::parse::ContextLimits;
use assent_context::{CollectionId, CollectionSpec};
use assent_core::policy::ContextResource;

/// A kind that policies declare.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindRef {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
}

/// What the API server says about a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindState {
    /// It serves it.
    Served {
        /// `deployments`.
        plural: String,
        /// Whether its objects are in namespaces.
        namespaced: bool,
        /// Why the control plane may not read it.
        forbidden: Option<String>,
    },
    /// It does not.
    Absent,
}

/// The state of a collection at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectionState {
    /// There is no complete list yet.
    Syncing,
    /// It is complete and followed.
    Synced,
    /// It was complete, and the watch is interrupted.
    Stale,
    /// The control plane may no longer read it.
    Forbidden,
    /// The kind is not served.
    Absent,
    /// The list was given up, because it exceeds the limit.
    TooLarge,
}

/// What is known of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionReport {
    /// How complete it is.
    pub state: CollectionState,
    /// Why it is not synced.
    pub detail: String,
    /// Objects in it.
    pub objects: u64,
    /// Their bytes, as evaluators keep them.
    pub bytes: u64,
    /// Fields that take most of it, with their bytes.
    pub largest: Vec<(String, u64)>,
}

/// A collection to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedCollection {
    /// What is in it.
    pub spec: Arc<CollectionSpec>,
    /// Bytes at which its first list is given up; none for one that is served, which is never
    /// dropped for its size.
    pub limit: Option<u64>,
}

/// The collections that the evaluators of one PolicyServer get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The PolicyServer.
    pub server: String,
    /// Its collections.
    pub collections: Vec<Arc<CollectionSpec>>,
    /// Whether these are all: what an evaluator holds besides is forgotten.
    pub complete: bool,
    /// What its evaluators may hold.
    pub limits: ContextLimits,
}

/// Something that happened to a kind or a collection.
#[derive(Clone, Debug)]
pub enum ContextEvent {
    /// A kind was looked up, or changed.
    Kind(KindRef, KindState),
    /// A collection's state or size changed.
    Collection(CollectionId, CollectionReport),
}

/// What is to be followed now; absent parts did not change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ContextChanges {
    pub(crate) kinds: Option<Vec<KindRef>>,
    pub(crate) collections: Option<Vec<FollowedCollection>>,
    pub(crate) assignments: Vec<Assignment>,
}

// === impl KindRef ===

impl KindRef {
    /// The kind of a declaration.
    pub fn of(resource: &ContextResource) -> Self {
        Self {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        }
    }

    /// Plural name and scope of a kind that is not served: evaluators must hold a collection of
    /// it, so that reads are errors and not empty.
    pub(super) fn guess(&self, resource: &ContextResource) -> (String, bool) {
        let plural = format!("{}s", self.kind.to_lowercase());
        (plural, !resource.namespaces.is_empty())
    }

    /// The API group; empty is the core group.
    pub fn group(&self) -> &str {
        let group = self.api_version.split_once('/');
        group.map_or("", |(group, _)| group)
    }

    /// The version of the API.
    pub fn version(&self) -> &str {
        let version = self.api_version.split_once('/');
        version.map_or(&self.api_version, |(_, version)| version)
    }
}

impl std::fmt::Display for KindRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.kind, self.api_version)
    }
}

// === impl CollectionState ===

impl CollectionState {
    /// The name in statuses.
    pub fn as_str(self) -> &'static str {
        match self {
            CollectionState::Syncing => "Syncing",
            CollectionState::Synced => "Synced",
            CollectionState::Stale => "Stale",
            CollectionState::Forbidden => "Forbidden",
            CollectionState::Absent => "Absent",
            CollectionState::TooLarge => "TooLarge",
        }
    }
}
