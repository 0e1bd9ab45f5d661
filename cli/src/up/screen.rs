//! A table that is redrawn in place, with log lines above it.

use std::{
    io::{self, IsTerminal as _, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

/// The lower part of a terminal. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Screen(Arc<Mutex<Frame>>);

/// What is currently drawn.
#[derive(Debug, Default)]
struct Frame {
    lines: Vec<String>,
    /// Number of lines on the screen above the cursor.
    drawn: usize,
}

/// Used if the size of the terminal is not known.
const FALLBACK: (usize, usize) = (80, 24);

/// Erases from the cursor to the end of the screen.
const ERASE: &str = "\x1b[J";

// === impl Screen ===

impl Screen {
    /// The terminal, if standard output is one that supports cursor movement.
    pub(crate) fn detect() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        (io::stdout().is_terminal() && !dumb).then(|| Self(Arc::default()))
    }

    /// Replaces the lines of the table.
    pub(super) fn draw(&self, lines: Vec<String>) {
        let mut frame = self.frame();
        let (width, height) = size();
        let lines = fit(lines, width, height);
        if frame.lines == lines && frame.drawn == lines.len() {
            return;
        }
        frame.lines = lines;
        let (erase, text) = (frame.erase(), frame.text());
        put(&format!("{erase}{text}"));
        frame.drawn = frame.lines.len();
    }

    /// Prints a line above the table.
    pub(super) fn print(&self, line: &str) {
        self.around(|| put(&format!("{line}\n")));
    }

    /// Keeps the table; later output is printed below it.
    pub(super) fn leave(&self) {
        *self.frame() = Frame::default();
    }

    /// Removes the table, runs `work`, and draws the table again.
    fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        let frame = self.frame();
        put(&frame.erase());
        let done = work();
        put(&frame.text());
        done
    }

    fn frame(&self) -> MutexGuard<'_, Frame> {
        // A frame is never left half updated.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives log lines, which the subscriber writes as a whole.
impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.around(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Screen {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

// === impl Frame ===

impl Frame {
    fn erase(&self) -> String {
        match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A{ERASE}"),
        }
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Cuts what does not fit: a line that wraps or scrolls away could not be erased.
fn fit(lines: Vec<String>, width: usize, height: usize) -> Vec<String> {
    // One line for the cursor, one for the number of hidden rows.
    let room = height.saturating_sub(2).max(1);
    let hidden = lines.len().saturating_sub(room);
    let cut = |line: String| match line.chars().nth(width) {
        None => line,
        Some(_) => line
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
    };
    let mut fitting: Vec<String> = lines.into_iter().take(room).map(cut).collect();
    if hidden > 0 {
        fitting.push(format!("… and {hidden} more"));
    }
    fitting
}

/// Columns and rows.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => FALLBACK,
    }
}

/// Errors are ignored: a closed terminal does not end the process.
fn put(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], expect: &[&str]) {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(fit(lines, 5, 4), expect);
    }

    #[test]
    fn long_lines_and_tables_are_cut() {
        check(&["12345", "123456"], &["12345", "1234…"]);
        check(&["üüüüüü"], &["üüüü…"]);
        check(&["1", "2", "3", "4"], &["1", "2", "… and 2 more"]);
    }

    #[test]
    fn frame_erases_exactly_what_it_drew() {
        let frame = Frame {
            lines: vec!["a".into(), "b".into()],
            drawn: 2,
        };
        assert_eq!(frame.erase(), "\x1b[2A\x1b[J");
        assert_eq!(frame.text(), "a\nb\n");
        assert_eq!(Frame::default().erase(), "");
    }
}
