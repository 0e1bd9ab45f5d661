//! The command line as a whole.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{exit::Exit, inspect, logs::LogArgs, out, replicas, rollout, run, status, up};

/// Admission policies for Kubernetes: try them, run them, see where they are enforced.
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
    /// Vets one module given on standard input; `assent` runs this itself
    #[command(hide = true)]
    Vet,
}

const EXAMPLES: &str = "\
Examples:
  assent up --policies ./policies          run policies of a directory on this machine
  assent run policy.wasm --request pod.json
                                           ask one policy about one request
  assent inspect policy.wasm               see what a module is and whether it would load
  assent status                            see which policies are enforced, and where
  assent rollout status no-privileged      wait until the newest generation is enforced
  assent rollout undo no-privileged        go back to the revision before

Exit codes: 0 = it holds, 1 = it does not (denied, not enforced), 2 = it could not be asked.";

// === impl Cli ===

impl Cli {
    /// Does what was asked and says how it went.
    pub(crate) fn run(self) -> ExitCode {
        let Self { command, logs } = self;
        // A vetting child confines itself first: nothing may be set up before.
        if matches!(command, Command::Vet) {
            return assent_modules::vet::child_main();
        }
        // Named here, so that no dependency chooses one; a second installation is no error.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let failure = command.failure();
        match command.run(&logs) {
            Ok(exit) => exit.into(),
            Err(error) => {
                out::complain(&error);
                failure.into()
            }
        }
    }
}

// === impl Command ===

impl Command {
    /// What an error means: nothing was asked of `up`, it just did not start.
    fn failure(&self) -> Exit {
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
            Self::Vet => Ok(Exit::Yes),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
