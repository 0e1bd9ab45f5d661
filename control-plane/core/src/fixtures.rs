//! Values for the tests of several modules.

use std::sync::Arc;

use crate::{
    digest::Digest,
    fleet::Node,
    policy::{Content, DEFAULT_SERVER, Policy, PolicyKey, RevisionId},
    rollout::{Output, PolicyId},
    session::{AppliedSnapshot, Failure, RefusedSnapshot, Rejection, Report, Stage},
    snapshot::{Route, RouteState, Snapshot},
};

pub(crate) const UID: &str = "5f2a9c1e-0000-4000-8000-000000000000";

/// Content that differs by `module` alone.
pub(crate) fn mk_content(module: &str) -> Content {
    Content::new(
        Digest::of(module.as_bytes()),
        "wapc",
        b"{}".as_slice().into(),
    )
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

pub(crate) fn mk_node(name: &str, instance: &str) -> Node {
    Node {
        id: name.into(),
        policy_server: DEFAULT_SERVER.into(),
        instance_uid: instance.into(),
        ..Node::default()
    }
}

/// What a stream reports whose replica took `snapshot` without `rejected`.
pub(crate) fn mk_applied(snapshot: &Arc<Snapshot>, rejected: &[Rejection]) -> Report {
    let refused = rejected.first().map(|r| RefusedSnapshot {
        snapshot: snapshot.clone(),
        whole: false,
        failure: r.failure.clone(),
    });
    Report {
        applied: Some(AppliedSnapshot {
            snapshot: snapshot.clone(),
            rejected: rejected.to_vec(),
        }),
        sent: Some(snapshot.version()),
        acked: rejected.is_empty().then(|| snapshot.version()),
        refused,
        ..Report::default()
    }
}

/// What a stream reports whose replica refused `snapshot` whole and has `before`.
pub(crate) fn mk_refused(snapshot: &Arc<Snapshot>, before: Option<&Arc<Snapshot>>) -> Report {
    Report {
        applied: before.map(|snapshot| AppliedSnapshot {
            snapshot: snapshot.clone(),
            rejected: Vec::new(),
        }),
        sent: Some(snapshot.version()),
        acked: before.map(|s| s.version()),
        refused: Some(RefusedSnapshot {
            snapshot: snapshot.clone(),
            whole: true,
            failure: mk_failure("version does not match"),
        }),
        ..Report::default()
    }
}

/// An output as scripts write it.
pub(crate) fn show_output(output: &Output) -> String {
    let generation = |r: &RevisionId| r.generation().map_or("none".to_owned(), |g| g.to_string());
    match output {
        Output::Flip { from, to } => {
            let from = from.as_ref().map_or("none".to_owned(), generation);
            format!("flip {from} to {}", to.generation)
        }
        Output::Retire(revision) => format!("retire {}", generation(revision)),
        Output::RemoveWebhook => "unroute".into(),
        Output::Release => "release".into(),
        Output::Enforced(took) => format!("enforced after {took:?}"),
    }
}
