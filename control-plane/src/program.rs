//! The command line of `assent-control-plane`.

use std::process::ExitCode;

use anyhow::Context as _;
use assent_modules::vet::{Vetter, child_main};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tracing::error;
use tracing_subscriber::EnvFilter;

use crate::standalone::{self, UpArgs};

/// Turns policies into versioned snapshots and streams them to evaluators.
#[derive(Debug, Parser)]
#[command(name = "assent-control-plane", version)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs without Kubernetes: policies from a directory, evaluators in this process
    Standalone(Box<UpArgs>),
    /// Vets one module given on standard input; the control plane runs this itself
    #[command(hide = true)]
    Vet,
}

// === impl Program ===

impl Program {
    /// Runs until it is told to stop.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Vet => child_main(),
            Command::Standalone(args) => match run_standalone(*args) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => {
                    error!("{failure:#}");
                    ExitCode::FAILURE
                }
            },
        }
    }
}

/// Installs the one TLS provider and sends log lines to standard error.
fn prepare() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    // Both fail only where they were done already.
    let _ = lines.with_writer(std::io::stderr).try_init();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

#[tokio::main]
async fn run_standalone(args: UpArgs) -> anyhow::Result<()> {
    prepare();
    let mut terminate = signal(SignalKind::terminate())?;
    let exe = std::env::current_exe().context("failed to find this program")?;
    let vetter = Vetter::new(exe, vec!["vet".into()]);
    let mut running = standalone::start(args, vetter).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        failure = running.failed() => return Err(failure),
    }
    running.stop().await;
    Ok(())
}
