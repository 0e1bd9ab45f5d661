//! Single writes to objects that users own: finalizers, rollbacks. All are conditional.

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use crate::{
    index::{Kind, Meta},
    names,
};

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or was not reached.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// The object can't be read as what it is.
    #[error("failed to read an object: {0}")]
    Json(#[from] serde_json::Error),
}

/// An object without its type.
pub fn erase<K: serde::Serialize>(object: &K) -> Result<DynamicObject, Error> {
    Ok(serde_json::from_value(serde_json::to_value(object)?)?)
}

/// Adds or removes our finalizer. An object that is gone, or another of the name, is left
/// alone.
pub async fn set_finalizer(
    client: &Client,
    kind: Kind,
    meta: &Meta,
    held: bool,
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
    // The API server refuses to add a finalizer to what is being deleted.
    if has == held || (held && object.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    finalizers.retain(|f| f != names::FINALIZER);
    if held {
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

/// Writes `spec` into a policy, where there is one, and takes away the annotation that asked
/// for a rollback; on condition that the policy is as it was when that was decided.
pub async fn roll_back(
    client: &Client,
    kind: Kind,
    meta: &Meta,
    spec: Option<Value>,
) -> Result<DynamicObject, Error> {
    let api = api(client, kind, &meta.namespace);
    let mut object = api.get(&meta.name).await?;
    // What was decided was decided for that state; the write is void for any other.
    object.metadata.resource_version = Some(meta.resource_version.clone());
    object.metadata.uid = Some(meta.uid.clone());
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(assent_api::ROLLBACK_ANNOTATION);
    }
    if let Some(spec) = spec {
        object.data["spec"] = spec;
    }
    let params = PostParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    Ok(api.replace(&meta.name, &params, &object).await?)
}

fn api(client: &Client, kind: Kind, namespace: &str) -> Api<DynamicObject> {
    let resource = kind.resource();
    match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}
