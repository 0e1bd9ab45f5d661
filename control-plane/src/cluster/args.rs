//! The command line in a cluster.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use assent_api::parse::ProtectedResources;
use clap::Args;

use crate::standalone::args::seconds;

/// Runs as a controller of a Kubernetes cluster.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Kubeconfig for the API server; without it the pod's service account is used
    #[arg(long, env = "ASSENT_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The control plane's own namespace
    #[arg(
        long,
        env = "ASSENT_NAMESPACE",
        value_name = "NS",
        default_value = "assent-system"
    )]
    pub namespace: String,
    /// Name of this replica; must be unique among running replicas
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Address that evaluators connect to (gRPC)
    #[arg(
        long,
        env = "ASSENT_DISCOVERY",
        value_name = "ADDR",
        default_value = "0.0.0.0:15010"
    )]
    pub discovery: SocketAddr,
    /// Concurrent calls on one connection to --discovery; raise it for evaluators behind a proxy
    #[arg(
        long,
        env = "ASSENT_MAX_CONNECTION_STREAMS",
        value_name = "N",
        default_value = "100"
    )]
    pub max_connection_streams: u32,
    /// Address at which others reach this replica's discovery port; without it the pod's address is used
    #[arg(long, env = "ASSENT_ADVERTISE_ADDRESS", value_name = "HOST:PORT")]
    pub advertise_address: Option<String>,
    /// Address of the pod
    #[arg(long, env = "POD_IP", value_name = "IP", hide = true)]
    pub pod_ip: Option<std::net::IpAddr>,
    /// URL of the discovery Service that evaluators are given
    #[arg(long, env = "ASSENT_DISCOVERY_URL", value_name = "URL")]
    pub discovery_url: Option<String>,
    /// Address of the webhooks for Assent's own kinds and for pods
    #[arg(
        long,
        env = "ASSENT_WEBHOOK",
        value_name = "ADDR",
        default_value = "0.0.0.0:9443"
    )]
    pub webhook: SocketAddr,
    /// Name of the Service in front of --webhook
    #[arg(
        long,
        env = "ASSENT_WEBHOOK_SERVICE",
        value_name = "NAME",
        default_value = "assent-webhook"
    )]
    pub webhook_service: String,
    /// Address of metrics and probes
    #[arg(
        long,
        env = "ASSENT_HTTP",
        value_name = "ADDR",
        default_value = "0.0.0.0:15014"
    )]
    pub http: SocketAddr,
    /// Directory for modules
    #[arg(
        long,
        env = "ASSENT_STATE",
        value_name = "DIR",
        default_value = "/var/lib/assent"
    )]
    pub state: PathBuf,
    /// For development outside of the cluster: URL of policies' webhooks, instead of their
    /// Service
    #[arg(long, env = "ASSENT_WEBHOOK_BASE_URL", value_name = "URL")]
    pub webhook_base_url: Option<String>,
    /// For development outside of the cluster: URL of Assent's own webhooks, instead of their
    /// Service
    #[arg(long, env = "ASSENT_OWN_WEBHOOK_URL", value_name = "URL")]
    pub own_webhook_url: Option<String>,
    /// Image of evaluators whose PolicyServer names no image
    #[arg(long, env = "ASSENT_EVALUATOR_IMAGE", value_name = "IMAGE")]
    pub evaluator_image: Option<String>,
    /// Pull policy of that image
    #[arg(long, env = "ASSENT_EVALUATOR_PULL_POLICY", value_name = "POLICY")]
    pub evaluator_pull_policy: Option<String>,
    /// Manifest of the `default` PolicyServer, which is created if it does not exist
    #[arg(long, env = "ASSENT_DEFAULT_POLICY_SERVER", value_name = "FILE")]
    pub default_policy_server: Option<PathBuf>,
    /// Create a NetworkPolicy for each PolicyServer
    #[arg(long, env = "ASSENT_NETWORK_POLICY")]
    pub network_policy: bool,
    /// Namespaces that policies never apply to, in addition to Assent's own, kube-system and
    /// kube-node-lease
    #[arg(
        long,
        env = "ASSENT_EXCLUDED_NAMESPACES",
        value_name = "NS",
        value_delimiter = ','
    )]
    pub excluded_namespaces: Vec<String>,
    /// Namespaces whose ConfigMaps may hold policies of the cluster, written as text
    #[arg(
        long,
        env = "ASSENT_POLICY_NAMESPACES",
        value_name = "NS",
        value_delimiter = ','
    )]
    pub policy_namespaces: Vec<String>,
    /// Resources that mutating AdmissionPolicies must not change, separated by commas; empty for none
    #[arg(
        long,
        env = "ASSENT_PROTECTED_RESOURCES",
        value_name = "RESOURCES",
        default_value_t
    )]
    pub protected_resources: ProtectedResources,
    /// Maximum number of policies in a namespace; the oldest are accepted. 0 = no limit
    #[arg(
        long,
        env = "ASSENT_MAX_POLICIES_PER_NAMESPACE",
        value_name = "N",
        default_value = "100"
    )]
    pub max_policies_per_namespace: usize,
    /// Users whose requests policies never see, in addition to the control plane's own
    #[arg(
        long,
        env = "ASSENT_SERVICE_ACCOUNTS",
        value_name = "USER",
        value_delimiter = ','
    )]
    pub service_accounts: Vec<String>,
    /// Secret with a certificate authority that cert-manager manages; without it the control
    /// plane manages its own
    #[arg(long, env = "ASSENT_CA_SECRET", value_name = "SECRET")]
    pub ca_secret: Option<String>,
    /// Inject evaluators as plain containers, for kubelets without native sidecars
    #[arg(long, env = "ASSENT_PLAIN_SIDECARS")]
    pub plain_sidecars: bool,
    /// Seconds for which a retired or deleted revision is still served; by default at least 60, and
    /// 10 after a deletion
    #[arg(long, env = "ASSENT_DRAIN_SECONDS", value_name = "SECONDS", value_parser = seconds)]
    pub drain_seconds: Option<Duration>,
    /// Seconds for which a replica counts after it disconnected
    #[arg(long, env = "ASSENT_REPLICA_GRACE", value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub replica_grace: Duration,
    /// Seconds after which another replica takes over from a leader that does not renew its Lease
    #[arg(long, env = "ASSENT_LEASE_SECONDS", value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    pub lease_seconds: Duration,
    /// Seconds for which Assent's own webhooks are still answered after SIGTERM, because API servers
    /// learn of the shutdown with a delay
    #[arg(long, env = "ASSENT_LINGER_SECONDS", value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub linger_seconds: Duration,
    /// Format of log lines: text or json
    #[arg(long, env = "ASSENT_LOG_FORMAT", value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub log_format: String,
}

/// Prepares an uninstallation.
#[derive(Args, Clone, Debug)]
pub struct CleanupArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The control plane's service account; objects that a leader still needs are deleted with it
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
}
