//! Things that tests of several modules are about.

use std::sync::Arc;

use crate::{
    digest::Digest,
    policy::{Content, Limits, Mode, Policy, PolicyKey, RevisionId},
    rollout::PolicyId,
    session::{Failure, Rejection, Stage},
    snapshot::{Route, RouteState, Snapshot},
};

pub(crate) const UID: &str = "5f2a9c1e-0000-4000-8000-000000000000";

/// Content that differs by `module` alone.
pub(crate) fn mk_content(module: &str) -> Content {
    Content {
        module_digest: Digest::of(module.as_bytes()),
        abi: "wapc".into(),
        settings_json: b"{}".as_slice().into(),
        mode: Mode::Protect,
        mutating: false,
        limits: Limits::default(),
        context_resources: Vec::new(),
        host_capabilities: Vec::new(),
        message: String::new(),
        entrypoint: String::new(),
    }
}

/// Generation `generation` of the cluster policy `name`.
pub(crate) fn mk_policy(name: &str, generation: i64) -> Arc<Policy> {
    let content = mk_content(&format!("{name} {generation}"));
    let key = PolicyKey::cluster(name);
    Arc::new(Policy::new(key, generation, UID, content, 8))
}

pub(crate) fn mk_id(name: &str) -> PolicyId {
    PolicyId {
        key: PolicyKey::cluster(name),
        uid: UID.into(),
    }
}

/// A set of policies, each with an active route.
pub(crate) fn mk_snapshot(policies: &[(&str, i64)]) -> Arc<Snapshot> {
    let policies: Vec<_> = policies.iter().map(|(n, g)| mk_policy(n, *g)).collect();
    let routes = policies
        .iter()
        .map(|p| Route::of(&p.revision, RouteState::Active));
    let routes: Vec<_> = routes.map(Arc::new).collect();
    Arc::new(Snapshot::new(policies, routes))
}

pub(crate) fn mk_revision(name: &str, generation: i64) -> RevisionId {
    mk_policy(name, generation).revision.clone()
}

pub(crate) fn mk_rejection(name: &str, generation: i64) -> Rejection {
    Rejection {
        revision: mk_revision(name, generation),
        stage: Stage::Settings,
        failure: mk_failure("settings refused"),
        retryable: false,
    }
}

pub(crate) fn mk_failure(message: &str) -> Failure {
    Failure {
        code: 3,
        message: message.into(),
    }
}
