//! `cleanup`: removes what would outlive an uninstallation and do harm: webhooks that nothing
//! answers, finalizers that nothing removes. Users' policies stay; their statuses report that
//! they are no longer enforced.

use std::time::Duration;

use assent_api::{
    AdmissionPolicy, ClusterAdmissionPolicy, PolicyRevision, PolicyServer, PolicyStatus,
};
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{ConfigMap, Secret, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::info;

use crate::{lease, names};

#[cfg(test)]
mod tests;

/// How long the Lease is held while objects are removed.
const HOLD: Duration = Duration::from_secs(300);

/// How long the Lease is held afterwards: the pods are terminated within moments, and the next
/// installation should not wait.
const HOLD_AFTER: Duration = Duration::from_secs(30);

/// What is cleaned up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The control plane's namespace.
    pub namespace: String,
    /// How long a leader may act after it last renewed, if its Lease does not tell.
    pub lease: Duration,
    /// The control plane's service account: the Lease is deleted along with it.
    pub service_account: Option<String>,
}

/// A step of the cleanup failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action}")]
pub struct Error {
    action: String,
    #[source]
    source: Box<kube::Error>,
}

/// Removes the control plane's webhook configurations, then the `default` PolicyServer, then
/// finalizers, then what is left in its namespace. The Lease is taken first and its duration
/// waited for: from then on no former leader writes, and nothing restores what is removed.
pub async fn cleanup(client: &Client, options: Options) -> Result<(), Error> {
    let Options {
        namespace,
        lease,
        service_account,
    } = &options;
    let held = seize(client, namespace, HOLD, None).await?;
    tokio::time::sleep(held.unwrap_or(*lease)).await;
    remove_all::<ValidatingWebhookConfiguration>(client).await?;
    remove_all::<MutatingWebhookConfiguration>(client).await?;
    remove_default_server(client).await?;
    release_all::<PolicyServer>(client).await?;
    release_all::<ClusterAdmissionPolicy>(client).await?;
    release_all::<AdmissionPolicy>(client).await?;
    release_all::<PolicyRevision>(client).await?;
    retract_all::<ClusterAdmissionPolicy>(client).await?;
    retract_all::<AdmissionPolicy>(client).await?;
    remove_own::<ConfigMap>(client, namespace, names::CA).await?;
    remove_own::<Secret>(client, namespace, names::CA).await?;
    remove_own::<Secret>(client, namespace, names::CA_RECORD).await?;
    remove_own::<Secret>(client, namespace, names::SETTINGS_KEY).await?;
    let owner = match service_account {
        Some(name) => owner(client, namespace, name).await?,
        None => None,
    };
    seize(client, namespace, HOLD_AFTER, owner.as_ref()).await?;
    Ok(())
}

async fn seize(
    client: &Client,
    namespace: &str,
    hold: Duration,
    owner: Option<&OwnerReference>,
) -> Result<Option<Duration>, Error> {
    let seized = lease::seize(client, namespace, "uninstall", hold, owner).await;
    seized.map_err(failed("take the Lease from the control plane"))
}

/// The service account as an owner: what it alone owns is deleted along with it, when no control
/// plane can write any more.
async fn owner(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<OwnerReference>, Error> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account = api.get_opt(name).await;
    let account = account.map_err(failed(&format!("read the service account {name}")))?;
    Ok(account.and_then(|account| account.owner_ref(&())))
}

async fn remove_default_server(client: &Client) -> Result<(), Error> {
    let servers: Api<PolicyServer> = Api::all(client.clone());
    let default = assent_core::policy::DEFAULT_SERVER;
    let error = || failed("remove the default PolicyServer");
    if servers.get_opt(default).await.map_err(error())?.is_none() {
        return Ok(());
    }
    let allow =
        json!({ "metadata": { "annotations": { names::ALLOW_DELETE_ANNOTATION: "true" } } });
    servers
        .patch(default, &PatchParams::default(), &Patch::Merge(allow))
        .await
        .map_err(error())?;
    let deleted = servers.delete(default, &DeleteParams::background()).await;
    deleted.map_err(error())?;
    Ok(())
}

/// Removes an object of the certificate authority, unless it was created by somebody else.
async fn remove_own<K>(client: &Client, namespace: &str, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let error = || failed(&format!("remove {} {name}", K::kind(&())));
    let found = api.get_opt(name).await.map_err(error())?;
    let (key, value) = names::MANAGED_BY;
    if found.is_some_and(|object| object.labels().get(key).is_some_and(|by| by == value)) {
        let deleted = api.delete(name, &DeleteParams::default()).await;
        deleted.map_err(error())?;
        info!(kind = %K::kind(&()), name, "removed");
    }
    Ok(())
}

async fn remove_all<K>(client: &Client) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let (key, value) = names::MANAGED_BY;
    let ours = ListParams::default().labels(&format!("{key}={value}"));
    let listed = api.list(&ours).await;
    for object in listed.map_err(failed(&format!("list {}s", K::kind(&()))))? {
        let name = object.name_any();
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => {
                other.map_err(failed(&format!("remove {name}")))?;
                info!(kind = %K::kind(&()), %name, "removed");
            }
        }
    }
    Ok(())
}

async fn release_all<K: Resource<DynamicType = ()>>(client: &Client) -> Result<(), Error> {
    for (api, object) in list::<K>(client).await? {
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
        let patched = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.map_err(failed(&format!("remove the finalizer of {name}")))?;
        info!(kind = %K::kind(&()), %name, "removed the finalizer");
    }
    Ok(())
}

/// Sets the conditions of every policy to false: nothing keeps them up to date any more.
async fn retract_all<K: Resource<DynamicType = ()>>(client: &Client) -> Result<(), Error> {
    for (api, object) in list::<K>(client).await? {
        let Some(status) = retracted(&object.data["status"], now()) else {
            continue;
        };
        let name = object.name_any();
        let whole = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": name, "uid": object.uid() },
            "status": status,
        });
        let params = PatchParams::apply(names::FIELD_MANAGER).force();
        match api.patch_status(&name, &params, &Patch::Apply(whole)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            other => {
                other.map_err(failed(&format!("write the status of {name}")))?;
                info!(kind = %K::kind(&()), %name, "reported as no longer enforced");
            }
        }
    }
    Ok(())
}

/// All objects of a kind, each with the API that it is written through.
async fn list<K: Resource<DynamicType = ()>>(
    client: &Client,
) -> Result<Vec<(Api<DynamicObject>, DynamicObject)>, Error> {
    let resource = ApiResource::erase::<K>(&());
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let list = all.list(&ListParams::default()).await;
    let list = list.map_err(failed(&format!("list {}s", K::kind(&()))))?;
    let found = list.into_iter().map(|object| {
        let api = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => all.clone(),
        };
        (api, object)
    });
    Ok(found.collect())
}

/// The status of a policy that is no longer enforced; none if it has no status.
fn retracted(status: &Value, now: Time) -> Option<PolicyStatus> {
    let mut status: PolicyStatus = serde_json::from_value(status.clone()).ok()?;
    let claims = status.conditions.iter_mut();
    for condition in claims.filter(|c| c.type_ != "Accepted") {
        if condition.status != "False" {
            condition.last_transition_time = now.clone();
        }
        condition.status = "False".to_owned();
        condition.reason = "Uninstalled".to_owned();
        condition.message = "Assent was uninstalled; this policy is not enforced".to_owned();
    }
    Some(PolicyStatus {
        observed_generation: status.observed_generation,
        conditions: status.conditions,
        ..PolicyStatus::default()
    })
}

/// Timestamps in objects have a resolution of one second.
fn now() -> Time {
    let now = Timestamp::now().as_second();
    Time(Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn failed(action: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let action = action.to_owned();
    |source| Error {
        action,
        source: Box::new(source),
    }
}
