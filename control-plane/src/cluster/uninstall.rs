//! `cleanup`: takes away what would outlive an uninstallation and hurt: webhooks that nobody
//! answers, finalizers that nobody removes. Users' policies stay.

use anyhow::Context as _;
use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyServer};
use assent_k8s::{lease, names};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::info;

/// Removes every webhook configuration of ours, then the `default` PolicyServer, then finalizers.
/// The Lease is taken first, so that no control plane puts back what is removed.
pub(crate) async fn cleanup(client: &Client, namespace: &str) -> anyhow::Result<()> {
    lease::seize(client, namespace, "uninstall")
        .await
        .context("failed to take the Lease from the control plane")?;
    remove_all::<ValidatingWebhookConfiguration>(client).await?;
    remove_all::<MutatingWebhookConfiguration>(client).await?;
    let servers: Api<PolicyServer> = Api::all(client.clone());
    let default = assent_core::policy::DEFAULT_SERVER;
    if servers.get_opt(default).await?.is_some() {
        let allow =
            json!({ "metadata": { "annotations": { names::ALLOW_DELETE_ANNOTATION: "true" } } });
        servers
            .patch(default, &PatchParams::default(), &Patch::Merge(allow))
            .await?;
        servers.delete(default, &DeleteParams::background()).await?;
    }
    release_all::<PolicyServer>(client).await?;
    release_all::<ClusterAdmissionPolicy>(client).await?;
    release_all::<AdmissionPolicy>(client).await?;
    Ok(())
}

async fn remove_all<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let (key, value) = names::MANAGED_BY;
    let ours = ListParams::default().labels(&format!("{key}={value}"));
    for object in api.list(&ours).await? {
        let name = object.name_any();
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => {
                other.with_context(|| format!("failed to remove {name}"))?;
                info!(kind = %K::kind(&()), %name, "removed");
            }
        }
    }
    Ok(())
}

async fn release_all<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let all: Api<K> = Api::all(client.clone());
    for object in all.list(&ListParams::default()).await? {
        let mut finalizers = object.finalizers().to_vec();
        if !finalizers.iter().any(|f| f == names::FINALIZER) {
            continue;
        }
        finalizers.retain(|f| f != names::FINALIZER);
        let patch = json!({ "metadata": {
            "finalizers": finalizers,
            "resourceVersion": object.resource_version(),
        }});
        let name = object.name_any();
        let resource = kube::discovery::ApiResource::erase::<K>(&());
        let api: Api<kube::core::DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let patched = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("failed to release {name}"))?;
        info!(kind = %K::kind(&()), %name, "released");
    }
    Ok(())
}
