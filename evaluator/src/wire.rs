//! The border to the wire: generated types stop here.

use std::sync::Arc;

use assent_core::{
    Digest, Mode, Policy, PolicyKey, RevisionId, Route, RouteState,
    policy::{Content, ContextResource, Limits},
};
use assent_proto::{google::rpc::Status, v1};
use prost::Message as _;

use crate::{
    announced::{Offer, Update},
    failure::{Failure, Stage},
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
    #[error("failed to read the set: route {0} has the unknown state {1}")]
    RouteState(String, i32),
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
            removed_revisions: names(&response.removed_revisions),
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
pub(crate) fn write_set<'a>(
    version: &assent_core::Version,
    policies: impl IntoIterator<Item = &'a Arc<Policy>>,
    routes: impl IntoIterator<Item = &'a Arc<Route>>,
) -> Vec<u8> {
    v1::DeltaPolicyDiscoveryResponse {
        version_info: version.to_string(),
        policies: policies
            .into_iter()
            .map(|policy| write_policy(policy))
            .collect(),
        routes: routes.into_iter().map(|route| write_route(route)).collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// Reads what [`write_set`] wrote.
pub(crate) fn read_set(bytes: &[u8]) -> Result<Update, String> {
    let message = v1::DeltaPolicyDiscoveryResponse::decode(bytes).map_err(|e| e.to_string())?;
    read(message)
        .map(|part| part.update)
        .map_err(|error| error.to_string())
}

/// The first message of a stream.
pub(crate) fn hello(
    node: v1::Node,
    client: String,
    hello: &Hello,
) -> v1::DeltaPolicyDiscoveryRequest {
    let revisions = hello.revisions.iter();
    v1::DeltaPolicyDiscoveryRequest {
        node: Some(node),
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
        stage: stage(failure.stage).into(),
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

fn stage(stage: Stage) -> v1::Stage {
    match stage {
        Stage::Fetch => v1::Stage::Fetch,
        Stage::Verify => v1::Stage::Verify,
        Stage::Compile => v1::Stage::Compile,
        Stage::Link => v1::Stage::Link,
        Stage::Instantiate => v1::Stage::Instantiate,
        Stage::Settings => v1::Stage::Settings,
        Stage::SelfTest => v1::Stage::Selftest,
        Stage::Swap => v1::Stage::Swap,
        Stage::Runtime => v1::Stage::Runtime,
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

fn names(list: &[String]) -> Vec<RevisionId> {
    list.iter()
        .map(|name| RevisionId::from_wire(name))
        .collect()
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
    Ok(Arc::new(match read_policy(policy, content_digest) {
        Ok(policy) => Offer::verified(policy),
        Err(why) => Offer {
            revision,
            content_digest,
            body: Err(why),
        },
    }))
}

fn read_policy(policy: v1::Policy, content_digest: Digest) -> Result<Policy, String> {
    let key = PolicyKey::parse(&policy.policy)
        .ok_or_else(|| format!("{:?} is not the name of a policy", policy.policy))?;
    let mode = match v1::Mode::try_from(policy.mode) {
        Ok(v1::Mode::Protect) => Mode::Protect,
        Ok(v1::Mode::Monitor) => Mode::Monitor,
        _ => {
            return Err(format!(
                "the mode {} is not known to this evaluator",
                policy.mode
            ));
        }
    };
    let module_digest = policy.module_digest.parse();
    let limits = policy.limits.map(limits);
    let context = policy
        .context_resources
        .into_iter()
        .map(|kind| ContextResource {
            api_version: kind.api_version,
            kind: kind.kind,
        });
    Ok(Policy {
        revision: RevisionId::from_wire(&policy.revision),
        policy: key,
        generation: policy.generation,
        content_digest,
        module_size: policy.module_size,
        content: Content {
            module_digest: module_digest
                .map_err(|error| format!("the module digest is {error}"))?,
            abi: policy.abi,
            settings_json: policy.settings_json.as_ref().into(),
            mode,
            mutating: policy.mutating,
            limits: limits.unwrap_or_default(),
            context_resources: context.collect(),
            host_capabilities: policy.host_capabilities,
            message: policy.message,
            entrypoint: policy.entrypoint,
        },
    })
}

/// Zero is "not said" on the wire; the digest covers what is meant.
fn limits(said: v1::EvaluationLimits) -> Limits {
    let default = Limits::default();
    Limits {
        timeout_ms: match said.timeout_ms {
            0 => default.timeout_ms,
            millis => millis,
        },
        memory_bytes: match said.memory_bytes {
            0 => default.memory_bytes,
            bytes => bytes,
        },
    }
}

fn write_policy(policy: &Policy) -> v1::Policy {
    let content = &policy.content;
    let context = content
        .context_resources
        .iter()
        .map(|kind| v1::ContextResource {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
    v1::Policy {
        revision: policy.revision.to_string(),
        policy: policy.policy.to_string(),
        generation: policy.generation,
        module_digest: content.module_digest.to_string(),
        content_digest: policy.content_digest.to_string(),
        abi: content.abi.clone(),
        settings_json: content.settings_json.to_vec().into(),
        mode: content.mode.number().into(),
        mutating: content.mutating,
        limits: Some(v1::EvaluationLimits {
            timeout_ms: content.limits.timeout_ms,
            memory_bytes: content.limits.memory_bytes,
        }),
        context_resources: context.collect(),
        host_capabilities: content.host_capabilities.clone(),
        message: content.message.clone(),
        module_size: policy.module_size,
        entrypoint: content.entrypoint.clone(),
    }
}

fn route(route: v1::Route) -> Result<Arc<Route>, Error> {
    let state = match v1::RouteState::try_from(route.state) {
        Ok(v1::RouteState::Active) => RouteState::Active,
        Ok(v1::RouteState::Candidate) => RouteState::Candidate,
        Ok(v1::RouteState::Retired) => RouteState::Retired,
        _ => return Err(Error::RouteState(route.path, route.state)),
    };
    Ok(Arc::new(Route {
        path: route.path.into(),
        revisions: names(&route.revisions),
        state,
    }))
}

fn write_route(route: &Route) -> v1::Route {
    v1::Route {
        path: route.path.to_string(),
        revisions: route.revisions.iter().map(ToString::to_string).collect(),
        state: route.state.number().into(),
    }
}
