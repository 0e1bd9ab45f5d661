//! Responses as bytes, encoded once and shared by every stream that sends them.
//!
//! The nonce is the only field that differs between streams. Fields of a message may come
//! in any order, so it is written apart, in front of the shared bytes.

use std::{sync::Arc, time::SystemTime};

use assent_core::{
    Policy,
    session::{Nonce, StreamKind},
    snapshot::{Delta, Snapshot},
};
use assent_proto::v1;
use assent_wire::to_proto as wire;
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::to_proto;

#[cfg(test)]
mod tests;

/// A larger manifest is split: a client's message limit is 4 MiB, and the last item of a
/// part may reach beyond this.
pub(crate) const MAX_PART_BYTES: usize = 3 << 20;

/// Smaller responses are copied into one chunk: that costs less than a second DATA frame.
const COPY_BYTES: usize = 4 << 10;

/// The default size of an HTTP/2 frame. A chunk is buffered whole as soon as one byte of
/// it fits into the client's window, so a larger one would hide that nobody reads.
const CHUNK_BYTES: usize = 16 << 10;

/// Tag and length of a nonce that is shorter than 128 bytes, and the prefix of a message.
const HEAD_BYTES: usize = 7;

/// One response without its nonce; a large one has several parts.
#[derive(Debug)]
pub(crate) struct Encoded {
    parts: Vec<Bytes>,
    nonce_tag: u8,
}

/// The fields that all responses of one version share.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) version: String,
    pub(crate) control_plane: v1::ControlPlane,
    pub(crate) published_at: SystemTime,
}

/// The content of a response in wire types.
#[derive(Debug, Default)]
pub(crate) struct Content {
    policies: Vec<v1::Policy>,
    removed_revisions: Vec<String>,
    routes: Vec<v1::Route>,
    removed_routes: Vec<String>,
    no_change: bool,
}

/// Whether a client gets settings that come from Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Settings {
    /// It is an evaluator of the PolicyServer, or an embedded one.
    Sent,
    /// It is a person, or an evaluator in a pod of somebody else.
    Withheld,
}

/// Fills parts one after the other.
struct Splitter {
    limit: usize,
    size: usize,
    parts: Vec<Content>,
}

// === impl Encoded ===

impl Encoded {
    pub(crate) fn new(kind: StreamKind, header: &Header, content: Content) -> Self {
        Self::with_limit(kind, header, content, MAX_PART_BYTES)
    }

    fn with_limit(kind: StreamKind, header: &Header, content: Content, limit: usize) -> Self {
        let contents = content.split(limit);
        let count = u32::try_from(contents.len()).expect("parts must be countable in 32 bits");
        let parts = if count > 1 { count } else { 0 };
        let numbered = contents.into_iter().zip(1u32..);
        let encode = |(content, number): (Content, u32)| {
            let part = if parts > 0 { number } else { 0 };
            content.encode(kind, header, part, parts)
        };
        Self {
            parts: numbered.map(encode).collect(),
            nonce_tag: nonce_tag(kind),
        }
    }

    /// Bytes on the wire without nonces and framing.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Chunks of a response body: gRPC messages with `nonce` in each.
    pub(crate) fn chunks(&self, nonce: Nonce, out: &mut impl Extend<Bytes>) {
        let nonce = nonce.to_string();
        for part in &self.parts {
            self.message(part, &nonce, out);
        }
    }

    fn message(&self, part: &Bytes, nonce: &str, out: &mut impl Extend<Bytes>) {
        let nonce_len = u8::try_from(nonce.len()).ok().filter(|len| *len < 128);
        let nonce_len = nonce_len.expect("a nonce must be shorter than 128 bytes");
        let len = 2 + nonce.len() + part.len();
        let copy = part.len() <= COPY_BYTES;
        let capacity = HEAD_BYTES + nonce.len() + if copy { part.len() } else { 0 };
        let mut head = BytesMut::with_capacity(capacity);
        head.put_u8(0);
        head.put_u32(u32::try_from(len).expect("a part must be smaller than 4 GiB"));
        head.put_u8(self.nonce_tag);
        head.put_u8(nonce_len);
        head.put_slice(nonce.as_bytes());
        if copy {
            head.put_slice(part);
            return out.extend([head.freeze()]);
        }
        out.extend([head.freeze()]);
        let starts = (0..part.len()).step_by(CHUNK_BYTES);
        out.extend(starts.map(|at| part.slice(at..part.len().min(at + CHUNK_BYTES))));
    }
}

// === impl Content ===

impl Content {
    /// The whole set.
    pub(crate) fn full(snapshot: &Snapshot, settings: Settings) -> Self {
        Self {
            policies: snapshot.policies().map(|p| settings.write(p)).collect(),
            routes: snapshot.routes().map(|r| wire::route(r)).collect(),
            ..Self::default()
        }
    }

    /// A difference.
    pub(crate) fn delta(delta: &Delta, settings: Settings) -> Self {
        let text = |path: &Arc<str>| path.to_string();
        Self {
            policies: delta.policies.iter().map(|p| settings.write(p)).collect(),
            removed_revisions: delta
                .removed_revisions
                .iter()
                .map(ToString::to_string)
                .collect(),
            routes: delta.routes.iter().map(|r| wire::route(r)).collect(),
            removed_routes: delta.removed_routes.iter().map(text).collect(),
            no_change: false,
        }
    }

    /// A confirmation.
    pub(crate) fn no_change() -> Self {
        Self {
            no_change: true,
            ..Self::default()
        }
    }

    /// As one message, however large.
    pub(crate) fn into_state_of_the_world(
        self,
        header: &Header,
        part: u32,
        parts: u32,
    ) -> v1::PolicyDiscoveryResponse {
        v1::PolicyDiscoveryResponse {
            version_info: header.version.clone(),
            policies: self.policies,
            nonce: String::new(),
            routes: self.routes,
            control_plane: Some(header.control_plane.clone()),
            part,
            parts,
        }
    }

    fn into_delta(
        self,
        header: &Header,
        part: u32,
        parts: u32,
    ) -> v1::DeltaPolicyDiscoveryResponse {
        v1::DeltaPolicyDiscoveryResponse {
            version_info: header.version.clone(),
            policies: self.policies,
            removed_revisions: self.removed_revisions,
            nonce: String::new(),
            routes: self.routes,
            no_change: self.no_change,
            control_plane: Some(header.control_plane.clone()),
            published_at: Some(to_proto::timestamp(header.published_at)),
            removed_routes: self.removed_routes,
            part,
            parts,
        }
    }

    fn encode(self, kind: StreamKind, header: &Header, part: u32, parts: u32) -> Bytes {
        let bytes = match kind {
            StreamKind::Delta => self.into_delta(header, part, parts).encode_to_vec(),
            StreamKind::StateOfTheWorld => {
                let message = self.into_state_of_the_world(header, part, parts);
                message.encode_to_vec()
            }
        };
        bytes.into()
    }

    fn split(self, limit: usize) -> Vec<Content> {
        let mut splitter = Splitter {
            limit,
            size: 0,
            parts: vec![Content {
                no_change: self.no_change,
                ..Content::default()
            }],
        };
        for policy in self.policies {
            splitter.room(policy.encoded_len()).policies.push(policy);
        }
        for revision in self.removed_revisions {
            splitter
                .room(revision.len())
                .removed_revisions
                .push(revision);
        }
        for route in self.routes {
            splitter.room(route.encoded_len()).routes.push(route);
        }
        for path in self.removed_routes {
            splitter.room(path.len()).removed_routes.push(path);
        }
        splitter.parts
    }
}

// === impl Settings ===

impl Settings {
    fn write(self, policy: &Policy) -> v1::Policy {
        match self {
            Settings::Sent => wire::policy(policy),
            Settings::Withheld => wire::withheld_policy(policy),
        }
    }
}

// === impl Splitter ===

impl Splitter {
    /// The part that takes an item of this size: the last one, or a new one.
    fn room(&mut self, item: usize) -> &mut Content {
        // Tag and length of an item: at most five bytes up to 2^28.
        let item = item + 5;
        if self.size > 0 && self.size + item > self.limit {
            self.parts.push(Content::default());
            self.size = 0;
        }
        self.size += item;
        self.parts.last_mut().expect("a splitter must have a part")
    }
}

/// Field number and wire type of the nonce.
fn nonce_tag(kind: StreamKind) -> u8 {
    const LENGTH_DELIMITED: u8 = 2;
    let field: u8 = match kind {
        StreamKind::Delta => 4,
        StreamKind::StateOfTheWorld => 3,
    };
    (field << 3) | LENGTH_DELIMITED
}
