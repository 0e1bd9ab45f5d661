//! The `assent` command: evaluate policies, run a standalone control plane, query a control plane.
//!
//! Exit codes are a contract with scripts: 0 = yes (allowed, enforced), 1 = no, 2 = the question could
//! not be answered.

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

/// Runs the command given on the command line of this process.
pub fn main() -> ExitCode {
    args::Cli::parse().run()
}
