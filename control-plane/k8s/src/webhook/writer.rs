//! Writes webhook configurations. It makes no decisions.

use std::fmt::Debug;

use k8s_openapi::{
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams, Preconditions},
    core::{DynamicObject, Status},
    discovery::ApiResource,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Desired, Kind, merged};
use crate::names::FIELD_MANAGER;

/// Writes webhook configurations.
#[derive(Clone)]
pub struct Writer {
    client: Client,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It changed since it was read, so the decision must be made again.
    #[error("failed to write the webhook configuration: it changed meanwhile")]
    Conflict,
    /// It exists already.
    #[error("failed to create the webhook configuration: it exists already")]
    Exists,
    /// It does not exist.
    #[error("failed to write the webhook configuration: it is gone")]
    Gone,
    /// The API server rejects it, with its message; a retry would be rejected again.
    #[error("the API server rejects the webhook configuration: {0}")]
    Invalid(String),
    /// Anything else; a retry may help.
    #[error("failed to write the webhook configuration: {0}")]
    Other(Box<kube::Error>),
}

// === impl Writer ===

impl Writer {
    /// A writer that uses this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates it; fails if it exists.
    pub async fn create(&self, desired: &Desired) -> Result<ObjectMeta, Error> {
        match desired {
            Desired::Validating(object) => self.post(object.as_ref()).await,
            Desired::Mutating(object) => self.post(object.as_ref()).await,
        }
    }

    /// Reads one.
    pub async fn get(&self, kind: Kind, name: &str) -> Result<DynamicObject, Error> {
        let resource = match kind {
            Kind::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            Kind::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        Ok(api.get(name).await?)
    }

    /// Whether the API server would accept it, if there is none of that name.
    pub async fn dry_run(&self, desired: &Desired) -> Result<(), Error> {
        let params = PostParams {
            dry_run: true,
            ..params()
        };
        let taken = match desired {
            Desired::Validating(object) => {
                self.validating().create(&params, object).await.map(drop)
            }
            Desired::Mutating(object) => self.mutating().create(&params, object).await.map(drop),
        };
        taken.map_err(Error::from)
    }

    /// Replaces the object with the metadata `actual`, if it has not changed since it was read.
    pub async fn update(
        &self,
        actual: &ObjectMeta,
        desired: &Desired,
    ) -> Result<ObjectMeta, Error> {
        if actual.resource_version.is_none() {
            // Without a resourceVersion the API server overwrites any state.
            return Err(Error::Conflict);
        }
        match merged(actual, desired) {
            Desired::Validating(object) => self.put(*object).await,
            Desired::Mutating(object) => self.put(*object).await,
        }
    }

    /// Deletes the object with this uid.
    pub async fn delete(&self, kind: Kind, name: &str, uid: &str) -> Result<(), Error> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        let deleted = match kind {
            Kind::Validating => self.validating().delete(name, &params).await.map(drop),
            Kind::Mutating => self.mutating().delete(name, &params).await.map(drop),
        };
        deleted.map_err(Error::from)
    }

    async fn post<K: Object>(&self, object: &K) -> Result<ObjectMeta, Error> {
        let api: Api<K> = Api::all(self.client.clone());
        let mut created = api.create(&params(), object).await?;
        Ok(std::mem::take(created.meta_mut()))
    }

    async fn put<K: Object>(&self, object: K) -> Result<ObjectMeta, Error> {
        let api: Api<K> = Api::all(self.client.clone());
        let name = object.meta().name.clone().unwrap_or_default();
        let mut updated = api.replace(&name, &params(), &object).await?;
        Ok(std::mem::take(updated.meta_mut()))
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }
}

/// Either kind of configuration.
trait Object:
    Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl Object for ValidatingWebhookConfiguration {}
impl Object for MutatingWebhookConfiguration {}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

// === impl Error ===

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(status),
            error => Self::Other(Box::new(error)),
        }
    }
}

impl Error {
    fn from_status(status: Box<Status>) -> Self {
        match status.code {
            404 => Self::Gone,
            409 if status.is_already_exists() => Self::Exists,
            409 => Self::Conflict,
            // Too large, malformed or invalid: a retry does not help.
            400 | 413 | 422 => Self::Invalid(status.message),
            _ => Self::Other(Box::new(kube::Error::Api(status))),
        }
    }
}
