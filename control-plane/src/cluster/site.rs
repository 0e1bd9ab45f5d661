//! What follows from the command line: who we are, where we are found, what is ours.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use assent_k8s::{admission::configurations::Reach, connect, lease::Timing, workload};
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Namespace};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::args::ClusterArgs;

/// Name of the discovery Service, for certificates and evaluators.
pub(super) const DISCOVERY_SERVICE: &str = "assent-discovery";

/// Namespaces that no policy ever sees: a mistake there can't be mended from within.
const NEVER: [&str; 2] = ["kube-system", "kube-node-lease"];

/// A client for the API server.
pub(crate) async fn client(args: &ClusterArgs) -> anyhow::Result<Client> {
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("failed to read --kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .context("failed to use --kubeconfig")?
        }
        None => Config::incluster().context(
            "not in a cluster (there is no service account); outside of one give --kubeconfig",
        )?,
    };
    // A watch is answered for minutes; anything else that hangs is tried again.
    config.connect_timeout = Some(Duration::from_secs(10));
    connect::client(config).context("failed to make a client for the API server")
}

pub(super) async fn own_namespace(client: &Client, name: &str) -> anyhow::Result<Namespace> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_opt(name).await;
    found
        .context("failed to reach the API server")?
        .with_context(|| {
            format!("there is no namespace {name}: create it, or name ours by --namespace")
        })
}

pub(super) fn identity(args: &ClusterArgs) -> anyhow::Result<String> {
    if let Some(identity) = &args.identity {
        return Ok(identity.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("failed to find a name for this replica; give one by --identity")?;
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
    // The same proportions as the default's.
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

pub(super) fn own_reach(args: &ClusterArgs) -> Reach {
    match &args.own_webhook_url {
        Some(url) => Reach::Url(url.clone()),
        None => Reach::Service {
            namespace: args.namespace.clone(),
            name: args.webhook_service.clone(),
            port: 443,
        },
    }
}

pub(super) fn excluded(args: &ClusterArgs) -> Vec<String> {
    let mut excluded: Vec<String> = NEVER.iter().map(|ns| (*ns).to_owned()).collect();
    excluded.push(args.namespace.clone());
    excluded.extend(args.excluded_namespaces.iter().cloned());
    excluded
}

/// Users that no policy ever sees: what the command line says, and whoever we are ourselves. A
/// policy that kept us from writing could never be mended.
pub(super) async fn service_accounts(
    client: &Client,
    args: &ClusterArgs,
) -> anyhow::Result<Vec<String>> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .context("failed to ask the API server who we are")?;
    let user = review.status.and_then(|s| s.user_info);
    let own = user.and_then(|u| u.username);
    let mut accounts = args.service_accounts.clone();
    accounts.extend(own.filter(|own| !args.service_accounts.contains(own)));
    Ok(accounts)
}
