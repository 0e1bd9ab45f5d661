//! Answers to questions about the leader's state.

use assent_api::API_VERSION;
use assent_controller::objects;
use assent_core::PolicyKey;
use assent_grpc::rollout::{self, RevisionRow};
use serde_json::json;

use super::leader::LeaderLoop;
use crate::{
    control::Query,
    runner::{client_status, server_names},
    view::{PolicyObject, kind},
};

impl LeaderLoop<'_> {
    /// Answers a query; true if a decision follows from it. A caller that has left needs no
    /// answer.
    pub(super) fn answer(&mut self, query: Query) -> bool {
        let now = self.runner.now();
        match query {
            Query::Objects(answer) => {
                let policies = self.controller.objects().policies();
                let _ = answer.send(policies.map(policy_object).collect());
            }
            // An API server stores no object that can't be read.
            Query::Problems(answer) => {
                let _ = answer.send(Vec::new());
            }
            Query::Measure(answer) => {
                self.measure();
                let _ = answer.send(());
            }
            Query::ClientStatus(query, answer) => {
                let page = client_status(&mut self.controller, now, &query, Vec::new());
                let _ = answer.send(page);
            }
            Query::Servers(answer) => {
                let _ = answer.send(server_names(&self.controller));
            }
            Query::Revisions(key, answer) => {
                let _ = answer.send(self.revisions(&key));
            }
            Query::Undo(_, _, answer) if !self.controller.is_restored() => {
                let why = "the leader has not read all objects yet; try again".to_owned();
                let _ = answer.send(Err(rollout::Error::Unavailable(why)));
            }
            Query::Undo(key, to, answer) => {
                let ticket = self.runner.ticket(answer);
                self.controller
                    .request_rollback(now, &key, to, Some(ticket));
                return true;
            }
        }
        false
    }

    /// Revisions of a policy, newest first; `None` if there is no such policy.
    fn revisions(&self, key: &PolicyKey) -> Option<Vec<RevisionRow>> {
        let objects = self.controller.objects();
        let policy = objects.policy(key)?;
        let known = objects.revisions(key, &policy.meta.uid);
        let mut rows: Vec<RevisionRow> = known.filter_map(revision_row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.generation));
        Some(rows)
    }
}

/// A policy with its status as stored.
fn policy_object(object: &objects::PolicyObject) -> PolicyObject {
    PolicyObject {
        api_version: API_VERSION,
        kind: kind(&object.key),
        metadata: json!({
            "name": object.meta.name,
            "namespace": object.key.namespace(),
            "uid": object.meta.uid,
            "generation": object.meta.generation,
        }),
        spec: serde_json::Value::Null,
        status: object.status.clone().unwrap_or_default(),
    }
}

fn revision_row(object: &objects::RevisionObject) -> Option<RevisionRow> {
    let spec = object.spec.as_ref()?;
    let policy = object.policy.as_ref().ok();
    let name = policy.map_or(object.meta.name.as_str(), |p| p.revision.short());
    Some(RevisionRow {
        name: name.to_owned(),
        generation: spec.generation,
        phase: format!("{:?}", object.phase),
        module: crate::view::shown_url(&spec.module_url),
        module_digest: spec.module_digest.clone(),
        content_digest: spec.content_digest.clone(),
        created_at: object.meta.created.map(Into::into),
    })
}
