//! Domain types to the wire.

use assent_core::{
    Mode, Policy, Route, RouteState,
    policy::{ContextResource, Limits},
    session::Stage,
};
use assent_proto::v1;
use bytes::Bytes;

use crate::requests;

/// A revision.
pub fn policy(policy: &Policy) -> v1::Policy {
    let content = &policy.content;
    v1::Policy {
        revision: policy.revision.to_string(),
        policy: policy.policy.to_string(),
        generation: policy.generation,
        module_digest: content.module_digest.to_string(),
        content_digest: policy.content_digest.to_string(),
        abi: content.abi.clone(),
        settings_json: Bytes::copy_from_slice(&content.settings_json),
        settings_salt: content.settings_salt.to_vec(),
        settings_withheld: false,
        mode: mode(content.mode).into(),
        mutating: content.mutating,
        limits: Some(limits(content.limits)),
        context_resources: content.context_resources.iter().map(context).collect(),
        host_capabilities: content.host_capabilities.clone(),
        message: content.message.clone(),
        module_size: policy.module_size,
        entrypoint: content.entrypoint.clone(),
        requests: content.requests.as_deref().map(requests::to_proto),
    }
}

/// A revision for those who may not see values of Secrets: people, disks, pods of users.
/// Without its settings, if some come from Secrets.
pub fn withheld_policy(policy: &Policy) -> v1::Policy {
    let mut written = self::policy(policy);
    if policy.content.is_confidential() {
        // The salt would allow guessing the settings from the digest.
        written.settings_json.clear();
        written.settings_salt.clear();
        written.settings_withheld = true;
    }
    written
}

/// A route.
pub fn route(route: &Route) -> v1::Route {
    v1::Route {
        path: route.path.to_string(),
        revisions: route.revisions.iter().map(ToString::to_string).collect(),
        state: route_state(route.state).into(),
    }
}

/// The stage at which a revision failed to load.
pub fn stage(stage: Stage) -> v1::Stage {
    match stage {
        Stage::Unspecified => v1::Stage::Unspecified,
        Stage::Fetch => v1::Stage::Fetch,
        Stage::Verify => v1::Stage::Verify,
        Stage::Compile => v1::Stage::Compile,
        Stage::Link => v1::Stage::Link,
        Stage::Instantiate => v1::Stage::Instantiate,
        Stage::Settings => v1::Stage::Settings,
        Stage::SelfTest => v1::Stage::Selftest,
        Stage::Swap => v1::Stage::Swap,
        Stage::Runtime => v1::Stage::Runtime,
        Stage::Context => v1::Stage::Context,
    }
}

fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Protect => v1::Mode::Protect,
        Mode::Monitor => v1::Mode::Monitor,
    }
}

fn limits(limits: Limits) -> v1::EvaluationLimits {
    v1::EvaluationLimits {
        timeout_ms: limits.timeout_ms,
        memory_bytes: limits.memory_bytes,
    }
}

fn context(resource: &ContextResource) -> v1::ContextResource {
    v1::ContextResource {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
        fields: resource.fields.clone(),
        namespaces: resource.namespaces.clone(),
        label_selector: resource.label_selector.clone(),
    }
}

fn route_state(state: RouteState) -> v1::RouteState {
    match state {
        RouteState::Active => v1::RouteState::Active,
        RouteState::Candidate => v1::RouteState::Candidate,
        RouteState::Retired => v1::RouteState::Retired,
    }
}
