//! Single writes to objects that users own: finalizers, rollbacks, versions of settings. All are conditional.

use std::time::Duration;

use assent_controller::{Kind, Meta};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tracing::debug;

use crate::{names, watch::KindExt as _};

#[cfg(test)]
mod tests;

/// How often a rollback is tried: others write statuses and metadata of the policy too.
const MAX_TRIES: u32 = 6;

/// The delay after the first failed try of a rollback; doubled each time.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or was not reached.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// The object cannot be converted.
    #[error("failed to read an object: {0}")]
    Json(#[from] serde_json::Error),
    /// Its spec is not the one that the write was decided for.
    #[error("the policy was changed in the meantime (generation {found}, expected {expected})")]
    Changed {
        /// The generation that the write was decided for.
        expected: i64,
        /// The generation that it has.
        found: i64,
    },
    /// It is another object of the same name.
    #[error("the policy was deleted and created again in the meantime")]
    Replaced,
}

/// An object without its type.
pub fn erase<K: serde::Serialize>(object: &K) -> Result<DynamicObject, Error> {
    Ok(serde_json::from_value(serde_json::to_value(object)?)?)
}

/// Adds or removes the control plane's finalizer. An object that is gone, or another object of
/// the same name, is left alone.
pub async fn set_finalizer(
    client: &Client,
    kind: Kind,
    meta: &Meta,
    present: bool,
) -> Result<(), Error> {
    let api = api(client, kind, &meta.namespace);
    let Some(object) = api.get_metadata_opt(&meta.name).await? else {
        return Ok(());
    };
    if object.metadata.uid.as_deref() != Some(&meta.uid) {
        return Ok(());
    }
    let mut finalizers = object.metadata.finalizers.unwrap_or_default();
    let has = finalizers.iter().any(|f| f == names::FINALIZER);
    // The API server refuses to add a finalizer to an object that is being deleted.
    if has == present || (present && object.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    finalizers.retain(|f| f != names::FINALIZER);
    if present {
        finalizers.push(names::FINALIZER.to_owned());
    }
    let patch = json!({ "metadata": {
        "finalizers": finalizers,
        "resourceVersion": object.metadata.resource_version,
        "uid": meta.uid,
    }});
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let patched = api.patch(&meta.name, &params, &Patch::Merge(patch)).await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// Writes `spec.settingsVersion` of a policy that is still in the state of `meta`.
pub async fn take_settings(
    client: &Client,
    kind: Kind,
    meta: &Meta,
    version: &str,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": { "resourceVersion": meta.resource_version, "uid": meta.uid },
        "spec": { "settingsVersion": version },
    });
    let params = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    let api = api(client, kind, &meta.namespace);
    api.patch(&meta.name, &params, &Patch::Merge(patch)).await?;
    Ok(())
}

/// Writes `spec` into a policy, if there is one, and removes the annotation that asked for a
/// rollback. The policy must have the spec that the rollback was decided for; writes of its
/// status or metadata do not matter, and the rollback is tried again after them.
pub async fn roll_back(
    client: &Client,
    kind: Kind,
    meta: &Meta,
    spec: Option<&Value>,
) -> Result<DynamicObject, Error> {
    let api = api(client, kind, &meta.namespace);
    let mut delay = FIRST_RETRY;
    let mut request = None;
    for _ in 1..MAX_TRIES {
        match try_roll_back(&api, meta, spec, &mut request).await {
            Err(error) if error.is_temporary() => {
                debug!(policy = %meta.name, "failed to roll back; retrying: {error}");
            }
            done => return done,
        }
        tokio::time::sleep(delay).await;
        delay *= 2;
    }
    try_roll_back(&api, meta, spec, &mut request).await
}

/// `request` is the annotation as the first try found it: a later one is another request, which
/// stays.
async fn try_roll_back(
    api: &Api<DynamicObject>,
    meta: &Meta,
    spec: Option<&Value>,
    request: &mut Option<Option<String>>,
) -> Result<DynamicObject, Error> {
    let mut object = api.get(&meta.name).await?;
    if object.uid().as_ref() != Some(&meta.uid) {
        return Err(Error::Replaced);
    }
    let found = object.metadata.generation.unwrap_or_default();
    if spec.is_some() && found != meta.generation {
        return Err(Error::Changed {
            expected: meta.generation,
            found,
        });
    }
    let annotations = object.annotations_mut();
    let annotation = annotations.get(assent_api::ROLLBACK_ANNOTATION).cloned();
    if *request.get_or_insert_with(|| annotation.clone()) == annotation {
        annotations.remove(assent_api::ROLLBACK_ANNOTATION);
    }
    if let Some(spec) = spec {
        object.data["spec"] = spec.clone();
    }
    let params = PostParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    // The resource version that was just read makes the write void if anything changed since.
    Ok(api.replace(&meta.name, &params, &object).await?)
}

fn api(client: &Client, kind: Kind, namespace: &str) -> Api<DynamicObject> {
    let resource = kind.resource();
    match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

// === impl Error ===

impl Error {
    /// Whether the same write may succeed after a fresh read.
    fn is_temporary(&self) -> bool {
        match self {
            Error::Api(kube::Error::Api(status)) => {
                matches!(status.code, 409 | 429) || status.code >= 500
            }
            Error::Api(_) => true,
            Error::Json(_) | Error::Changed { .. } | Error::Replaced => false,
        }
    }
}
