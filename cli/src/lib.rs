//! The `assent` command: evaluate policies, run a standalone control plane, query a control plane.
//!
//! Exit codes are a contract with scripts: 0 = yes (allowed, enforced), 1 = no, 2 = the question could
//! not be answered.

mod age;
mod annotate;
mod args;
mod bench;
mod build;
mod bundle;
mod case;
#[cfg(feature = "cluster")]
mod check;
mod client;
mod completion;
mod context;
mod convert;
mod evaluate;
mod exit;
mod follow;
mod input;
mod inspect;
mod logs;
mod manifest;
mod module;
mod name;
mod new;
mod objects;
mod out;
mod plugin;
mod progress;
mod registry;
mod replicas;
mod report;
mod request;
mod rollout;
mod row;
mod run;
mod status;
mod table;
mod test;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

/// Runs the command given on the command line of this process.
pub fn main() -> ExitCode {
    let command = args::Cli::command().bin_name(plugin::name());
    match args::Cli::from_arg_matches(&command.get_matches()) {
        Ok(cli) => cli.run(),
        // The arguments were accepted already.
        Err(error) => error.exit(),
    }
}
