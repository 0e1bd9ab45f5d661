//! Settings that follow from the command line: identity, addresses, exclusions.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use assent_api::{settings::SettingsKey, tenancy::Reserved};
use assent_k8s::{
    Client, connect,
    lease::Timing,
    names,
    settings::{KeyError, settings_key},
    webhook::WebhookEndpoint,
    workload,
};

use super::args::ClusterArgs;
use tracing::error;

/// Name of the discovery Service, for certificates and evaluators.
pub(super) const DISCOVERY_SERVICE: &str = names::DISCOVERY_SERVICE;

/// Namespaces that no policy applies to: a mistake there could not be repaired from within.
const NEVER: [&str; 2] = ["kube-system", "kube-node-lease"];

/// A client for the API server.
pub(crate) async fn client(args: &ClusterArgs) -> anyhow::Result<Client> {
    Ok(connect::connect(args.kubeconfig.as_deref()).await?)
}

pub(super) fn identity(args: &ClusterArgs) -> anyhow::Result<String> {
    if let Some(identity) = &args.identity {
        return Ok(identity.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("failed to read the host name; set --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

pub(super) fn advertised(args: &ClusterArgs, listening: SocketAddr) -> String {
    match (&args.advertise_address, args.pod_ip) {
        (Some(address), _) => address.clone(),
        (None, Some(ip)) => SocketAddr::new(ip, listening.port()).to_string(),
        (None, None) => listening.to_string(),
    }
}

pub(super) fn timing(lease: Duration) -> Timing {
    let default = Timing::default();
    // The same proportions as the defaults.
    Timing {
        lease,
        renew: lease.mul_f64(default.renew.as_secs_f64() / default.lease.as_secs_f64()),
        retry: lease.mul_f64(default.retry.as_secs_f64() / default.lease.as_secs_f64()),
    }
}

pub(super) fn workload_options(args: &ClusterArgs, address: &str) -> workload::Options {
    let service = || format!("https://{DISCOVERY_SERVICE}.{}.svc:15010", args.namespace);
    let version = env!("CARGO_PKG_VERSION");
    workload::Options {
        namespace: args.namespace.clone(),
        image: args
            .evaluator_image
            .clone()
            .unwrap_or_else(|| format!("ghcr.io/assent-dev/assent-evaluator:{version}")),
        image_pull_policy: args.evaluator_pull_policy.clone(),
        discovery: args
            .discovery_url
            .clone()
            .unwrap_or_else(|| match args.webhook_base_url {
                Some(_) => format!("https://{address}"),
                None => service(),
            }),
        network_policy: args.network_policy,
    }
}

pub(super) fn own_endpoint(args: &ClusterArgs) -> WebhookEndpoint {
    match &args.own_webhook_url {
        Some(url) => WebhookEndpoint::Url(url.clone()),
        None => WebhookEndpoint::Service {
            namespace: args.namespace.clone(),
            name: args.webhook_service.clone(),
            port: 443,
        },
    }
}

fn excluded(args: &ClusterArgs) -> Vec<String> {
    let mut excluded: Vec<String> = NEVER.iter().map(|ns| (*ns).to_owned()).collect();
    excluded.push(args.namespace.clone());
    excluded.extend(args.excluded_namespaces.iter().cloned());
    excluded
}

/// How objects are parsed; `service_accounts` are the control plane's own users.
pub(super) fn parse_options(
    args: &ClusterArgs,
    service_accounts: &[String],
    settings_key: Option<SettingsKey>,
) -> assent_api::Options {
    let prefix = format!("system:serviceaccount:{}:", args.namespace);
    let accounts = service_accounts.iter();
    let accounts = accounts.filter_map(|user| user.strip_prefix(&prefix));
    let own = [
        names::CA,
        names::CA_RECORD,
        names::STATE_KEY,
        names::SETTINGS_KEY,
    ];
    let own = own.map(str::to_owned);
    assent_api::Options {
        standalone: false,
        excluded_namespaces: excluded(args),
        protected_resources: args.protected_resources.clone(),
        reserved: Reserved {
            secrets: own.into_iter().chain(args.ca_secret.clone()).collect(),
            config_maps: [names::CA_CONFIG_MAP.to_owned()].into(),
            service_accounts: accounts.map(str::to_owned).collect(),
        },
        settings_key,
    }
}

/// The key that encrypts settings. A control plane whose key is damaged serves all other policies.
pub(super) async fn load_settings_key(
    client: &Client,
    namespace: &str,
) -> anyhow::Result<Option<SettingsKey>> {
    match settings_key(client, namespace).await {
        Ok(key) => Ok(Some(key)),
        Err(error @ KeyError::Damaged) => {
            error!("settings cannot come from Secrets: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Policies that a namespace may have; `None` for any number.
pub(super) fn quota(max: usize) -> Option<usize> {
    (max > 0).then_some(max)
}

/// Users that no policy applies to: those of the command line, and the control plane's own. A
/// policy that kept the control plane from writing could never be repaired.
pub(super) async fn service_accounts(
    client: &Client,
    args: &ClusterArgs,
) -> anyhow::Result<Vec<String>> {
    let own = connect::own_user(client).await?;
    let mut accounts = args.service_accounts.clone();
    accounts.extend(own.filter(|own| !args.service_accounts.contains(own)));
    Ok(accounts)
}
