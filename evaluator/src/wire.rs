//! The border to the wire: generated types stop here.

use std::sync::Arc;

use assent_core::{Digest, Policy, RevisionId, Route, Version};
use assent_proto::{google::rpc::Status, v1};
use assent_wire::{from_proto, to_proto};
use prost::Message as _;

use crate::{
    announced::{Offer, Update},
    failure::Failure,
    sync::{
        machine::{Answer, Hello, Timing},
        parts::Part,
    },
};

#[cfg(test)]
mod tests;

/// Why a response can't be read. It is refused as a whole.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read the set: revision {0}: its content digest is {1}")]
    ContentDigest(String, assent_core::digest::Error),
    #[error("failed to read the set: {0}")]
    RouteState(#[from] from_proto::UnknownRouteState),
    #[error("failed to read the set: a revision without a name")]
    Nameless,
}

// gRPC's own numbers for the two kinds of refusal that people see.
const FAILED_PRECONDITION: i32 = 9;
const UNAVAILABLE: i32 = 14;

/// Reads one message of a response.
pub(crate) fn read(response: v1::DeltaPolicyDiscoveryResponse) -> Result<Part, Error> {
    let bytes = response.encoded_len();
    Ok(Part {
        nonce: response.nonce,
        number: response.part,
        of: response.parts,
        lease_transitions: response.control_plane.map(|from| from.lease_transitions),
        bytes,
        update: Update {
            version: response.version_info,
            offers: response
                .policies
                .into_iter()
                .map(offer)
                .collect::<Result<_, _>>()?,
            removed_revisions: from_proto::revisions(&response.removed_revisions),
            routes: response
                .routes
                .into_iter()
                .map(route)
                .collect::<Result<_, _>>()?,
            removed_routes: response
                .removed_routes
                .into_iter()
                .map(Into::into)
                .collect(),
            no_change: response.no_change,
        },
    })
}

/// The same set as one message, as it is kept on disk.
pub(crate) fn write_set(
    version: &Version,
    policies: &[&Arc<Policy>],
    routes: &[&Arc<Route>],
) -> Vec<u8> {
    write(
        version,
        policies.iter().map(|p| to_proto::policy(p)),
        routes,
    )
}

/// The same without settings that come from Secrets. Their revisions are rejected when it is read.
pub(crate) fn write_withheld_set(
    version: &Version,
    policies: &[&Arc<Policy>],
    routes: &[&Arc<Route>],
) -> Vec<u8> {
    let policies = policies.iter().map(|p| to_proto::withheld_policy(p));
    write(version, policies, routes)
}

fn write(
    version: &Version,
    policies: impl Iterator<Item = v1::Policy>,
    routes: &[&Arc<Route>],
) -> Vec<u8> {
    v1::DeltaPolicyDiscoveryResponse {
        version_info: version.to_string(),
        policies: policies.collect(),
        routes: routes.iter().map(|route| to_proto::route(route)).collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// Reads what [`write_set`] wrote.
pub(crate) fn read_set(bytes: &[u8]) -> Result<Update, String> {
    let message = v1::DeltaPolicyDiscoveryResponse::decode(bytes).map_err(|e| e.to_string())?;
    let mut update = read(message).map_err(|error| error.to_string())?.update;
    for offer in &mut update.offers {
        // This evaluator did not write them: the control plane gives them to it.
        Arc::make_mut(offer).withheld = false;
    }
    Ok(update)
}

/// The first message of a stream.
pub(crate) fn hello(
    node: v1::Node,
    client: String,
    hello: &Hello,
) -> v1::DeltaPolicyDiscoveryRequest {
    let revisions = hello.revisions.iter();
    v1::DeltaPolicyDiscoveryRequest {
        node: Some(v1::Node {
            lease_transitions: hello.lease_transitions,
            ..node
        }),
        client_address: client,
        version_info: hello
            .version
            .map(|version| version.to_string())
            .unwrap_or_default(),
        initial_revisions: revisions
            .map(|(id, digest)| (id.to_string(), digest.to_string()))
            .collect(),
        ..Default::default()
    }
}

/// ACK or NACK.
pub(crate) fn answer(answer: Answer) -> v1::DeltaPolicyDiscoveryRequest {
    let code = match answer.rejected.iter().all(|(_, failure)| failure.retryable) {
        true if !answer.rejected.is_empty() => UNAVAILABLE,
        _ => FAILED_PRECONDITION,
    };
    v1::DeltaPolicyDiscoveryRequest {
        version_info: answer
            .version
            .map(|version| version.to_string())
            .unwrap_or_default(),
        response_nonce: answer.nonce,
        error_detail: answer.error.map(|message| status(code, message)),
        rejected: answer.rejected.into_iter().map(rejected).collect(),
        rejected_truncated: answer.truncated,
        timing: Some(timing(answer.timing)),
        ..Default::default()
    }
}

fn rejected((revision, failure): (RevisionId, Failure)) -> v1::RejectedPolicy {
    let code = if failure.retryable {
        UNAVAILABLE
    } else {
        FAILED_PRECONDITION
    };
    v1::RejectedPolicy {
        revision: revision.to_string(),
        stage: to_proto::stage(failure.stage).into(),
        status: Some(status(code, failure.message)),
        retryable: failure.retryable,
    }
}

fn status(code: i32, message: String) -> Status {
    Status {
        code,
        message,
        ..Default::default()
    }
}

fn timing(timing: Timing) -> v1::ApplyTiming {
    let Timing {
        fetch_us,
        compile_us,
        self_test_us,
        swap_us,
    } = timing;
    v1::ApplyTiming {
        fetch_us,
        compile_us,
        self_test_us,
        swap_us,
    }
}

/// The content digest must be readable, because the version covers it. Whatever else is
/// not understood refuses this revision alone.
fn offer(policy: v1::Policy) -> Result<Arc<Offer>, Error> {
    if policy.revision.is_empty() {
        return Err(Error::Nameless);
    }
    let content_digest: Digest = policy
        .content_digest
        .parse()
        .map_err(|error| Error::ContentDigest(policy.revision.clone(), error))?;
    let revision = RevisionId::from_wire(&policy.revision);
    Ok(Arc::new(match from_proto::policy(policy, content_digest) {
        Ok(policy) => Offer::verified(policy),
        Err(why) => Offer {
            revision,
            content_digest,
            withheld: why == from_proto::PolicyError::SettingsWithheld,
            body: Err(why.to_string()),
        },
    }))
}

fn route(route: v1::Route) -> Result<Arc<Route>, Error> {
    Ok(Arc::new(from_proto::route(route)?))
}
