//! Text of guests in log lines.

use std::fmt::{self, Write as _};

/// Text that a guest wrote, for a log line: cut at 4 KiB, and escaped so that it can neither forge lines nor control a
/// terminal.
#[derive(Clone, Copy, Debug)]
pub struct LogText<'a>(pub &'a str);

/// Longer lines are of no use to people, and a guest may write 16 MiB per evaluation.
const MAX_BYTES: usize = 4096;

// === impl LogText ===

impl fmt::Display for LogText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = MAX_BYTES;
        for char in self.0.chars() {
            let escaped = must_escape(char);
            let bytes = match escaped {
                true => char.escape_default().len(),
                false => char.len_utf8(),
            };
            let Some(rest) = left.checked_sub(bytes) else {
                return write!(f, "… ({} bytes)", self.0.len());
            };
            left = rest;
            if escaped {
                write!(f, "{}", char.escape_default())?;
            } else {
                f.write_char(char)?;
            }
        }
        Ok(())
    }
}

/// Control characters, line separators, and characters that change the direction of text.
fn must_escape(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first bytes of a guest's error message, as text: it ends up in messages and status.
pub(crate) fn error_text(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(MAX_BYTES)];
    String::from_utf8_lossy(start).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(LogText(text).to_string(), expected);
    }

    #[test]
    fn control_characters_are_escaped() {
        check("plain ü \"quoted\" \\", "plain ü \"quoted\" \\");
        check("a\nb\r\u{1b}[2J", "a\\nb\\r\\u{1b}[2J");
        check("\u{202e}\u{2028}", "\\u{202e}\\u{2028}");
    }

    #[test]
    fn long_lines_are_cut() {
        check(&"x".repeat(MAX_BYTES), &"x".repeat(MAX_BYTES));
        let long = LogText(&"\n".repeat(4 << 20)).to_string();
        assert!(long.len() < MAX_BYTES + 32, "{}", long.len());
        assert!(long.ends_with("… (4194304 bytes)"));
        let long = LogText(&"ü".repeat(MAX_BYTES)).to_string();
        assert!(long.starts_with("üü") && long.len() < MAX_BYTES + 32);
    }
}
