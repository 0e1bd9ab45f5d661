//! Output to the terminal.

use std::{
    borrow::Cow,
    fmt::Display,
    fs::Permissions,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

/// Standard output takes nothing more.
#[derive(Debug, thiserror::Error)]
#[error("failed to write to standard output")]
pub(crate) struct Closed(#[source] io::Error);

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For scripts
    Json,
}

/// The flag `-o`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Format,
}

// === impl OutputArgs ===

impl OutputArgs {
    pub(crate) fn is_json(self) -> bool {
        self.output == Format::Json
    }
}

/// Prints to standard output. A reader that closes the pipe early (`head`) is not an error.
pub(crate) fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("failed to write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard output.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text =
        serde_json::to_string_pretty(value).context("failed to serialize the output as JSON")?;
    line(text)
}

/// Prints a line of an endless output; an error if the reader is gone.
pub(crate) fn endless_line(text: impl Display) -> Result<(), Closed> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Closed)
}

/// Writes a file as a whole: a reader sees the old content or the new one.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("failed to write {}", path.display());
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)
        .with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

/// Prints a line to standard error. If that fails, there is nowhere to report it.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints an error.
pub(crate) fn error(error: &anyhow::Error) {
    note(format_args!(
        "error: {}",
        clean_lines(&format!("{error:#}"))
    ));
}

/// Foreign text on one line, without control characters: a module's message must not control the terminal.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(char::is_control, " "))
}

/// As [`clean`], line by line.
pub(crate) fn clean_lines(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(clean("plain ü"), "plain ü");
        assert_eq!(clean("\u{1b}[2Jgone\nnext"), " [2Jgone next");
        assert_eq!(clean_lines("a\n\u{1b}b\r"), "a\n b ");
    }
}
