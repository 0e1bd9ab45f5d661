//! Logging to standard error.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

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
    /// Starts logging. `default` is the filter without `--log-level`. Lines are printed above `screen`.
    pub(crate) fn init(&self, default: &str, screen: Option<Screen>) -> anyhow::Result<()> {
        let level = self.log_level.as_deref().filter(|level| !level.is_empty());
        let filter = EnvFilter::try_new(level.unwrap_or(default))
            .context("failed to read --log-level (or RUST_LOG)")?;
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let lines = fmt()
            .with_env_filter(filter)
            .with_ansi(colours)
            // Reporting an error on the broken stream itself would panic.
            .log_internal_errors(false);
        let json = self.log_format == LogFormat::Json;
        // If the process already has a subscriber, it stays.
        let _ = match (json, screen) {
            (true, None) => lines.json().with_writer(io::stderr).try_init(),
            (true, Some(screen)) => lines.json().with_writer(screen).try_init(),
            (false, None) => lines.with_writer(io::stderr).try_init(),
            (false, Some(screen)) => lines.with_writer(screen).try_init(),
        };
        Ok(())
    }
}
