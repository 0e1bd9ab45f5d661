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

/// What happens to an existing revision of the same name with other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It stays: another leader may have distributed it, and a name has one content.
    Keep,
    /// It is replaced: what is stored is known to be wrong.
    Replace,
}

/// Creates the revision. An existing object of that name is the same revision, stored by an
/// earlier leader; or it has other content; or it is a forgery, which is replaced.
pub(super) async fn store(
    context: &Context,
    key: &PolicyKey,
    revision: &RevisionId,
    spec: PolicyRevisionSpec,
    other: Existing,
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
        let is_own = revision::owner(&existing, &context.namespace).as_ref() == Ok(key);
        let is_readable = is_own && context.converter.is_readable(key, &existing.spec);
        let is_same = existing.spec.content_digest == object.spec.content_digest;
        if is_readable && is_same {
            return erase(&existing);
        }
        if is_readable && other == Existing::Keep {
            // The next try finds it among the stored revisions, and continues with it.
            return Err(Failure::temporary(format!(
                "the revision {name} is stored already, with another module or other limits"
            )));
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

/// Records a phase and returns the object. A revision that is gone needs none.
pub(super) async fn set_phase(
    context: &Context,
    namespace: &str,
    name: &str,
    phase: Phase,
) -> Result<Option<DynamicObject>, kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({ "status": { "phase": phase } });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        other => other.map(|object| objects::erase(&object).ok()),
    }
}

/// Deletes a revision: the one with this uid, or any of that name. Nothing holds it back.
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
    let deleted = match api.delete(name, &params).await {
        // Another object of that name is not the one to delete.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            return Ok(());
        }
        other => other?,
    };
    match deleted.left() {
        Some(held) if !held.finalizers().is_empty() => release(&api, &held).await,
        _ => Ok(()),
    }
}

/// Removes the control plane's finalizer of a revision that is being deleted.
async fn release(api: &Api<PolicyRevision>, held: &PolicyRevision) -> Result<(), kube::Error> {
    let mut finalizers = held.finalizers().to_vec();
    finalizers.retain(|f| f != names::FINALIZER);
    let patch = json!({ "metadata": {
        "finalizers": finalizers,
        "resourceVersion": held.resource_version(),
        "uid": held.uid(),
    }});
    let patched = api
        .patch(
            &held.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

fn erase(object: &PolicyRevision) -> Result<DynamicObject, Failure> {
    objects::erase(object).map_err(|e| Failure::temporary(e.to_string()))
}
