//! `cleanup`: takes away what would outlive an uninstallation and hurt: webhooks that nobody
//! answers, finalizers that nobody removes. Users' policies stay.

use std::time::Duration;

use anyhow::Context as _;
use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyServer};
use assent_k8s::{lease, names};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tracing::info;

/// How long nobody leads while things are removed.
const HOLD: Duration = Duration::from_secs(300);

/// How long nobody leads after that: the pods are told to stop within moments, and the next
/// installation should not wait.
const HOLD_AFTER: Duration = Duration::from_secs(30);

/// Removes every webhook configuration of ours, then the `default` PolicyServer, then finalizers,
/// then what is left in our namespace. The Lease is taken first, and `lease` waited for, after
/// which nobody who led acts any more: no control plane puts back what is removed.
pub(crate) async fn cleanup(
    client: &Client,
    namespace: &str,
    lease: Duration,
) -> anyhow::Result<()> {
    seize(client, namespace, HOLD).await?;
    tokio::time::sleep(lease).await;
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
    remove_own::<ConfigMap>(client, namespace).await?;
    remove_own::<Secret>(client, namespace).await?;
    seize(client, namespace, HOLD_AFTER).await
}

async fn seize(client: &Client, namespace: &str, hold: Duration) -> anyhow::Result<()> {
    let seized = lease::seize(client, namespace, "uninstall", hold).await;
    seized.context("failed to take the Lease from the control plane")
}

/// Removes the authority, unless somebody else made it.
async fn remove_own<K>(client: &Client, namespace: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(names::CA).await?;
    let (key, value) = names::MANAGED_BY;
    if found.is_some_and(|object| object.labels().get(key).is_some_and(|by| by == value)) {
        api.delete(names::CA, &DeleteParams::default()).await?;
        info!(kind = %K::kind(&()), name = names::CA, "removed");
    }
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
