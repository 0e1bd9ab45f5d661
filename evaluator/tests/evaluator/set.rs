//! Sets of policies as a control plane would send them.

use std::sync::Arc;

use assent_core::{
    Digest, Mode, Policy, PolicyKey, Route, RouteState, Snapshot,
    policy::{Content, ContextResource, Limits},
};
use assent_proto::v1;

/// One revision under construction.
#[derive(Clone)]
pub(crate) struct Revision {
    pub(crate) name: &'static str,
    pub(crate) generation: i64,
    pub(crate) wasm: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) mutating: bool,
    pub(crate) message: &'static str,
    pub(crate) timeout_ms: u32,
    pub(crate) capabilities: Vec<String>,
    pub(crate) context: Vec<ContextResource>,
}

pub(crate) const UID: &str = "5f2a9c1e";

impl Revision {
    pub(crate) fn new(name: &'static str, generation: i64, wasm: &[u8]) -> Self {
        Self {
            name,
            generation,
            wasm: wasm.to_vec(),
            mode: Mode::Protect,
            mutating: false,
            message: "",
            timeout_ms: 2_000,
            capabilities: Vec::new(),
            context: Vec::new(),
        }
    }

    pub(crate) fn path(&self) -> String {
        format!("cluster/{}/{}-{UID}", self.name, self.generation)
    }

    pub(crate) fn wasm(&self) -> &[u8] {
        &self.wasm
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        let content = Content {
            module_digest: Digest::of(&self.wasm),
            abi: "wapc".into(),
            settings_json: b"{}".as_slice().into(),
            settings_salt: [].into(),
            mode: self.mode,
            mutating: self.mutating,
            limits: Limits {
                timeout_ms: self.timeout_ms,
                ..Limits::default()
            },
            context_resources: self.context.clone(),
            host_capabilities: self.capabilities.clone(),
            message: self.message.into(),
            entrypoint: String::new(),
            requests: None,
        };
        let key = PolicyKey::cluster(self.name);
        let size = self.wasm.len() as u64;
        Arc::new(Policy::new(key, self.generation, UID, content, size))
    }
}

/// A snapshot of revisions, each with a route in the given state.
pub(crate) fn snapshot(revisions: &[(&Revision, RouteState)]) -> Snapshot {
    let policies: Vec<_> = revisions
        .iter()
        .map(|(revision, _)| revision.policy())
        .collect();
    let routes = policies.iter().zip(revisions);
    let routes = routes.map(|(policy, (_, state))| Arc::new(Route::of(&policy.revision, *state)));
    let routes: Vec<_> = routes.collect();
    Snapshot::new(policies, routes)
}

/// The response that leads from one snapshot to another.
pub(crate) fn delta(
    from: &Snapshot,
    to: &Snapshot,
    nonce: &str,
) -> v1::DeltaPolicyDiscoveryResponse {
    let delta = to.delta_from(from);
    v1::DeltaPolicyDiscoveryResponse {
        version_info: to.version().to_string(),
        policies: delta
            .policies
            .iter()
            .map(|policy| write_policy(policy))
            .collect(),
        removed_revisions: delta
            .removed_revisions
            .iter()
            .map(ToString::to_string)
            .collect(),
        routes: delta
            .routes
            .iter()
            .map(|route| write_route(route))
            .collect(),
        removed_routes: delta
            .removed_routes
            .iter()
            .map(ToString::to_string)
            .collect(),
        nonce: nonce.into(),
        ..Default::default()
    }
}

/// The response that carries everything.
pub(crate) fn full(to: &Snapshot, nonce: &str) -> v1::DeltaPolicyDiscoveryResponse {
    delta(&Snapshot::empty(), to, nonce)
}

fn write_policy(policy: &Policy) -> v1::Policy {
    let content = &policy.content;
    v1::Policy {
        revision: policy.revision.to_string(),
        policy: policy.policy.to_string(),
        generation: policy.generation,
        module_digest: content.module_digest.to_string(),
        content_digest: policy.content_digest.to_string(),
        abi: content.abi.clone(),
        settings_json: content.settings_json.to_vec().into(),
        settings_salt: content.settings_salt.to_vec(),
        mode: content.mode.number().into(),
        mutating: content.mutating,
        limits: Some(v1::EvaluationLimits {
            timeout_ms: content.limits.timeout_ms,
            memory_bytes: content.limits.memory_bytes,
        }),
        host_capabilities: content.host_capabilities.clone(),
        message: content.message.clone(),
        module_size: policy.module_size,
        context_resources: content.context_resources.iter().map(write_kind).collect(),
        ..Default::default()
    }
}

fn write_kind(resource: &ContextResource) -> v1::ContextResource {
    v1::ContextResource {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
        fields: resource.fields.clone(),
        namespaces: resource.namespaces.clone(),
        label_selector: resource.label_selector.clone(),
    }
}

fn write_route(route: &Route) -> v1::Route {
    v1::Route {
        path: route.path.to_string(),
        revisions: route.revisions.iter().map(ToString::to_string).collect(),
        state: route.state.number().into(),
    }
}
