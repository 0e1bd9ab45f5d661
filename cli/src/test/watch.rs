//! Waits until a file changes.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use anyhow::Context as _;
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};

/// Watches directories.
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    changes: Receiver<()>,
    followed: BTreeSet<PathBuf>,
}

/// An editor writes a file in several steps.
const SETTLE: Duration = Duration::from_millis(100);

// === impl Watch ===

impl Watch {
    pub(super) fn start() -> anyhow::Result<Self> {
        let (sender, changes) = mpsc::channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| is_change(&event)) {
                // The receiver is gone only when the process ends.
                let _ = sender.send(());
            }
        });
        Ok(Self {
            watcher: watcher.context("failed to watch files")?,
            changes,
            followed: BTreeSet::new(),
        })
    }

    /// Follows paths that are not followed yet. Of a file the directory is followed: editors replace files.
    pub(super) fn follow(&mut self, paths: &[PathBuf]) -> anyhow::Result<()> {
        for path in paths {
            let directory = match path.is_dir() {
                true => path.as_path(),
                false => path.parent().unwrap_or(Path::new("")),
            };
            let directory = match directory.as_os_str().is_empty() {
                true => Path::new("."),
                false => directory,
            };
            let mode = match path.is_dir() {
                true => RecursiveMode::Recursive,
                false => RecursiveMode::NonRecursive,
            };
            let failed = || format!("failed to watch {}", directory.display());
            let directory = std::path::absolute(directory).with_context(failed)?;
            let covered = self.followed.iter().any(|one| directory.starts_with(one));
            if covered {
                continue;
            }
            self.watcher.watch(&directory, mode).with_context(failed)?;
            if mode == RecursiveMode::Recursive {
                self.followed.insert(directory);
            }
        }
        Ok(())
    }

    /// Waits for the next change, and until no more follow.
    pub(super) fn changed(&self) -> anyhow::Result<()> {
        self.changes.recv().context("failed to watch files")?;
        while self.changes.recv_timeout(SETTLE).is_ok() {}
        Ok(())
    }
}

/// Reading is no change, and temporary files of editors are hidden.
fn is_change(event: &Event) -> bool {
    let hidden = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') || name.ends_with('~')
    };
    !event.kind.is_access() && !event.paths.iter().all(hidden)
}
