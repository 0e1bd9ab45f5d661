//! Watches the directory: by notifications of the kernel, and by a scan now and then.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::{
    sync::{Notify, mpsc},
    time::{self, Duration},
};
use tracing::warn;

use super::{Options, Scan, Scanner};

/// Files that are looked at again and again, and read once they have stopped changing.
pub(crate) trait Files: Send + 'static {
    /// What one look found.
    type Found: Clone + PartialEq + Send;

    /// Looks once. The second value is when to look again, if something has not settled.
    fn poll(&mut self, now: Instant) -> (Self::Found, Option<Duration>);

    /// The directories that notifications are wanted of.
    fn directories(&self) -> BTreeSet<PathBuf>;
}

/// How many times the settling time the whole directory is waited for. Then one file that
/// never stops changing must not hold back the others.
const PATIENCE: u32 = 20;

/// Watches until the receiver is gone, and sends each scan that differs from the one before,
/// once all files have settled or have had the time to.
///
/// Files are read on a thread for blocking work: a network file system may hang.
pub async fn watch(options: Options, scans: mpsc::Sender<Scan>) {
    let (settle, rescan) = (options.settle, options.rescan);
    follow(Scanner::new(options), settle, rescan, scans).await;
}

/// As [`watch`], of any files.
pub(crate) async fn follow<F: Files>(
    mut scanner: F,
    settle: Duration,
    rescan: Duration,
    scans: mpsc::Sender<F::Found>,
) {
    let changed = Arc::new(Notify::new());
    let mut kernel = Kernel::default();
    let mut last: Option<F::Found> = None;
    let mut restless: Option<Instant> = None;
    loop {
        kernel.follow(&scanner.directories(), &changed);
        let polled = tokio::task::spawn_blocking(move || {
            let polled = scanner.poll(Instant::now());
            (scanner, polled)
        });
        let Ok((back, (scan, again))) = polled.await else {
            // The runtime is going down.
            return;
        };
        scanner = back;
        restless = again.map(|_| restless.unwrap_or_else(Instant::now));
        let settled = restless.is_none_or(|since| since.elapsed() > settle * PATIENCE);
        if settled && last.as_ref() != Some(&scan) {
            if scans.send(scan.clone()).await.is_err() {
                return;
            }
            last = Some(scan);
        }
        let wait = again.unwrap_or(rescan).min(rescan);
        tokio::select! {
            () = changed.notified() => pause().await,
            () = time::sleep(wait) => {}
            () = scans.closed() => return,
        }
    }
}

/// Events come in bursts; one look serves them all.
async fn pause() {
    time::sleep(Duration::from_millis(10)).await;
}

/// The kernel's notifications, set up again when a directory was replaced.
#[derive(Default)]
struct Kernel {
    watchers: BTreeMap<PathBuf, (u64, Option<RecommendedWatcher>)>,
}

// === impl Kernel ===

impl Kernel {
    fn follow(&mut self, directories: &BTreeSet<PathBuf>, changed: &Arc<Notify>) {
        self.watchers.retain(|path, (watched, _)| {
            directories.contains(path) && inode(path) == Some(*watched)
        });
        for path in directories {
            if let Some(inode) = inode(path)
                && !self.watchers.contains_key(path)
            {
                let watcher = start(path, changed.clone());
                if let Err(error) = &watcher {
                    warn!(path = %path.display(), %error, "no notifications; looking at intervals only");
                }
                self.watchers.insert(path.clone(), (inode, watcher.ok()));
            }
        }
    }
}

fn start(path: &Path, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // This process's own reads are events too; they must not wake it.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            changed.notify_one();
        }
    })?;
    watcher.watch(path, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}
