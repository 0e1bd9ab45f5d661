//! What only a standalone control plane's gRPC services need.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use assent_core::PolicyKey;
use assent_grpc::{
    certificate::SelfSignedCa,
    rollout::RevisionRow,
    status::{ConditionRow, PolicyRow, Query},
};
use assent_local::{
    LocalApi,
    state::{PolicyRecord, RevisionRecord},
};

use super::view;
use crate::view::PolicyObject;

/// The certificate authority of this installation.
pub(super) fn certificate_authority(state: &Path) -> anyhow::Result<Arc<SelfSignedCa>> {
    let ca = SelfSignedCa::open(&state.join("ca"), vec!["localhost".into()]);
    Ok(Arc::new(
        ca.context("failed to open the certificate authority")?,
    ))
}

/// Rows of policies that never had a valid manifest. Their server is not known, so they are
/// listed with the default one.
pub(super) fn never_valid(api: &LocalApi, query: &Query) -> Vec<PolicyRow> {
    let never = api.never_valid();
    let wanted = never.filter(|(key, ..)| query.wants_policy(key.as_str()));
    wanted
        .map(|(key, problem, since)| row(key, &view::never_valid(key, problem, since)))
        .collect()
}

fn row(key: &PolicyKey, object: &PolicyObject) -> PolicyRow {
    let conditions = object.status.conditions.iter().map(|c| ConditionRow {
        r#type: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        observed_generation: 0,
        transition: Some(c.last_transition_time.0.into()),
    });
    PolicyRow {
        policy: key.to_string(),
        conditions: conditions.collect(),
        ..PolicyRow::default()
    }
}

/// Revisions of a policy, newest first.
pub(super) fn revisions(record: &PolicyRecord) -> Vec<RevisionRow> {
    let mut rows: Vec<RevisionRow> = record.revisions.iter().map(revision).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.generation));
    rows
}

fn revision(revision: &RevisionRecord) -> RevisionRow {
    RevisionRow {
        name: revision.name.clone(),
        generation: revision.generation,
        phase: format!("{:?}", revision.phase),
        module: crate::view::shown_url(&revision.module_url),
        module_digest: revision.module_digest.clone(),
        content_digest: revision.content_digest.clone(),
        created_at: Some(revision.created_at.into()),
    }
}
