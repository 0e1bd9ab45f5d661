//! The top level of the command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{exit::Exit, inspect, logs::LogArgs, out, replicas, rollout, run, status, up};

/// Admission policies for Kubernetes: evaluate them, run them, and see where they are enforced.
#[derive(Debug, Parser)]
#[command(name = "assent", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Run(run::Args),
    Inspect(inspect::Args),
    Status(status::Args),
    Replicas(replicas::Args),
    Rollout(rollout::Args),
    /// Vets one module from standard input; started by `assent` itself
    #[command(hide = true)]
    Vet {
        /// Prints how vetting is confined on this system, as JSON, and vets nothing
        #[arg(long)]
        report: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  assent up --policies ./policies          run the policies of a directory on this machine
  assent run policy.wasm --request pod.json
                                           evaluate one request with one policy
  assent inspect policy.wasm               show what a module is and whether it would load
  assent status                            show which policies are enforced
  assent rollout status no-privileged      wait until the newest generation is enforced
  assent rollout undo no-privileged        roll back to the previous revision

Exit codes: 0 = yes (allowed, enforced), 1 = no (denied, not enforced), 2 = error.";

// === impl Cli ===

impl Cli {
    /// Runs the command and reports errors on standard error.
    pub(crate) fn run(self) -> ExitCode {
        let Self { command, logs } = self;
        // A vetting child restricts itself first: nothing may be set up before that.
        match command {
            Command::Vet { report: false } => return assent_modules::vet::child_main(),
            Command::Vet { report: true } => return assent_modules::vet::report_main(),
            _ => {}
        }
        // Chosen here, so that no dependency chooses one. If a provider is already installed, it stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let error_exit = command.error_exit();
        match command.run(&logs) {
            Ok(exit) => exit.into(),
            Err(error) => {
                out::error(&error);
                error_exit.into()
            }
        }
    }
}

// === impl Command ===

impl Command {
    /// The exit code for an error. `up` answers no question, so its failure to start is a plain 1.
    fn error_exit(&self) -> Exit {
        match self {
            Self::Up(_) => Exit::No,
            _ => Exit::Unknown,
        }
    }

    fn run(self, logs: &LogArgs) -> anyhow::Result<Exit> {
        if !matches!(self, Self::Up(_)) {
            logs.init("warn,assent::policy=info", None)?;
        }
        match self {
            Self::Up(args) => args.run(logs),
            Self::Run(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Status(args) => args.run(),
            Self::Replicas(args) => args.run(),
            Self::Rollout(args) => args.run(),
            Self::Vet { .. } => Ok(Exit::Yes),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
