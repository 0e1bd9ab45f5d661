//! `assent rollout`: how a change gets out, and how to go back.

use clap::Subcommand;

use crate::exit::Exit;

mod history;
mod status;
mod undo;

/// Follows a policy's change, lists its revisions, goes back to one.
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

/// Whether the control plane understood and said no: an answer, not a failure to ask.
fn is_refusal(status: &tonic::Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::NotFound | Code::FailedPrecondition | Code::Aborted
    )
}
