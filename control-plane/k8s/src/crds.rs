//! `apply-crds`: brings the cluster's custom resource definitions up to this build's.

use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyRevision, PolicyServer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{Patch, PatchParams},
};
use tracing::info;

use crate::names;

/// A definition could not be applied.
#[derive(Debug, thiserror::Error)]
#[error("failed to apply the definition {name}")]
pub struct Error {
    name: String,
    #[source]
    source: Box<kube::Error>,
}

/// Applies every definition. Definitions of earlier versions that this build no longer has are
/// left alone.
pub async fn apply(client: &Client) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let definitions = [
        ClusterAdmissionPolicy::crd(),
        AdmissionPolicy::crd(),
        PolicyServer::crd(),
        PolicyRevision::crd(),
    ];
    for definition in definitions {
        let name = definition.name_any();
        if let Err(source) = api.patch(&name, &params, &Patch::Apply(&definition)).await {
            let source = Box::new(source);
            return Err(Error { name, source });
        }
        info!(%name, "applied the definition");
    }
    Ok(())
}
