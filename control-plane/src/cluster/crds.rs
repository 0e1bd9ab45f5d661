//! `apply-crds`: brings the cluster's definitions of our kinds up to this build's.

use anyhow::Context as _;
use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyRevision, PolicyServer};
use assent_k8s::names;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt as _, ResourceExt as _,
    api::{Patch, PatchParams},
};
use tracing::info;

/// Applies every definition; what an earlier version defined and nobody uses stays.
pub(crate) async fn apply(client: &Client) -> anyhow::Result<()> {
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
        let applied = api.patch(&name, &params, &Patch::Apply(&definition)).await;
        applied.with_context(|| format!("failed to apply the definition {name}"))?;
        info!(%name, "applied");
    }
    Ok(())
}
