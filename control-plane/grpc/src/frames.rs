//! One published snapshot and the frames that were encoded for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::SystemTime,
};

use assent_core::{
    RevisionId, Snapshot, Version,
    session::{Body, Kind, Response},
    snapshot::Delta,
};

use crate::{
    encode::{Content, Encoded, Header},
    hub::ControlPlane,
    metrics::Push,
    to_proto,
};

#[cfg(test)]
mod tests;

/// Frames kept per published snapshot. Clients hold a handful of versions at a time; who
/// holds an older one gets its frames encoded for itself.
const MAX_CACHED: usize = 64;

/// Differences to a claim are shared where they are small: after a restart thousands of
/// clients claim the same.
const MAX_CLAIM_KEY: usize = 256;

/// Names that a client made up are kept only up to this many bytes.
const MAX_CLAIM_BYTES: usize = 16 << 10;

/// A snapshot as it was published. Its frames go when the last stream has turned to the
/// next one.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) at: SystemTime,
    control_plane: Arc<ControlPlane>,
    frames: Mutex<HashMap<Key, Slot>>,
}

/// Filled by the first who needs it; others wait for that instead of encoding too.
type Slot = Arc<OnceLock<Arc<Encoded>>>;

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Full(Kind),
    NoChange(Kind),
    Delta(Kind, Version),
    Claim(Kind, Vec<RevisionId>, Vec<RevisionId>),
}

// === impl Published ===

impl Published {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        at: SystemTime,
        control_plane: Arc<ControlPlane>,
    ) -> Self {
        Self {
            snapshot,
            at,
            control_plane,
            frames: Mutex::default(),
        }
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            version: self.snapshot.version().to_string(),
            control_plane: to_proto::control_plane(&self.control_plane),
            published_at: self.at,
        }
    }

    /// The response's frames, shared where others send the same.
    pub(crate) fn encoded(&self, kind: Kind, response: &Response) -> Arc<Encoded> {
        let shared = response.to.version() == self.snapshot.version();
        match Key::of(kind, &response.body)
            .filter(|_| shared)
            .and_then(|key| self.slot(key))
        {
            Some(slot) => slot.get_or_init(|| self.encode(kind, response)).clone(),
            None => self.encode(kind, response),
        }
    }

    fn slot(&self, key: Key) -> Option<Slot> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() >= MAX_CACHED && !frames.contains_key(&key) {
            return None;
        }
        Some(frames.entry(key).or_default().clone())
    }

    fn encode(&self, kind: Kind, response: &Response) -> Arc<Encoded> {
        let content = match &response.body {
            Body::Full => Content::full(&response.to),
            Body::NoChange => Content::no_change(),
            Body::Delta(from) => Content::delta(&response.to.delta_from(from)),
            Body::Claim(delta) => Content::delta(delta),
        };
        let header = Header {
            version: response.to.version().to_string(),
            ..self.header()
        };
        Arc::new(Encoded::new(kind, &header, content))
    }
}

// === impl Key ===

impl Key {
    fn of(kind: Kind, body: &Body) -> Option<Self> {
        match body {
            Body::Full => Some(Key::Full(kind)),
            Body::NoChange => Some(Key::NoChange(kind)),
            Body::Delta(from) => Some(Key::Delta(kind, from.version())),
            Body::Claim(delta) => Key::claim(kind, delta),
        }
    }

    /// Given the target, the names decide the content: all routes go in any case.
    fn claim(kind: Kind, delta: &Delta) -> Option<Self> {
        let removed: usize = delta
            .removed_revisions
            .iter()
            .map(|r| r.as_str().len())
            .sum();
        let names = delta.policies.len() + delta.removed_revisions.len();
        if names > MAX_CLAIM_KEY || removed > MAX_CLAIM_BYTES {
            return None;
        }
        let sent = delta.policies.iter().map(|p| p.revision.clone()).collect();
        Some(Key::Claim(kind, sent, delta.removed_revisions.clone()))
    }
}

/// What metrics call a response.
pub(crate) fn push(body: &Body) -> Push {
    match body {
        Body::Full => Push::Full,
        Body::NoChange => Push::NoChange,
        Body::Delta(_) | Body::Claim(_) => Push::Delta,
    }
}
