//! Where the objects of collections go, and what else the control plane's parts pass on to each
//! other.

use std::{collections::BTreeSet, sync::Arc};

use assent_core::Digest;
use bytes::Bytes;

use crate::{CollectionId, CollectionSpec, Key, SyncState, Totals, feed::Change};

/// Where the objects of collections go, projected. Whoever follows the API server, or a
/// directory, fills it.
pub trait CollectionSink: Send + Sync + 'static {
    /// Adds a collection, which is empty and not synced. One that exists stays as it is.
    fn open(&self, spec: &Arc<CollectionSpec>);

    /// Removes a collection and its objects.
    fn close(&self, id: &CollectionId);

    /// Takes changes, which readers see together.
    fn apply(&self, id: &CollectionId, changes: Vec<Change>, version: &str);

    /// Takes the end of a complete list: objects that are not in it are gone.
    fn complete(
        &self,
        id: &CollectionId,
        keys: &BTreeSet<Key>,
        changes: Vec<Change>,
        version: &str,
    );

    /// Sets how complete a collection is.
    fn set_state(&self, id: &CollectionId, state: SyncState, detail: &str);

    /// Whether the object is held in exactly this form.
    fn holds(&self, id: &CollectionId, key: &Key, digest: Digest) -> bool;

    /// Whether there was a complete list.
    fn is_complete(&self, id: &CollectionId) -> bool;

    /// How much a collection holds.
    fn totals(&self, id: &CollectionId) -> Totals;

    /// Objects of a collection, at most `most` of them.
    fn sample(&self, id: &CollectionId, most: usize) -> Vec<Bytes>;
}

/// What a subject wants to do: the fields of a SubjectAccessReview.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessReview {
    /// The user.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Empty for cluster-scoped kinds, and for all namespaces.
    pub namespace: String,
    /// `get`, `create`.
    pub verb: String,
    /// Empty is the core group.
    pub group: String,
    /// `v1`.
    pub version: String,
    /// `pods`.
    pub resource: String,
    /// `status`.
    pub subresource: String,
    /// Empty is all.
    pub name: String,
}

/// The answer to an [`AccessReview`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AccessVerdict {
    pub allowed: bool,
    pub denied: bool,
    pub reason: String,
    pub evaluation_error: String,
}

/// Why a live read has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It may not be read.
    #[error("{0}")]
    Forbidden(String),
    /// It cannot be said now.
    #[error("{0}")]
    Unavailable(String),
}
