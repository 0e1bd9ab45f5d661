//! The command line of `assent-control-plane`.

use std::process::ExitCode;

use anyhow::Context as _;
use assent_k8s::{crds, uninstall};
use assent_modules::vet::{Vetter, child_main, report_main};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tracing::error;
use tracing_subscriber::EnvFilter;

use crate::{
    cluster::{self, CleanupArgs, ClusterArgs},
    standalone::{self, UpArgs},
};

/// Turns policies into versioned snapshots and streams them to evaluators.
///
/// Without a subcommand it runs as a controller of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(
    name = "assent-control-plane",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Program {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs without Kubernetes: policies from a directory, evaluators in this process
    Standalone(Box<UpArgs>),
    /// Updates the cluster's CustomResourceDefinitions of Assent's kinds to those of this build
    ApplyCrds(Box<ClusterArgs>),
    /// Removes webhooks and finalizers, which would block the cluster after an uninstallation
    Cleanup(Box<CleanupArgs>),
    /// Vets one module given on standard input; the control plane runs this itself
    #[command(hide = true)]
    Vet {
        /// Prints how vetting is confined on this system, as JSON, and vets nothing
        #[arg(long)]
        report: bool,
    },
}

// === impl Program ===

impl Program {
    /// Runs until SIGTERM or SIGINT.
    pub fn run(self) -> ExitCode {
        let Self { command, cluster } = self;
        let ended = match command {
            Some(Command::Vet { report: false }) => return child_main(),
            Some(Command::Vet { report: true }) => return report_main(),
            Some(Command::Standalone(args)) => run_standalone(*args),
            Some(Command::ApplyCrds(args)) => apply_crds(*args),
            Some(Command::Cleanup(args)) => cleanup(*args),
            None => run_cluster(cluster),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                error!("{failure:#}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Installs the one TLS provider and sends log lines to standard error.
fn prepare(format: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // Both fail only if they were done already.
    let _ = match format {
        "json" => lines.json().try_init(),
        _ => lines.try_init(),
    };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// This program, which also vets modules as a child process.
fn vetter() -> anyhow::Result<Vetter> {
    let exe = std::env::current_exe().context("failed to find this program")?;
    Ok(Vetter::new(exe, vec!["vet".into()]))
}

#[tokio::main]
async fn run_standalone(args: UpArgs) -> anyhow::Result<()> {
    prepare("text");
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = standalone::start(args, vetter()?).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        failure = running.failed() => return Err(failure),
    }
    running.stop().await;
    Ok(())
}

#[tokio::main]
async fn run_cluster(args: ClusterArgs) -> anyhow::Result<()> {
    prepare(&args.log_format);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = cluster::start(args, vetter()?).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        failure = running.failed() => return Err(failure),
    }
    running.stop().await;
    Ok(())
}

#[tokio::main]
async fn apply_crds(args: ClusterArgs) -> anyhow::Result<()> {
    prepare(&args.log_format);
    Ok(crds::apply(&cluster::client(&args).await?).await?)
}

#[tokio::main]
async fn cleanup(args: CleanupArgs) -> anyhow::Result<()> {
    prepare(&args.cluster.log_format);
    let client = cluster::client(&args.cluster).await?;
    let options = uninstall::Options {
        namespace: args.cluster.namespace,
        lease: args.cluster.lease_seconds,
        service_account: args.service_account,
    };
    Ok(uninstall::cleanup(&client, options).await?)
}
