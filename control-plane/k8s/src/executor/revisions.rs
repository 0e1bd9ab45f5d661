//! Revisions as objects: stored, marked, deleted.

use assent_api::{PolicyRevision, PolicyRevisionSpec, revision::Phase};
use assent_controller::Failure;
use assent_core::{PolicyKey, RevisionId};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
};
use serde_json::json;
use tracing::info;

use super::Context;
use crate::{names, objects, revision};

/// How often a revision is created again after another object of its name was found.
const MAX_TRIES: usize = 3;

/// Creates the revision. An existing object of that name is the same revision, stored by an
/// earlier leader; or the tag of its module has moved since, and then it was never distributed
/// and is replaced; or it is a forgery, which is replaced too.
pub(super) async fn store(
    context: &Context,
    key: &PolicyKey,
    revision: &RevisionId,
    spec: PolicyRevisionSpec,
) -> Result<DynamicObject, Failure> {
    let temporary =
        |error: kube::Error| Failure::temporary(format!("failed to store the revision: {error}"));
    let object = revision::object(key, revision, spec, &context.namespace);
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    for _ in 0..MAX_TRIES {
        match api.create(&params, &object).await {
            Ok(stored) => return erase(&stored),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(kube::Error::Api(status)) if status.is_invalid() => {
                return Err(Failure::invalid(status.message.clone()));
            }
            Err(error) => return Err(temporary(error)),
        }
        let Some(existing) = api.get_opt(&name).await.map_err(temporary)? else {
            continue;
        };
        let is_same = existing.spec.content_digest == object.spec.content_digest
            && existing.spec.policy_ref == object.spec.policy_ref
            && revision::owner(&existing, &context.namespace).as_ref() == Ok(key);
        if is_same {
            set_phase(context, &namespace, &name, Phase::Candidate)
                .await
                .map_err(temporary)?;
            return erase(&existing);
        }
        info!(revision = %name, "replacing a revision of the same name with other content");
        delete(context, &namespace, &name, existing.uid())
            .await
            .map_err(temporary)?;
    }
    Err(Failure::temporary(format!(
        "failed to store the revision {name}: somebody else keeps changing it"
    )))
}

/// Records a phase. A revision that is gone needs none.
pub(super) async fn set_phase(
    context: &Context,
    namespace: &str,
    name: &str,
    phase: Phase,
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

/// Deletes a revision: the one with this uid, or any of that name.
pub(super) async fn delete(
    context: &Context,
    namespace: &str,
    name: &str,
    uid: Option<String>,
) -> Result<(), kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    let mut params = DeleteParams::background();
    if uid.is_some() {
        params = params.preconditions(Preconditions {
            uid,
            resource_version: None,
        });
    }
    match api.delete(name, &params).await {
        // Another object of that name is not the one to delete.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        other => other.map(drop),
    }
}

fn erase(object: &PolicyRevision) -> Result<DynamicObject, Failure> {
    objects::erase(object).map_err(|e| Failure::temporary(e.to_string()))
}
