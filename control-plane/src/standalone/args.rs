//! The command line of a standalone control plane.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use assent_api::parse::ProtectedResources;
use assent_evaluator::args::authz::AuthzArgs;
use clap::Args;

/// Runs a control plane and evaluators in one process, without Kubernetes.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Directory of policy manifests; its top level is watched
    #[arg(
        long,
        value_name = "DIR",
        default_value = "policies",
        env = "ASSENT_POLICIES"
    )]
    pub policies: PathBuf,

    /// Directory of Kubernetes objects (YAML or JSON) that policies can read; its top level is watched. Without it
    /// policies that read other objects are refused
    #[arg(long, value_name = "DIR", env = "ASSENT_OBJECTS")]
    pub objects: Option<PathBuf>,

    /// Answer access reviews of policies (kubernetes/can_i) with yes instead of no
    #[arg(long, env = "ASSENT_ALLOW_ALL_ACCESS")]
    pub allow_all_access: bool,

    /// Evaluators to run in this process; 0 = only evaluators that connect from outside
    #[arg(long, value_name = "N", default_value_t = 3, env = "ASSENT_REPLICAS",
          value_parser = clap::value_parser!(u16).range(0..=100))]
    pub replicas: u16,

    /// Directory for identities, revisions and modules; without it nothing survives a restart
    #[arg(long, value_name = "DIR", env = "ASSENT_STATE")]
    pub state: Option<PathBuf>,

    /// Address that evaluators connect to (gRPC)
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:15010",
        env = "ASSENT_DISCOVERY"
    )]
    pub discovery: SocketAddr,

    /// Address of /admit, /status, /metrics, /livez and /readyz; loopback only
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:15014",
        env = "ASSENT_HTTP"
    )]
    pub http: SocketAddr,

    #[command(flatten)]
    pub authz: AuthzArgs,

    /// File to which denials, errors and one of 100 allowed requests are appended, one JSON object per line
    #[arg(long, value_name = "FILE", env = "ASSENT_DECISION_LOG")]
    pub decision_log: Option<PathBuf>,

    /// Certificate chain (PEM) for discovery
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        env = "ASSENT_TLS_CERT"
    )]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) for discovery
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "ASSENT_TLS_KEY"
    )]
    pub tls_key: Option<PathBuf>,

    /// Tokens that callers of discovery must have, one per line: `token` or `token,replica-id`
    #[arg(long, value_name = "FILE", env = "ASSENT_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// Calls at a time on one connection to --discovery
    /// [default: 100, and 10000 on a loopback address]
    #[arg(long, value_name = "N", env = "ASSENT_MAX_CONNECTION_STREAMS")]
    pub max_connection_streams: Option<u32>,

    /// How long retired revisions and deleted policies are still answered
    /// [default: 60 (at least twice the webhook timeout), 10 for deletes]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "ASSENT_DRAIN_SECONDS")]
    pub drain_seconds: Option<Duration>,

    /// How long an evaluator still counts after it disconnected
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60", env = "ASSENT_REPLICA_GRACE")]
    pub replica_grace: Duration,

    /// How long an evaluator may stop reading before it counts as disconnected
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", env = "ASSENT_SEND_DEADLINE")]
    pub send_deadline: Duration,

    /// How long evaluators are held while policies have not been read or are vetted for the
    /// first time
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", env = "ASSENT_SYNC_DEADLINE")]
    pub sync_deadline: Duration,

    /// Policies that one namespace may have, the oldest ones first; 0 for any number
    #[arg(
        long,
        env = "ASSENT_MAX_POLICIES_PER_NAMESPACE",
        value_name = "N",
        default_value = "100"
    )]
    pub max_policies_per_namespace: usize,

    /// Remove policies even if most of them are gone from the directory at once
    #[arg(long, env = "ASSENT_ALLOW_MASS_REMOVAL")]
    pub allow_mass_removal: bool,

    /// Resources that mutating AdmissionPolicies must not change, with commas; empty for none
    #[arg(
        long,
        value_name = "RESOURCES",
        default_value_t,
        env = "ASSENT_PROTECTED_RESOURCES"
    )]
    pub protected_resources: ProtectedResources,
}

/// Seconds, with fractions.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("{text:?} is not a non-negative number of seconds"))
}
