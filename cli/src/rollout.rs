//! `assent rollout`: follows rollouts and rolls back.

use clap::Subcommand;

use crate::exit::Exit;

mod history;
mod status;
mod undo;

/// Follows a rollout, lists revisions, and rolls back to one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Args),
    History(history::Args),
    Undo(undo::Args),
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Status(args) => args.run(),
            Command::History(args) => args.run(),
            Command::Undo(args) => args.run(),
        }
    }
}

/// Whether the control plane processed the request and refused it: a result, not an error.
fn is_refusal(status: &tonic::Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::NotFound | Code::FailedPrecondition | Code::Aborted
    )
}
