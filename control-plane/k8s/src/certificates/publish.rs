//! What to trust, where pods can mount it.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Error;
use crate::names;

/// Writes the ConfigMap with the bundle into a namespace.
pub async fn publish_bundle(
    client: &Client,
    namespace: &str,
    bundle_pem: &str,
) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names::CA,
            "labels": { names::MANAGED_BY.0: names::MANAGED_BY.1 },
        },
        "data": { names::CA_BUNDLE_KEY: bundle_pem },
    });
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    api.patch(names::CA, &params, &Patch::Apply(&map)).await?;
    Ok(())
}

/// The bundle that is published in a namespace; empty if there is none.
pub(super) async fn published_bundle(client: &Client, namespace: &str) -> Result<String, Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = api.get_opt(names::CA).await?;
    let mut data = map.and_then(|map| map.data).unwrap_or_default();
    Ok(data.remove(names::CA_BUNDLE_KEY).unwrap_or_default())
}
