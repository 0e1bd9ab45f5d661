//! Exit codes.

use std::process::ExitCode;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Allowed, enforced, or whatever else was asked for.
    Yes,
    /// The opposite.
    No,
    /// The question could not be answered.
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
