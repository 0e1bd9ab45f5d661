//! What a command ends with.

use std::process::ExitCode;

/// The answer as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for holds.
    Yes,
    /// It does not.
    No,
    /// It could not be asked.
    Unknown,
}

// === impl Exit ===

impl Exit {
    pub(crate) fn yes_if(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Yes => 0,
            Exit::No => 1,
            Exit::Unknown => 2,
        })
    }
}
