//! Answers questions about a leader's state.

use assent_api::API_VERSION;
use assent_core::PolicyKey;
use assent_grpc::rollout::RevisionRow;
use serde_json::json;

use super::machine::Machine;
use crate::{
    control::Query,
    services::client_status,
    view::{PolicyObject, kind},
};

/// Answers. Whoever asked and left is not told.
pub(super) fn answer(machine: &mut Machine, query: Query) {
    match query {
        Query::Objects(answer) => {
            let _ = answer.send(objects(machine));
        }
        Query::Measure(answer) => {
            machine.drive.measure();
            let _ = answer.send(());
        }
        Query::ClientStatus(query, answer) => {
            let page = client_status(&mut machine.drive, &query, Vec::new());
            let _ = answer.send(page);
        }
        Query::Revisions(key, answer) => {
            let _ = answer.send(revisions(machine, &key));
        }
        Query::Undo(key, to, answer) => machine.undo(&key, to, Some(answer)),
    }
}

/// Policies with their statuses as stored.
fn objects(machine: &Machine) -> Vec<PolicyObject> {
    let policies = machine.index.policies();
    let object = |entry: &assent_k8s::index::PolicyEntry| PolicyObject {
        api_version: API_VERSION,
        kind: kind(&entry.key),
        metadata: json!({
            "name": entry.meta.name,
            "namespace": entry.key.namespace(),
            "uid": entry.meta.uid,
            "generation": entry.meta.generation,
        }),
        spec: serde_json::Value::Null,
        status: serde_json::from_value(entry.status.clone()).unwrap_or_default(),
    };
    policies.map(object).collect()
}

/// Revisions of a policy, newest first; none where there is no such policy.
fn revisions(machine: &Machine, key: &PolicyKey) -> Option<Vec<RevisionRow>> {
    let entry = machine.index.policy(key)?;
    let known = machine.index.revisions(key, &entry.meta.uid);
    let mut rows: Vec<RevisionRow> = known
        .filter_map(|found| {
            let spec = &found.object.as_ref()?.spec;
            Some(RevisionRow {
                name: found.short().unwrap_or(&found.meta.name).to_owned(),
                generation: spec.generation,
                phase: format!("{:?}", found.phase),
                module: spec.module_url.clone(),
                module_digest: spec.module_digest.clone(),
                content_digest: spec.content_digest.clone(),
                created_at: found.meta.created.map(Into::into),
            })
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.generation));
    Some(rows)
}
