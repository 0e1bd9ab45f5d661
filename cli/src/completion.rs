//! `assent completion` and `assent man`: what shells and `man` read.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Cli, exit::Exit, out};

/// Prints the completions of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(assent completion bash)
  assent completion zsh > ~/.zfunc/_assent
  assent completion fish > ~/.config/fish/completions/assent.fish";

/// Writes the manual pages of all commands to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Directory, which must exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

const MAN_EXAMPLES: &str = "\
Examples:
  assent man /usr/local/share/man/man1";

// === impl CompletionArgs ===

impl CompletionArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "assent", &mut script);
        out::print(String::from_utf8_lossy(&script))?;
        Ok(Exit::Yes)
    }
}

// === impl ManArgs ===

impl ManArgs {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let written = clap_mangen::generate_to(Cli::command(), &self.directory);
        written.with_context(|| format!("failed to write to {}", self.directory.display()))?;
        Ok(Exit::Yes)
    }
}
