//! The wire to domain types. A sender may be newer than the reader: what the reader does not
//! understand is an error and never a default.

use std::sync::Arc;

use assent_core::{
    Digest, Mode, Policy, PolicyKey, RevisionId, Route, RouteState,
    policy::{Content, ContextResource, Limits},
    session::Stage,
};
use assent_proto::v1;

use crate::requests;

/// Why a revision cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The policy's name is not one.
    #[error("{0:?} is not the name of a policy")]
    Name(String),
    /// A mode that a later version added, or none.
    #[error("the mode {0} is not known to this evaluator")]
    Mode(i32),
    /// The module's digest is malformed.
    #[error("the module digest is {0}")]
    ModuleDigest(assent_core::digest::Error),
    /// The settings were left out.
    #[error(
        "some of its settings come from Secrets and were withheld: injected evaluators do not get \
         them, and they are written to a disk only with a state key"
    )]
    SettingsWithheld,
}

/// A route in a state that a later version added, or in none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {path} has the unknown state {state}")]
pub struct UnknownRouteState {
    /// The route's path.
    pub path: String,
    /// The number of its state.
    pub state: i32,
}

/// A revision. The caller has read its content digest, which it needs even if this fails;
/// whether it matches the content is the caller's to verify.
pub fn policy(policy: v1::Policy, content_digest: Digest) -> Result<Policy, PolicyError> {
    let Some(key) = PolicyKey::parse(&policy.policy) else {
        return Err(PolicyError::Name(policy.policy));
    };
    let mode = match v1::Mode::try_from(policy.mode) {
        Ok(v1::Mode::Protect) => Mode::Protect,
        Ok(v1::Mode::Monitor) => Mode::Monitor,
        Ok(v1::Mode::Unspecified) | Err(_) => return Err(PolicyError::Mode(policy.mode)),
    };
    if policy.settings_withheld {
        return Err(PolicyError::SettingsWithheld);
    }
    let module_digest = policy.module_digest.parse();
    let context = policy.context_resources.into_iter();
    Ok(Policy {
        revision: RevisionId::from_wire(&policy.revision),
        policy: key,
        generation: policy.generation,
        content_digest,
        module_size: policy.module_size,
        content: Content {
            module_digest: module_digest.map_err(PolicyError::ModuleDigest)?,
            abi: policy.abi,
            settings_json: policy.settings_json.as_ref().into(),
            settings_salt: policy.settings_salt.into(),
            mode,
            mutating: policy.mutating,
            limits: policy.limits.map(limits).unwrap_or_default(),
            context_resources: context.map(context_resource).collect(),
            host_capabilities: policy.host_capabilities,
            message: policy.message,
            entrypoint: policy.entrypoint,
            requests: policy.requests.map(requests::from_proto).map(Arc::new),
        },
    })
}

/// A route.
pub fn route(route: v1::Route) -> Result<Route, UnknownRouteState> {
    let state = match v1::RouteState::try_from(route.state) {
        Ok(v1::RouteState::Active) => RouteState::Active,
        Ok(v1::RouteState::Candidate) => RouteState::Candidate,
        Ok(v1::RouteState::Retired) => RouteState::Retired,
        Ok(v1::RouteState::Unspecified) | Err(_) => {
            return Err(UnknownRouteState {
                path: route.path,
                state: route.state,
            });
        }
    };
    Ok(Route {
        path: route.path.into(),
        revisions: revisions(&route.revisions),
        state,
    })
}

/// Names of revisions.
pub fn revisions(names: &[String]) -> Vec<RevisionId> {
    let names = names.iter();
    names.map(|name| RevisionId::from_wire(name)).collect()
}

/// The stage at which a revision failed to load.
pub fn stage(stage: v1::Stage) -> Stage {
    match stage {
        v1::Stage::Unspecified => Stage::Unspecified,
        v1::Stage::Fetch => Stage::Fetch,
        v1::Stage::Verify => Stage::Verify,
        v1::Stage::Compile => Stage::Compile,
        v1::Stage::Link => Stage::Link,
        v1::Stage::Instantiate => Stage::Instantiate,
        v1::Stage::Settings => Stage::Settings,
        v1::Stage::Selftest => Stage::SelfTest,
        v1::Stage::Swap => Stage::Swap,
        v1::Stage::Runtime => Stage::Runtime,
        v1::Stage::Context => Stage::Context,
    }
}

/// Zero means that the sender left the limit to the default, which the content digest covers.
fn limits(limits: v1::EvaluationLimits) -> Limits {
    let default = Limits::default();
    Limits {
        timeout_ms: match limits.timeout_ms {
            0 => default.timeout_ms,
            millis => millis,
        },
        memory_bytes: match limits.memory_bytes {
            0 => default.memory_bytes,
            bytes => bytes,
        },
    }
}

fn context_resource(resource: v1::ContextResource) -> ContextResource {
    ContextResource {
        api_version: resource.api_version,
        kind: resource.kind,
        fields: resource.fields,
        namespaces: resource.namespaces,
        label_selector: resource.label_selector,
    }
}
