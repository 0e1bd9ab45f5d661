//! Collections and their marks on the wire.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use assent_context::{
    CollectionId, CollectionSpec, Mark, SyncState, Totals, collection::Prefixes,
    sink::AccessReview, spec,
};
use assent_core::{Digest, digest, policy::ContextResource};
use assent_proto::v1;
use bytes::Bytes;

/// Why a message about collections cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the name of a collection.
    #[error("{0:?} is not the id of a collection")]
    Id(String),
    /// The declaration is not one.
    #[error("the collection {0} is not understood: {1}")]
    Spec(String, spec::Error),
    /// The name is not the digest of the content.
    #[error("the collection {0} has the digest {1}")]
    OtherId(String, CollectionId),
    /// A root that is not 32 bytes long.
    #[error("the root of a collection has {0} bytes instead of 32")]
    Root(usize),
    /// A state that a later version added, or none.
    #[error("the state {0} of a collection is not known")]
    State(i32),
}

/// An access review, for the wire.
pub fn access_to_proto(review: AccessReview) -> v1::AccessQuery {
    let AccessReview {
        user,
        groups,
        namespace,
        verb,
        group,
        version,
        resource,
        subresource,
        name,
    } = review;
    v1::AccessQuery {
        user,
        groups,
        namespace,
        verb,
        group,
        version,
        resource,
        subresource,
        name,
    }
}

/// An access review.
pub fn access(query: v1::AccessQuery) -> AccessReview {
    AccessReview {
        user: query.user,
        groups: query.groups,
        namespace: query.namespace,
        verb: query.verb,
        group: query.group,
        version: query.version,
        resource: query.resource,
        subresource: query.subresource,
        name: query.name,
    }
}

/// A collection, for the wire.
pub fn collection_to_proto(spec: &CollectionSpec) -> v1::Collection {
    let declared = spec.declared().clone();
    v1::Collection {
        id: spec.id().to_string(),
        api_version: declared.api_version,
        kind: declared.kind,
        plural: spec.plural().to_owned(),
        namespaced: spec.namespaced(),
        fields: declared.fields,
        namespaces: declared.namespaces,
        label_selector: declared.label_selector,
    }
}

/// A collection whose id matches its content.
pub fn collection(collection: v1::Collection) -> Result<Arc<CollectionSpec>, Error> {
    let declared = ContextResource {
        api_version: collection.api_version,
        kind: collection.kind,
        fields: collection.fields,
        namespaces: collection.namespaces,
        label_selector: collection.label_selector,
    };
    let spec = CollectionSpec::new(&declared, &collection.plural, collection.namespaced);
    let spec = spec.map_err(|error| Error::Spec(collection.id.clone(), error))?;
    if spec.id().to_string() != collection.id {
        return Err(Error::OtherId(collection.id, spec.id()));
    }
    Ok(Arc::new(spec))
}

/// The id of a collection.
pub fn collection_id(text: &str) -> Result<CollectionId, Error> {
    let id = text.parse();
    id.map_err(|_: digest::Error| Error::Id(text.to_owned()))
}

/// A root.
pub fn root(bytes: &[u8]) -> Result<Digest, Error> {
    let raw = bytes.try_into().map_err(|_| Error::Root(bytes.len()))?;
    Ok(Digest::from_raw(raw))
}

/// A root, for the wire.
pub fn root_to_proto(root: &Digest) -> Bytes {
    Bytes::copy_from_slice(root.as_bytes())
}

/// What a client holds of a collection; with `buckets` if the control plane asked for them.
pub fn held_to_proto(
    id: CollectionId,
    root: Option<&Digest>,
    buckets: Option<&Prefixes>,
) -> v1::CollectionHeld {
    let buckets = buckets.into_iter().flatten();
    v1::CollectionHeld {
        id: id.to_string(),
        root: root.map(root_to_proto).unwrap_or_default(),
        buckets: buckets.map(|b| Bytes::copy_from_slice(b)).collect(),
    }
}

/// A mark, for the wire.
pub fn mark_to_proto(mark: &Mark) -> v1::CollectionMark {
    v1::CollectionMark {
        collection: mark.collection.to_string(),
        root: root_to_proto(&mark.root),
        resource_version: mark.resource_version.clone(),
        observed_at: Some(timestamp(mark.observed_at)),
        state: sync_state_to_proto(mark.state).into(),
        detail: mark.detail.clone(),
        objects: mark.totals.objects,
        bytes: mark.totals.bytes,
        age_ms: u64::try_from(mark.age.as_millis()).unwrap_or(u64::MAX),
    }
}

/// A mark.
pub fn mark(mark: v1::CollectionMark) -> Result<Mark, Error> {
    Ok(Mark {
        collection: collection_id(&mark.collection)?,
        root: root(&mark.root)?,
        state: sync_state(mark.state)?,
        resource_version: mark.resource_version,
        observed_at: mark.observed_at.map_or(SystemTime::UNIX_EPOCH, system_time),
        detail: mark.detail,
        totals: Totals {
            objects: mark.objects,
            bytes: mark.bytes,
        },
        age: Duration::from_millis(mark.age_ms),
    })
}

/// How complete a collection is.
pub fn sync_state(state: i32) -> Result<SyncState, Error> {
    match v1::SyncState::try_from(state) {
        Ok(v1::SyncState::Syncing) => Ok(SyncState::Syncing),
        Ok(v1::SyncState::Synced) => Ok(SyncState::Synced),
        Ok(v1::SyncState::Stale) => Ok(SyncState::Stale),
        Ok(v1::SyncState::Forbidden) => Ok(SyncState::Forbidden),
        Ok(v1::SyncState::Absent) => Ok(SyncState::Absent),
        Ok(v1::SyncState::Unspecified) | Err(_) => Err(Error::State(state)),
    }
}

/// How complete a collection is, for the wire.
pub fn sync_state_to_proto(state: SyncState) -> v1::SyncState {
    match state {
        SyncState::Syncing => v1::SyncState::Syncing,
        SyncState::Synced => v1::SyncState::Synced,
        SyncState::Stale => v1::SyncState::Stale,
        SyncState::Forbidden => v1::SyncState::Forbidden,
        SyncState::Absent => v1::SyncState::Absent,
    }
}

fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    prost_types::Timestamp::from(time)
}

/// A time that cannot be represented is the oldest: it must not look fresh.
fn system_time(time: prost_types::Timestamp) -> SystemTime {
    SystemTime::try_from(time).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
