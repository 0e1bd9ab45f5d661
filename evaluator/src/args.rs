//! The command line of `assent-evaluator`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Parser;
use http::Uri;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::{
    Config, DecisionLogConfig, DecisionLogTarget, Evaluator, Listen, Timings, TlsFiles, memory,
};

pub mod authz;
mod registries;

use authz::AuthzArgs;
use registries::RegistryArgs;

/// Follows an Assent control plane and answers admission reviews with its policies.
#[derive(Debug, Parser)]
#[command(name = "assent-evaluator", version)]
// Comments are help texts for a terminal, which has no links.
#[allow(rustdoc::bare_urls)]
pub struct Args {
    /// URL of the control plane's discovery port, for example https://assent.assent-system.svc:15010
    #[arg(long, env = "ASSENT_DISCOVERY", value_name = "URL")]
    discovery: Uri,
    /// Name of this replica; the pod's name in a cluster
    #[arg(long, env = "ASSENT_ID", value_name = "NAME")]
    id: String,
    /// PolicyServer whose policies are served
    #[arg(
        long,
        env = "ASSENT_POLICY_SERVER",
        value_name = "NAME",
        default_value = "default"
    )]
    policy_server: String,
    /// Address of the review port
    #[arg(
        long,
        env = "ASSENT_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:8443"
    )]
    listen: SocketAddr,
    /// Address that the control plane reports for this replica [default: that of --listen]
    #[arg(long, env = "ASSENT_ADVERTISE", value_name = "IP")]
    advertise: Option<IpAddr>,
    /// Address of probes and metrics
    #[arg(
        long,
        env = "ASSENT_ADMIN_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:8081"
    )]
    admin_listen: SocketAddr,
    /// Directory for the last good set of policies; without it a restart needs the control plane
    #[arg(long, env = "ASSENT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// File with a key of at least 32 characters by which the last good set is authenticated
    #[arg(long, env = "ASSENT_STATE_KEY", value_name = "FILE")]
    state_key: Option<PathBuf>,
    /// PEM file with the CA of the control plane
    #[arg(long, env = "ASSENT_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// File with the bearer token for the control plane
    #[arg(long, env = "ASSENT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM certificate chain of the review port; without it the control plane signs one
    #[arg(
        long,
        env = "ASSENT_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// PEM private key of the review port
    #[arg(
        long,
        env = "ASSENT_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities of API servers' client certificates; with it, only clients that present such a
    /// certificate are answered
    #[arg(long, env = "ASSENT_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Memory for requests and evaluations, such as 512Mi [default: derived from the container's limit]
    #[arg(long, env = "ASSENT_MEMORY_BUDGET", value_name = "BYTES", value_parser = memory::parse_bytes)]
    memory_budget: Option<u64>,
    /// Seconds for which requests are answered after SIGTERM
    #[arg(
        long,
        env = "ASSENT_DRAIN_SECONDS",
        value_name = "SECONDS",
        default_value_t = 15.0
    )]
    drain_seconds: f64,
    /// After a start from disk: seconds to wait for a control plane before becoming ready without it
    #[arg(
        long,
        env = "ASSENT_READY_WITHOUT_CONTROL_PLANE",
        value_name = "SECONDS",
        default_value_t = 30.0
    )]
    ready_without_control_plane: f64,
    #[command(flatten)]
    authz: AuthzArgs,
    #[command(flatten)]
    registries: RegistryArgs,
    /// Where denials, errors and a sample of allowed requests are logged, one JSON object per line: stdout, off, or a file
    #[arg(
        long,
        env = "ASSENT_DECISION_LOG",
        value_name = "TARGET",
        default_value = "stdout"
    )]
    decision_log: DecisionLogTarget,
    /// Log one in N allowed requests in the decision log; 1 = all, 0 = none
    #[arg(
        long,
        env = "ASSENT_DECISION_LOG_ALLOWS",
        value_name = "N",
        default_value_t = 100
    )]
    decision_log_allows: u64,
    /// Format of log lines: text or json
    #[arg(long, env = "ASSENT_LOG_FORMAT", value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
}

// === impl Args ===

impl Args {
    /// Runs until SIGTERM or SIGINT, then drains.
    pub async fn run(self) -> anyhow::Result<()> {
        let Self {
            discovery,
            id,
            policy_server,
            listen,
            advertise,
            admin_listen,
            state,
            state_key,
            ca,
            token_file,
            tls_cert,
            tls_key,
            client_ca,
            memory_budget,
            drain_seconds,
            ready_without_control_plane,
            authz,
            registries,
            decision_log,
            decision_log_allows,
            log_format,
        } = self;
        log_to_stderr(&log_format);
        raise_descriptor_limit();
        let timings = Timings {
            drain: Duration::try_from_secs_f64(drain_seconds)?,
            ready_without_control_plane: Duration::try_from_secs_f64(ready_without_control_plane)?,
            ..Timings::default()
        };
        let (mut term, mut int) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let handle = Evaluator::start(Config {
            discovery,
            id,
            policy_server,
            listen: Listen::Addr(listen),
            advertise,
            admin_listen: Some(Listen::Addr(admin_listen)),
            state,
            state_key,
            ca,
            token_file,
            tls: tls_cert
                .zip(tls_key)
                .map(|(cert, key)| TlsFiles { cert, key }),
            client_ca,
            requests: authz.config(),
            engine: None,
            memory_budget,
            registries: registries.read()?,
            decision_log: DecisionLogConfig {
                target: decision_log,
                allows: decision_log_allows,
            },
            timings,
        })
        .await?;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tokio::select! {
            () = handle.shutdown() => {}
            // A second SIGINT ends the drain.
            _ = int.recv() => {}
        }
        Ok(())
    }
}

/// Container runtimes set a low soft limit for programs that use `select`, which this one does not.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

fn log_to_stderr(format: &str) {
    let filter = EnvFilter::try_from_env("ASSENT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An embedding process may have installed a subscriber of its own: keep it.
    let _ = if format == "json" {
        logs.json().try_init()
    } else {
        logs.try_init()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        let required = [
            "assent-evaluator",
            "--discovery",
            "http://127.0.0.1:1",
            "--id",
            "a",
        ];
        Args::try_parse_from(required.iter().chain(args))
    }

    #[test]
    fn documented_flags_are_accepted() {
        let all = [
            "--policy-server",
            "p",
            "--listen",
            "127.0.0.1:1",
            "--admin-listen",
            "127.0.0.1:2",
            "--state",
            "/s",
            "--state-key",
            "/sk",
            "--ca",
            "/ca",
            "--token-file",
            "/t",
            "--tls-cert",
            "/c",
            "--tls-key",
            "/k",
            "--client-ca",
            "/cc",
            "--memory-budget",
            "512Mi",
            "--oci-insecure",
            "a,b:5000",
            "--oci-ca",
            "c=/ca",
            "--oci-auth",
            "/a",
            "--oci-private-addresses",
            "--decision-log",
            "off",
            "--decision-log-allows",
            "1",
            "--authz",
            "unix:/run/authz/socket",
            "--authz-default",
            "allow",
            "--authz-namespace",
            "ns",
        ];
        assert!(parse(&all).is_ok());
        assert!(parse(&[]).is_ok());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        assert!(parse(&["--tls-cert", "/c"]).is_err());
        assert!(parse(&["--tls-key", "/k"]).is_err());
    }
}
