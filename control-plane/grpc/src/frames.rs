//! One published snapshot and the responses that were encoded for it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::SystemTime,
};

use assent_core::{
    Digest, Snapshot, Version,
    session::{Body, Response, StreamKind},
    snapshot::Delta,
};

use crate::{
    encode::{Content, Encoded, Header, Settings},
    hub::ControlPlane,
    metrics::Push,
    to_proto,
};

#[cfg(test)]
mod tests;

/// Responses cached per published snapshot. Clients hold a handful of versions at a time; a
/// client with an older one gets a response of its own.
const MAX_CACHED: usize = 64;

/// Differences to a claim with more policies than this are large.
const MAX_CLAIM_POLICIES: usize = 256;

/// Differences to a claim with more bytes of removed names than this are large.
const MAX_CLAIM_BYTES: usize = 16 << 10;

/// Large differences to a claim that are cached. After a fail-over thousands of clients claim
/// the same few sets; a client that makes up claims must not fill the memory.
const MAX_LARGE_CLAIMS: usize = 4;

/// A snapshot as it was published. Its cached responses are dropped when the last stream has
/// moved on to the next one.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) at: SystemTime,
    control_plane: Arc<ControlPlane>,
    frames: Mutex<HashMap<(Key, Settings), Slot>>,
    /// Whether a policy has settings that come from Secrets; found out when it matters.
    confidential: OnceLock<bool>,
    /// Made when the first caller asks for a module.
    modules: OnceLock<HashSet<Digest>>,
}

/// Filled by the first stream that needs it; others wait instead of encoding it again.
type Slot = Arc<OnceLock<Arc<Encoded>>>;

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Full(StreamKind),
    NoChange(StreamKind),
    Delta(StreamKind, Version),
    /// `names` is a digest over what is sent and removed: the names themselves would take as
    /// much memory as the response.
    Claim {
        kind: StreamKind,
        names: Digest,
        large: bool,
    },
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
            confidential: OnceLock::new(),
            modules: OnceLock::new(),
        }
    }

    /// The modules that the snapshot names: those of active, candidate and retired revisions.
    pub(crate) fn modules(&self) -> &HashSet<Digest> {
        self.modules.get_or_init(|| {
            let policies = self.snapshot.policies();
            policies.map(|p| p.content.module_digest).collect()
        })
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            version: self.snapshot.version().to_string(),
            control_plane: to_proto::control_plane(&self.control_plane),
            published_at: self.at,
        }
    }

    /// The encoded response, shared between streams that send the same.
    pub(crate) fn encoded(
        &self,
        kind: StreamKind,
        response: &Response,
        settings: Settings,
    ) -> Arc<Encoded> {
        let shared = response.to.version() == self.snapshot.version();
        let slot = shared.then(|| self.slot(Key::of(kind, &response.body), settings));
        match slot.flatten() {
            Some(slot) => slot
                .get_or_init(|| self.encode(kind, response, settings))
                .clone(),
            None => self.encode(kind, response, settings),
        }
    }

    fn slot(&self, key: Key, settings: Settings) -> Option<Slot> {
        // If nothing is withheld, all clients get the same.
        let settings = match self.is_confidential() {
            true => settings,
            false => Settings::Sent,
        };
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let large = frames.keys().filter(|(key, _)| key.is_large()).count();
        let full = frames.len() >= MAX_CACHED || (key.is_large() && large >= MAX_LARGE_CLAIMS);
        let key = (key, settings);
        if full && !frames.contains_key(&key) {
            return None;
        }
        Some(frames.entry(key).or_default().clone())
    }

    fn is_confidential(&self) -> bool {
        let mut policies = self.snapshot.policies();
        let is = || policies.any(|p| p.content.is_confidential());
        *self.confidential.get_or_init(is)
    }

    fn encode(&self, kind: StreamKind, response: &Response, settings: Settings) -> Arc<Encoded> {
        let content = match &response.body {
            Body::Full => Content::full(&response.to, settings),
            Body::NoChange => Content::no_change(),
            Body::Delta(from) => Content::delta(&response.to.delta_from(from), settings),
            Body::Claim(delta) => Content::delta(delta, settings),
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
    fn of(kind: StreamKind, body: &Body) -> Self {
        match body {
            Body::Full => Key::Full(kind),
            Body::NoChange => Key::NoChange(kind),
            Body::Delta(from) => Key::Delta(kind, from.version()),
            Body::Claim(delta) => Key::claim(kind, delta),
        }
    }

    /// Given the target, the names decide the content: all routes are sent in any case.
    fn claim(kind: StreamKind, delta: &Delta) -> Self {
        let sent = delta.policies.iter().map(|p| p.revision.as_str());
        let removed = delta.removed_revisions.iter().map(|r| r.as_str());
        let bytes: usize = removed.clone().map(str::len).sum();
        let mut names = Vec::new();
        for list in [
            &mut sent.clone() as &mut dyn Iterator<Item = &str>,
            &mut removed.clone(),
        ] {
            for name in list {
                names.extend_from_slice(&name.len().to_be_bytes());
                names.extend_from_slice(name.as_bytes());
            }
            // No name is this long: what follows is the other list.
            names.extend_from_slice(&usize::MAX.to_be_bytes());
        }
        Key::Claim {
            kind,
            names: Digest::of(&names),
            large: delta.policies.len() > MAX_CLAIM_POLICIES || bytes > MAX_CLAIM_BYTES,
        }
    }

    fn is_large(&self) -> bool {
        matches!(self, Key::Claim { large: true, .. })
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
