//! The wire to core types: everything that a client sends is bounded here.

use std::collections::BTreeMap;

use assent_core::{
    Digest, RevisionId,
    fleet::Node,
    policy::{DEFAULT_SERVER, is_dns_subdomain},
    session::{Answer, Failure, InitialRequest, MAX_REJECTED, Rejection, StreamKind},
};
use assent_proto::{google::rpc, v1};
use prost::Message as _;

#[cfg(test)]
mod tests;

/// The longest description of a client (R1). A real one has a few hundred bytes.
const MAX_NODE_BYTES: usize = 8 << 10;

/// The longest error text that is kept (R36). It ends in a status, which is bounded too.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// The most revisions that a first message may list (R36).
const MAX_HELD: usize = 20_000;

/// A request of either kind of stream.
pub(crate) trait Request: prost::Message + Default + Send + 'static {
    /// The kind of the stream.
    const KIND: StreamKind;

    /// The description of the client, which only the first message carries.
    fn take_node(&mut self) -> Option<v1::Node>;

    /// The request as the first message of a stream.
    fn into_initial(self) -> Result<InitialRequest, Error>;

    /// Whether [`Request::into_answer`] will truncate it.
    fn is_oversized(&self) -> bool;

    /// The request as a later message, truncated to what the protocol allows.
    fn into_answer(self) -> Answer;
}

/// Why a first message is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error("the first message must have `node`, which identifies the client")]
    NoNode,
    #[error("`node` has {0} bytes: at most {MAX_NODE_BYTES} are allowed")]
    LargeNode(usize),
    #[error(
        "`node.id` is not a DNS subdomain: use the replica's name, for example \"evaluator-0\""
    )]
    BadId,
    #[error(
        "`initial_revisions` has {0} entries: a client that holds more than {MAX_HELD} sends none"
    )]
    TooManyHeld(usize),
}

pub(crate) fn node(node: v1::Node) -> Result<Node, Error> {
    let size = node.encoded_len();
    if size > MAX_NODE_BYTES {
        return Err(Error::LargeNode(size));
    }
    if !is_dns_subdomain(&node.id) {
        return Err(Error::BadId);
    }
    Ok(Node {
        id: node.id,
        policy_server: server_or_default(node.policy_server),
        instance_uid: node.instance_uid,
        evaluator_version: node.evaluator_version,
        engine: node.engine,
        abis: node.abis,
        endpoint: node.endpoint,
        features: node.features,
    })
}

pub(crate) fn server_or_default(name: String) -> String {
    if name.is_empty() {
        return DEFAULT_SERVER.to_owned();
    }
    name
}

/// Truncates at a character boundary, so that the result is valid UTF-8.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_ERROR_BYTES {
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
        text.shrink_to_fit();
    }
    text
}

// === impl Request ===

impl Request for v1::DeltaPolicyDiscoveryRequest {
    const KIND: StreamKind = StreamKind::Delta;

    fn take_node(&mut self) -> Option<v1::Node> {
        self.node.take()
    }

    fn into_initial(self) -> Result<InitialRequest, Error> {
        if self.initial_revisions.len() > MAX_HELD {
            return Err(Error::TooManyHeld(self.initial_revisions.len()));
        }
        let held = self.initial_revisions.into_iter();
        Ok(InitialRequest {
            version: self.version_info,
            held: held
                .map(|(id, digest)| (id, held_digest(&digest)))
                .collect(),
        })
    }

    fn is_oversized(&self) -> bool {
        is_oversized(self.error_detail.as_ref(), &self.rejected)
    }

    fn into_answer(self) -> Answer {
        answer(
            self.response_nonce,
            self.version_info,
            self.error_detail,
            self.rejected,
            self.rejected_truncated,
        )
    }
}

impl Request for v1::PolicyDiscoveryRequest {
    const KIND: StreamKind = StreamKind::StateOfTheWorld;

    fn take_node(&mut self) -> Option<v1::Node> {
        self.node.take()
    }

    fn into_initial(self) -> Result<InitialRequest, Error> {
        Ok(InitialRequest {
            version: self.version_info,
            held: BTreeMap::new(),
        })
    }

    fn is_oversized(&self) -> bool {
        is_oversized(self.error_detail.as_ref(), &self.rejected)
    }

    fn into_answer(self) -> Answer {
        answer(
            self.response_nonce,
            self.version_info,
            self.error_detail,
            self.rejected,
            self.rejected_truncated,
        )
    }
}

/// A malformed digest becomes one of all zeros, which no content has: the revision is sent again,
/// or removed if it is not wanted.
fn held_digest(text: &str) -> Digest {
    text.parse().unwrap_or(Digest::from_raw([0; 32]))
}

fn answer(
    nonce: String,
    version: String,
    error: Option<rpc::Status>,
    mut rejected: Vec<v1::RejectedPolicy>,
    truncated: bool,
) -> Answer {
    let too_many = rejected.len() > MAX_REJECTED;
    rejected.truncate(MAX_REJECTED);
    Answer {
        nonce,
        version,
        error: error.map(failure),
        rejected: rejected.into_iter().map(rejection).collect(),
        truncated: truncated || too_many,
    }
}

fn is_oversized(error: Option<&rpc::Status>, rejected: &[v1::RejectedPolicy]) -> bool {
    let texts = rejected.iter().filter_map(|r| r.status.as_ref());
    rejected.len() > MAX_REJECTED
        || texts
            .chain(error)
            .any(|status| status.message.len() > MAX_ERROR_BYTES)
}

fn failure(status: rpc::Status) -> Failure {
    Failure {
        code: status.code,
        message: cut(status.message),
    }
}

fn rejection(rejected: v1::RejectedPolicy) -> Rejection {
    let stage = rejected.stage();
    Rejection {
        revision: RevisionId::from_wire(&rejected.revision),
        stage: assent_wire::from_proto::stage(stage),
        failure: rejected.status.map(failure).unwrap_or_default(),
        retryable: rejected.retryable,
    }
}
