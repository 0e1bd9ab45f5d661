//! Sets of policies as a control plane sends them, for tests that script one.

use assent_proto::v1::{self, DeltaPolicyDiscoveryResponse, RouteState};

use crate::hash::{Held, content_digest, digest};

/// Policies and routes that belong together.
#[derive(Clone, Debug, Default)]
pub struct Set {
    /// Its revisions.
    pub policies: Vec<v1::Policy>,
    /// Its routes.
    pub routes: Vec<v1::Route>,
}

/// One generation of a cluster policy.
pub fn revision(name: &str, generation: i64, wasm: &[u8]) -> v1::Policy {
    let mut policy = v1::Policy {
        revision: format!("cluster/{name}/{generation}-5f2a9c1e"),
        policy: format!("cluster/{name}"),
        generation,
        module_digest: digest(wasm),
        abi: "wapc".into(),
        settings_json: "{}".into(),
        mode: v1::Mode::Protect.into(),
        limits: Some(v1::EvaluationLimits {
            timeout_ms: 2_000,
            memory_bytes: 128 << 20,
        }),
        module_size: wasm.len() as u64,
        ..v1::Policy::default()
    };
    policy.content_digest = content_digest(&policy);
    policy
}

// === impl Set ===

impl Set {
    /// Each revision with its own route in this state.
    pub fn new(revisions: &[(&v1::Policy, RouteState)]) -> Self {
        let route = |(policy, state): &(&v1::Policy, RouteState)| v1::Route {
            path: policy.revision.clone(),
            revisions: vec![policy.revision.clone()],
            state: (*state).into(),
        };
        Self {
            policies: revisions
                .iter()
                .map(|(policy, _)| (*policy).clone())
                .collect(),
            routes: revisions.iter().map(route).collect(),
        }
    }

    /// Its version.
    pub fn version(&self) -> String {
        Held::of(&self.policies, &self.routes).version()
    }

    /// The response with the full set.
    pub fn full(&self, nonce: &str) -> DeltaPolicyDiscoveryResponse {
        self.since(&Self::default(), nonce)
    }

    /// The difference from another set, as a response.
    pub fn since(&self, from: &Self, nonce: &str) -> DeltaPolicyDiscoveryResponse {
        let gone = |p: &&v1::Policy| !self.policies.iter().any(|q| q.revision == p.revision);
        let left = |r: &&v1::Route| !self.routes.iter().any(|s| s.path == r.path);
        let (policies, routes) = (self.policies.iter(), self.routes.iter());
        DeltaPolicyDiscoveryResponse {
            version_info: self.version(),
            policies: policies
                .filter(|p| !from.policies.contains(p))
                .cloned()
                .collect(),
            removed_revisions: from
                .policies
                .iter()
                .filter(gone)
                .map(|p| p.revision.clone())
                .collect(),
            routes: routes
                .filter(|r| !from.routes.contains(r))
                .cloned()
                .collect(),
            removed_routes: from
                .routes
                .iter()
                .filter(left)
                .map(|r| r.path.clone())
                .collect(),
            nonce: nonce.into(),
            ..DeltaPolicyDiscoveryResponse::default()
        }
    }
}
