//! The top level of the command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    annotate, bench, build, bundle, completion, context, convert, exit::Exit, inspect,
    logs::LogArgs, new, out, registry, replicas, rollout, run, status, test, up,
};

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
    Test(test::Args),
    New(new::Args),
    Build(build::Args),
    Convert(convert::Args),
    Bench(bench::Args),
    Inspect(inspect::Args),
    Annotate(annotate::Args),
    Push(registry::PushArgs),
    Pull(registry::PullArgs),
    Verify(registry::VerifyArgs),
    Digest(registry::DigestArgs),
    Save(bundle::SaveArgs),
    Load(bundle::LoadArgs),
    Status(status::Args),
    Replicas(replicas::Args),
    Context(context::Args),
    Rollout(rollout::Args),
    #[cfg(feature = "cluster")]
    Check(crate::check::Args),
    Completion(completion::CompletionArgs),
    Man(completion::ManArgs),
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
  assent run policy.wasm -f pod.yaml       evaluate an object with a policy
  assent test ./policies                   run the test cases of policies
  assent new rego require-owner            start a policy
  assent build policy.rego                 make a module of a policy written as text
  assent push policy.wasm registry://ghcr.io/org/policy:v1
                                           push a module to a registry
  assent inspect policy.wasm               show what a module is and whether it would load
  assent status                            show which policies are enforced
  assent rollout status no-privileged      wait until the newest generation is enforced
  assent rollout undo no-privileged        roll back to the previous revision
  assent check                             check the installation in a cluster

With a kubeconfig, commands that query a control plane find it in the cluster. Installed as
`kubectl-assent`, this program is a plugin: kubectl assent status.

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
            Self::Test(args) => args.run(),
            Self::New(args) => args.run(),
            Self::Build(args) => args.run(),
            Self::Convert(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Annotate(args) => args.run(),
            Self::Push(args) => args.run(),
            Self::Pull(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Digest(args) => args.run(),
            Self::Save(args) => args.run(),
            Self::Load(args) => args.run(),
            Self::Status(args) => args.run(),
            Self::Replicas(args) => args.run(),
            Self::Context(args) => args.run(),
            Self::Rollout(args) => args.run(),
            #[cfg(feature = "cluster")]
            Self::Check(args) => args.run(),
            Self::Completion(args) => args.run(),
            Self::Man(args) => args.run(),
            Self::Vet { .. } => Ok(Exit::Yes),
        }
    }
}

#[cfg(test)]
mod tests;
