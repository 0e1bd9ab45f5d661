//! Revisions as objects: stored, marked, removed.

use assent_api::PolicyRevision;
use assent_core::{PolicyKey, RevisionId};
use assent_k8s::{names, objects};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::json;
use tracing::info;

use super::Context;
use crate::vetting::Failed;

/// Creates the revision. One of that name is the same one, stored by whoever led before, or
/// its module's tag has moved since: then it was never distributed, and goes.
pub(super) async fn store(
    context: &Context,
    object: &PolicyRevision,
) -> Result<DynamicObject, Failed> {
    let later =
        |error: kube::Error| Failed::later(format!("failed to store the revision: {error}"));
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    for _ in 0..3 {
        match api.create(&params, object).await {
            Ok(stored) => return objects::erase(&stored).map_err(|e| Failed::later(e.to_string())),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(kube::Error::Api(status)) if status.is_invalid() => {
                return Err(Failed::invalid(status.message.clone()));
            }
            Err(error) => return Err(later(error)),
        }
        let Some(existing) = api.get_opt(&name).await.map_err(later)? else {
            continue;
        };
        let same = existing.spec.content_digest == object.spec.content_digest
            && existing.spec.policy_ref == object.spec.policy_ref;
        if same {
            set_phase(context, &namespace, &name, "Candidate")
                .await
                .map_err(later)?;
            return objects::erase(&existing).map_err(|e| Failed::later(e.to_string()));
        }
        info!(revision = %name, "a revision of that name has other content and is replaced");
        delete(context, &namespace, &name).await.map_err(later)?;
    }
    Err(Failed::later(format!(
        "failed to store the revision {name}: somebody else keeps changing it"
    )))
}

/// Where a revision is kept, and under which name.
pub(super) fn name(context: &Context, key: &PolicyKey, revision: &RevisionId) -> (String, String) {
    let namespace = key.namespace().unwrap_or(&context.namespace);
    (namespace.to_owned(), names::revision(key, revision.short()))
}

pub(super) async fn set_phase(
    context: &Context,
    namespace: &str,
    name: &str,
    phase: &str,
) -> Result<(), kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({ "status": { "phase": phase } });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

pub(super) async fn delete(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<(), kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}
