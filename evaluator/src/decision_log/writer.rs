//! Writes lines on a thread of its own.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use crate::{
    config::DecisionLogTarget,
    metrics::{DropLabels, Metrics},
};

/// A queue of lines to a file or to standard output.
pub(super) struct Writer {
    lines: SyncSender<Vec<u8>>,
    /// Lines that are not written yet.
    pending: Arc<AtomicUsize>,
    metrics: Metrics,
}

/// Lines that may wait: at a few hundred bytes each, about a megabyte.
const QUEUE: usize = 2048;

/// Decisions name users: others of the machine have no business with them.
const MODE: u32 = 0o600;

// === impl Writer ===

impl Writer {
    /// Opens the target; none if decisions are not logged.
    pub(super) fn start(target: &DecisionLogTarget, metrics: &Metrics) -> io::Result<Option<Self>> {
        let output: Box<dyn Write + Send> = match target {
            DecisionLogTarget::Off => return Ok(None),
            DecisionLogTarget::Stdout => Box::new(io::stdout()),
            DecisionLogTarget::File(path) => {
                let mut options = OpenOptions::new();
                options.create(true).append(true).mode(MODE);
                Box::new(options.open(path)?)
            }
        };
        Self::to(output, metrics).map(Some)
    }

    /// Writes to `output` until the writer is dropped and its queue is empty.
    pub(super) fn to(output: Box<dyn Write + Send>, metrics: &Metrics) -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let pending = Arc::new(AtomicUsize::new(0));
        let (counted, left) = (metrics.clone(), pending.clone());
        let thread = thread::Builder::new().name("decisions".into());
        thread.spawn(move || write_all(output, &queue, &left, &counted))?;
        Ok(Self {
            lines,
            pending,
            metrics: metrics.clone(),
        })
    }

    /// Queues a line. A queue that is full loses the line, never the decision.
    pub(super) fn write(&self, line: Vec<u8>) {
        self.pending.fetch_add(1, SeqCst);
        if self.lines.try_send(line).is_err() {
            self.pending.fetch_sub(1, SeqCst);
            self.metrics.dropped_decisions(DropLabels::QUEUE);
        }
    }

    /// Whether everything is written.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.load(SeqCst) == 0
    }
}

/// Each line is one write, so that two processes that append to one file do not mix them.
fn write_all(
    mut output: Box<dyn Write + Send>,
    queue: &Receiver<Vec<u8>>,
    pending: &AtomicUsize,
    metrics: &Metrics,
) {
    while let Ok(mut line) = queue.recv() {
        line.push(b'\n');
        let written = output.write_all(&line).and_then(|()| output.flush());
        if written.is_err() {
            metrics.dropped_decisions(DropLabels::WRITE);
        }
        pending.fetch_sub(1, SeqCst);
    }
}
