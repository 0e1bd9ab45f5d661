//! `cleanup`: takes away what would outlive an uninstallation and hurt: webhooks that nobody
//! answers, finalizers that nobody removes. Users' policies stay, and say that nobody enforces
//! them.

use std::time::Duration;

use anyhow::Context as _;
use assent_api::{AdmissionPolicy, ClusterAdmissionPolicy, PolicyServer, PolicyStatus};
use assent_k8s::{lease, names};
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

use super::args::CleanupArgs;
use crate::view::now;

/// How long nobody leads while things are removed.
const HOLD: Duration = Duration::from_secs(300);

/// How long nobody leads after that: the pods are told to stop within moments, and the next
/// installation should not wait.
const HOLD_AFTER: Duration = Duration::from_secs(30);

/// Removes every webhook configuration of ours, then the `default` PolicyServer, then finalizers,
/// then what is left in our namespace. The Lease is taken first, and its time waited for, after
/// which nobody who led acts any more: no control plane puts back what is removed.
pub(crate) async fn cleanup(client: &Client, args: CleanupArgs) -> anyhow::Result<()> {
    let CleanupArgs {
        cluster,
        service_account,
    } = args;
    let namespace = &cluster.namespace;
    let led = seize(client, namespace, HOLD, None).await?;
    tokio::time::sleep(led.unwrap_or(cluster.lease_seconds)).await;
    remove_all::<ValidatingWebhookConfiguration>(client).await?;
    remove_all::<MutatingWebhookConfiguration>(client).await?;
    remove_default_server(client).await?;
    release_all::<PolicyServer>(client).await?;
    release_all::<ClusterAdmissionPolicy>(client).await?;
    release_all::<AdmissionPolicy>(client).await?;
    retract_all::<ClusterAdmissionPolicy>(client).await?;
    retract_all::<AdmissionPolicy>(client).await?;
    remove_own::<ConfigMap>(client, namespace).await?;
    remove_own::<Secret>(client, namespace).await?;
    let owner = match service_account {
        Some(name) => owner(client, namespace, &name).await?,
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
) -> anyhow::Result<Option<Duration>> {
    let seized = lease::seize(client, namespace, "uninstall", hold, owner).await;
    seized.context("failed to take the Lease from the control plane")
}

/// The service account as an owner: whatever has it as the only one goes when it goes, which is
/// when no control plane can write any more.
async fn owner(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<OwnerReference>> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account = api.get_opt(name).await?;
    Ok(account.and_then(|account| account.owner_ref(&())))
}

async fn remove_default_server(client: &Client) -> anyhow::Result<()> {
    let servers: Api<PolicyServer> = Api::all(client.clone());
    let default = assent_core::policy::DEFAULT_SERVER;
    if servers.get_opt(default).await?.is_none() {
        return Ok(());
    }
    let allow =
        json!({ "metadata": { "annotations": { names::ALLOW_DELETE_ANNOTATION: "true" } } });
    servers
        .patch(default, &PatchParams::default(), &Patch::Merge(allow))
        .await?;
    servers.delete(default, &DeleteParams::background()).await?;
    Ok(())
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

async fn release_all<K: Resource<DynamicType = ()>>(client: &Client) -> anyhow::Result<()> {
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
        patched.with_context(|| format!("failed to release {name}"))?;
        info!(kind = %K::kind(&()), %name, "released");
    }
    Ok(())
}

/// Takes back what statuses claim: nobody keeps them true any more.
async fn retract_all<K: Resource<DynamicType = ()>>(client: &Client) -> anyhow::Result<()> {
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
                other.with_context(|| format!("failed to write the status of {name}"))?;
                info!(kind = %K::kind(&()), %name, "retracted");
            }
        }
    }
    Ok(())
}

/// All objects of a kind, each with where it is.
async fn list<K: Resource<DynamicType = ()>>(
    client: &Client,
) -> anyhow::Result<Vec<(Api<DynamicObject>, DynamicObject)>> {
    let resource = ApiResource::erase::<K>(&());
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let list = all.list(&ListParams::default()).await?;
    let found = list.into_iter().map(|object| {
        let api = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => all.clone(),
        };
        (api, object)
    });
    Ok(found.collect())
}

/// The status of a policy that nobody enforces; none where there is nothing to take back.
fn retracted(status: &Value, now: Time) -> Option<PolicyStatus> {
    let mut status: PolicyStatus = serde_json::from_value(status.clone()).ok()?;
    let claims = status.conditions.iter_mut();
    for condition in claims.filter(|c| c.type_ != "Accepted") {
        if condition.status != "False" {
            condition.last_transition_time = now.clone();
        }
        condition.status = "False".to_owned();
        condition.reason = "Uninstalled".to_owned();
        condition.message = "Assent was uninstalled, and nobody enforces this policy".to_owned();
    }
    Some(PolicyStatus {
        observed_generation: status.observed_generation,
        conditions: status.conditions,
        ..PolicyStatus::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const THEN: &str = "2026-01-02T03:04:05Z";

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "observedGeneration": 7, "lastTransitionTime": THEN,
        })
    }

    #[test]
    fn a_policy_claims_nothing_that_nobody_keeps_true() {
        let status = json!({
            "observedGeneration": 7,
            "active": {"generation": 7, "revision": "7-0011aabb"},
            "rollout": {"desired": 3, "applied": 3, "rejected": 0, "behind": 0, "disconnected": 0},
            "replicas": [{"name": "policy-server-default-0", "generation": 7}],
            "replicasOmitted": 2,
            "conditions": [
                condition("Accepted", "True", "Accepted"),
                condition("Programmed", "False", "Reconciling"),
                condition("Enforced", "True", "Enforced"),
            ],
        });
        let now = now();
        let left = retracted(&status, now.clone()).unwrap();

        let conditions = left.conditions.iter();
        let told: Vec<_> = conditions
            .map(|c| {
                (
                    &*c.type_,
                    &*c.status,
                    &*c.reason,
                    c.last_transition_time == now,
                )
            })
            .collect();
        let expect = [
            ("Accepted", "True", "Accepted", false),
            ("Programmed", "False", "Uninstalled", false),
            ("Enforced", "False", "Uninstalled", true),
        ];
        assert_eq!(told, expect);
        assert_eq!(left.observed_generation, Some(7));
        assert_eq!((left.active, left.rollout), (None, None));
        assert!(left.replicas.is_empty());
        assert_eq!(left.replicas_omitted, 0);
    }

    #[test]
    fn a_policy_without_a_status_stays_so() {
        assert_eq!(retracted(&Value::Null, now()), None);
    }
}
