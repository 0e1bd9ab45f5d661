//! Messages about work that takes long.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::out;

/// Shorter work is not reported.
const PATIENCE: Duration = Duration::from_millis(500);

/// Prints a message if it is not dropped soon.
pub(crate) struct Progress {
    _done: mpsc::Sender<()>,
}

// === impl Progress ===

impl Progress {
    /// Prints `text` on standard error after a moment.
    pub(crate) fn of(text: String) -> Self {
        let (done, wait) = mpsc::channel::<()>();
        // Without a thread only the message is lost.
        let _ = thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    out::note(text);
                }
            });
        Self { _done: done }
    }
}

/// A size in a readable unit.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{} KiB", bytes.div_ceil(1_024)),
        _ => {
            // One decimal, in integer arithmetic: no rounding surprises.
            let tenths = bytes * 10 / 1_048_576;
            format!("{}.{} MiB", tenths / 10, tenths % 10)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(1_023), "1023 bytes");
        assert_eq!(size(1_024), "1 KiB");
        assert_eq!(size(1_572_864), "1.5 MiB");
    }
}
