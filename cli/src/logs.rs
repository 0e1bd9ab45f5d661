//! Logging to standard error.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt::writer::BoxMakeWriter};

use crate::up::screen::Screen;

/// What to log, and in which format.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// What to log: error, warn, info, debug, trace, or filters such as warn,assent_grpc=debug
    #[arg(
        long,
        value_name = "LEVEL",
        env = "RUST_LOG",
        global = true,
        help_heading = "Logging"
    )]
    log_level: Option<String>,

    /// Log what happens, as --log-level info
    #[arg(short, long, global = true, help_heading = "Logging")]
    verbose: bool,

    /// File that log lines are appended to, instead of standard error
    #[arg(long, value_name = "FILE", global = true, help_heading = "Logging")]
    log_file: Option<PathBuf>,

    /// Format of log lines
    #[arg(
        long,
        value_name = "FORMAT",
        env = "ASSENT_LOG_FORMAT",
        default_value = "text",
        global = true,
        help_heading = "Logging"
    )]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

// === impl LogArgs ===

impl LogArgs {
    /// Whether log lines go to a file, and not to the terminal.
    pub(crate) fn has_file(&self) -> bool {
        self.log_file.is_some()
    }

    /// Starts logging. `default` is the filter without `--log-level`. Lines are printed above `screen`.
    pub(crate) fn init(&self, default: &str, screen: Option<Screen>) -> anyhow::Result<()> {
        let level = self.log_level.as_deref().filter(|level| !level.is_empty());
        let default = if self.verbose { "info" } else { default };
        let filter = EnvFilter::try_new(level.unwrap_or(default))
            .context("failed to read --log-level (or RUST_LOG)")?;
        let file = self.log_file.as_deref().map(open).transpose()?;
        let colours =
            file.is_none() && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let writer = match (file, screen) {
            (Some(file), _) => BoxMakeWriter::new(Arc::new(file)),
            (None, Some(screen)) => BoxMakeWriter::new(screen),
            (None, None) => BoxMakeWriter::new(io::stderr),
        };
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(colours)
            // Reporting an error on the broken stream itself would panic.
            .log_internal_errors(false)
            .with_writer(writer);
        // If the process already has a subscriber, it stays.
        let _ = match self.log_format {
            LogFormat::Json => lines.json().try_init(),
            LogFormat::Text => lines.try_init(),
        };
        Ok(())
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.with_context(|| format!("failed to open --log-file {}", path.display()))
}
