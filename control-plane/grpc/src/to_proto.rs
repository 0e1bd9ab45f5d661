//! Core types to the wire.

use std::time::{SystemTime, UNIX_EPOCH};

use assent_core::{
    Mode, Policy, Route, RouteState,
    policy::{ContextResource, Limits},
    session::Stage,
};
use assent_proto::v1;
use prost::bytes::Bytes;

use crate::hub::ControlPlane;

pub(crate) fn policy(policy: &Policy) -> v1::Policy {
    let content = &policy.content;
    v1::Policy {
        revision: policy.revision.to_string(),
        policy: policy.policy.to_string(),
        generation: policy.generation,
        module_digest: content.module_digest.to_string(),
        content_digest: policy.content_digest.to_string(),
        abi: content.abi.clone(),
        settings_json: Bytes::copy_from_slice(&content.settings_json),
        mode: mode(content.mode).into(),
        mutating: content.mutating,
        limits: Some(limits(content.limits)),
        context_resources: content.context_resources.iter().map(context).collect(),
        host_capabilities: content.host_capabilities.clone(),
        message: content.message.clone(),
        module_size: policy.module_size,
        entrypoint: content.entrypoint.clone(),
    }
}

pub(crate) fn route(route: &Route) -> v1::Route {
    v1::Route {
        path: route.path.to_string(),
        revisions: route.revisions.iter().map(ToString::to_string).collect(),
        state: route_state(route.state).into(),
    }
}

pub(crate) fn control_plane(control_plane: &ControlPlane) -> v1::ControlPlane {
    v1::ControlPlane {
        id: control_plane.id.clone(),
        version: control_plane.version.clone(),
        lease_transitions: control_plane.lease_transitions,
    }
}

/// Times before 1970 do not occur; they would be written as its first moment.
pub(crate) fn timestamp(at: SystemTime) -> prost_types::Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) fn stage(stage: Stage) -> v1::Stage {
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
    }
}

fn route_state(state: RouteState) -> v1::RouteState {
    match state {
        RouteState::Active => v1::RouteState::Active,
        RouteState::Candidate => v1::RouteState::Candidate,
        RouteState::Retired => v1::RouteState::Retired,
    }
}
