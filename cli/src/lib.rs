//! The `assent` command, for people: try policies, run a control plane, ask one.
//!
//! Exit codes are a contract with scripts: 0 where what was asked for holds, 1 where it does not, 2 where
//! it could not be asked.

mod age;
mod args;
mod client;
mod exit;
mod inspect;
mod logs;
mod manifest;
mod module;
mod name;
mod out;
mod progress;
mod replicas;
mod report;
mod rollout;
mod row;
mod run;
mod status;
mod table;
mod up;

use std::process::ExitCode;

use clap::Parser as _;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    args::Cli::parse().run()
}
