//! Pages of client status to the wire.

use std::{sync::Arc, time::SystemTime};

use assent_context::{CollectionSpec, Mark};
use assent_core::{
    Millis,
    fleet::{Node, ReplicaState},
    session::{Failure, Rejection},
};
use assent_proto::{google::rpc, v1};

use super::{ConditionRow, Page, PolicyRow, ReplicaRow};
use assent_wire::{
    context::{collection_to_proto, mark_to_proto},
    to_proto::stage,
};

use crate::to_proto::timestamp;

pub(super) fn response(page: &Page, marks: impl Fn(&str) -> Vec<Mark>) -> v1::ClientStatusResponse {
    let when = |millis: Millis| {
        let since = page.now.since(millis);
        timestamp(page.at.checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH))
    };
    v1::ClientStatusResponse {
        version_info: text(page.version),
        replicas: page
            .replicas
            .iter()
            .map(|row| replica(row, when, marks(&row.name)))
            .collect(),
        policies: page.policies.iter().map(policy).collect(),
        next_page_token: page.next.clone().unwrap_or_default(),
        collections: Vec::new(),
    }
}

/// A collection at its source.
pub(super) fn collection((spec, mark): &(Arc<CollectionSpec>, Mark)) -> v1::CollectionStatus {
    v1::CollectionStatus {
        collection: Some(collection_to_proto(spec)),
        mark: Some(mark_to_proto(mark)),
    }
}

pub(super) fn state_of(state: v1::ReplicaState) -> Option<ReplicaState> {
    match state {
        v1::ReplicaState::Unspecified => None,
        v1::ReplicaState::Current => Some(ReplicaState::Current),
        v1::ReplicaState::Behind => Some(ReplicaState::Behind),
        v1::ReplicaState::Rejected => Some(ReplicaState::Rejected),
        v1::ReplicaState::Disconnected => Some(ReplicaState::Disconnected),
    }
}

fn replica(
    row: &ReplicaRow,
    when: impl Fn(Millis) -> prost_types::Timestamp,
    marks: Vec<Mark>,
) -> v1::ReplicaStatus {
    let replica = &row.replica;
    let report = &replica.report;
    let refused = report.refused.as_ref();
    let rejected = replica.applied.iter().flat_map(|applied| &applied.rejected);
    v1::ReplicaStatus {
        node: Some(node(&row.name, &replica.node)),
        identity: replica.identity.clone(),
        state: state(row.state).into(),
        connected_since: replica.connected_since.map(&when),
        last_seen: replica.last_seen.map(&when),
        version_sent: text(report.sent),
        version_acked: text(report.acked),
        version_rejected: text(refused.map(|refused| refused.snapshot.version())),
        outstanding_nonce: text(report.outstanding),
        rejected: match refused.filter(|refused| refused.whole) {
            // A replica that refuses a version completely names no revision. Its message is shown
            // all the same.
            Some(refused) => vec![whole(&refused.failure)],
            None => rejected.map(rejection).collect(),
        },
        protocol_errors: report.protocol_errors,
        context: marks.iter().map(mark_to_proto).collect(),
    }
}

/// A replica that is expected and never connected has only a name.
fn node(name: &str, node: &Node) -> v1::Node {
    v1::Node {
        id: name.to_owned(),
        policy_server: node.policy_server.clone(),
        instance_uid: node.instance_uid.clone(),
        evaluator_version: node.evaluator_version.clone(),
        engine: node.engine.clone(),
        abis: node.abis.clone(),
        endpoint: node.endpoint.clone(),
        // Matters when a stream opens, and is not kept.
        lease_transitions: 0,
        features: node.features.clone(),
    }
}

fn rejection(rejection: &Rejection) -> v1::RejectedPolicy {
    v1::RejectedPolicy {
        revision: rejection.revision.to_string(),
        stage: stage(rejection.stage).into(),
        status: Some(failure(&rejection.failure)),
        retryable: rejection.retryable,
    }
}

fn whole(reason: &Failure) -> v1::RejectedPolicy {
    v1::RejectedPolicy {
        status: Some(failure(reason)),
        ..v1::RejectedPolicy::default()
    }
}

fn failure(failure: &Failure) -> rpc::Status {
    rpc::Status {
        code: failure.code,
        message: failure.message.clone(),
        ..rpc::Status::default()
    }
}

fn state(state: ReplicaState) -> v1::ReplicaState {
    match state {
        ReplicaState::Current => v1::ReplicaState::Current,
        ReplicaState::Behind => v1::ReplicaState::Behind,
        ReplicaState::Rejected => v1::ReplicaState::Rejected,
        ReplicaState::Disconnected => v1::ReplicaState::Disconnected,
    }
}

fn policy(row: &PolicyRow) -> v1::PolicyStatus {
    v1::PolicyStatus {
        policy: row.policy.clone(),
        active_revision: row.active.clone().unwrap_or_default(),
        candidate_revision: row.candidate.clone().unwrap_or_default(),
        wanted: row.fold.wanted,
        applied: row.fold.applied,
        rejected: row.fold.rejected,
        behind: row.fold.behind,
        disconnected: row.fold.disconnected,
        conditions: row.conditions.iter().map(condition).collect(),
    }
}

fn condition(row: &ConditionRow) -> v1::Condition {
    v1::Condition {
        r#type: row.r#type.clone(),
        status: row.status.clone(),
        reason: row.reason.clone(),
        message: row.message.clone(),
        observed_generation: row.observed_generation,
        last_transition_time: row.transition.map(timestamp),
    }
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
