//! Writes and deletes the objects of a PolicyServer.

mod existing;

use std::fmt::Debug;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};

use self::existing::{Step, next_step};
use super::Objects;
use crate::names::{self, FIELD_MANAGER};

/// How far the write came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is as it must be.
    Done,
    /// This object is being deleted; call again when it is gone.
    Waiting(String),
}

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object of that name belongs to somebody else.
    #[error(
        "failed to write {0}: it does not belong to Assent; delete it, or rename the PolicyServer"
    )]
    Foreign(String),
    /// The API server refuses the object, and will refuse the same object again.
    #[error("the API server refuses {what}: {message}")]
    Invalid {
        /// Kind and name.
        what: String,
        /// Its error message.
        message: String,
    },
    /// Anything else; trying again may help.
    #[error("failed to write {what}: {source}")]
    Other {
        /// Kind and name.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Makes the objects what they must be, by server-side apply: equal content changes nothing.
/// All that can be done is done before it waits for anything.
pub async fn apply(client: &Client, objects: &Objects) -> Result<Outcome, Error> {
    let mut outcomes = Vec::new();
    // Pods can't be made without their account, so that it goes first and they last. One that
    // is not needed any more stays: pods that still run are known by it.
    if let Some(account) = &objects.service_account {
        outcomes.push(write(client, account).await?);
    }
    outcomes.push(write(client, &objects.headless).await?);
    outcomes.push(write(client, &objects.webhook).await?);
    outcomes.push(write(client, &objects.disruption_budget).await?);
    match &objects.network_policy {
        Some(policy) => outcomes.push(write(client, policy).await?),
        None => outcomes.push(drop_network_policy(client, objects).await?),
    }
    outcomes.push(write(client, &objects.stateful_set).await?);
    let waiting = outcomes.into_iter().find(|o| *o != Outcome::Done);
    Ok(waiting.unwrap_or(Outcome::Done))
}

/// Deletes what was made for the PolicyServer of this name and uid: the pods, and when they
/// are gone, what they needed to leave in good order.
pub async fn delete(
    client: &Client,
    namespace: &str,
    server: &str,
    uid: &str,
) -> Result<Outcome, Error> {
    let name = names::server(server);
    let target = Target {
        client,
        namespace,
        uid,
    };
    let pods = DeleteParams::foreground();
    if let waiting @ Outcome::Waiting(_) = target.delete::<StatefulSet>(&name, &pods).await? {
        return Ok(waiting);
    }
    let rest = DeleteParams::background();
    target.delete::<Service>(&name, &rest).await?;
    let headless = names::headless(server);
    target.delete::<Service>(&headless, &rest).await?;
    target.delete::<PodDisruptionBudget>(&name, &rest).await?;
    target.delete::<NetworkPolicy>(&name, &rest).await?;
    target.delete::<ServiceAccount>(&name, &rest).await?;
    Ok(Outcome::Done)
}

/// Any kind of object here.
trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// Whose objects are deleted.
struct Target<'a> {
    client: &'a Client,
    namespace: &'a str,
    uid: &'a str,
}

async fn write<K: Object>(client: &Client, desired: &K) -> Result<Outcome, Error> {
    let name = desired.name_any();
    let what = what::<K>(&name);
    let failed = |error| Error::from_kube(what.clone(), error);
    let api = api::<K>(client, &desired.namespace().unwrap_or_default());
    let current = api.get_metadata_opt(&name).await.map_err(failed)?;
    match next_step(
        current.as_ref().map(|object| &object.metadata),
        desired.meta(),
    ) {
        Step::Foreign => Err(Error::Foreign(what)),
        Step::Wait => Ok(Outcome::Waiting(what)),
        Step::Replace { uid } => {
            // Its dependents stay, and its successor adopts them.
            let params = only(DeleteParams::orphan(), uid);
            ignore_gone(api.delete(&name, &params).await).map_err(failed)?;
            Ok(Outcome::Waiting(what))
        }
        Step::Apply => {
            let params = PatchParams::apply(FIELD_MANAGER).force();
            let patch = Patch::Apply(desired);
            api.patch(&name, &params, &patch).await.map_err(failed)?;
            Ok(Outcome::Done)
        }
    }
}

/// One that was wanted before, and is not any more.
async fn drop_network_policy(client: &Client, objects: &Objects) -> Result<Outcome, Error> {
    let metadata = &objects.stateful_set.metadata;
    let owner = metadata.owner_references.iter().flatten().next();
    let target = Target {
        client,
        namespace: metadata.namespace.as_deref().unwrap_or_default(),
        uid: owner.map(|owner| owner.uid.as_str()).unwrap_or_default(),
    };
    let name = metadata.name.as_deref().unwrap_or_default();
    let params = DeleteParams::background();
    target.delete::<NetworkPolicy>(name, &params).await?;
    Ok(Outcome::Done)
}

fn api<K: Object>(client: &Client, namespace: &str) -> Api<K> {
    Api::namespaced(client.clone(), namespace)
}

fn what<K: Object>(name: &str) -> String {
    format!("{} {name}", K::kind(&()))
}

fn only(params: DeleteParams, uid: Option<String>) -> DeleteParams {
    params.preconditions(Preconditions {
        uid,
        resource_version: None,
    })
}

fn ignore_gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}

// === impl Target ===

impl Target<'_> {
    /// Waits while the object is being deleted. An object of another owner stays.
    async fn delete<K: Object>(&self, name: &str, how: &DeleteParams) -> Result<Outcome, Error> {
        let what = what::<K>(name);
        let failed = |error| Error::from_kube(what.clone(), error);
        let api = api::<K>(self.client, self.namespace);
        let Some(current) = api.get_metadata_opt(name).await.map_err(failed)? else {
            return Ok(Outcome::Done);
        };
        if !existing::is_owned(&current.metadata, self.uid) {
            return Ok(Outcome::Done);
        }
        if current.metadata.deletion_timestamp.is_none() {
            let params = only(how.clone(), current.uid());
            ignore_gone(api.delete(name, &params).await).map_err(failed)?;
        }
        Ok(Outcome::Waiting(what))
    }
}

// === impl Error ===

impl Error {
    fn from_kube(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => Self::Invalid {
                what,
                message: status.message,
            },
            error => Self::Other {
                what,
                source: Box::new(error),
            },
        }
    }
}
