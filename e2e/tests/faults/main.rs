//! Faults: processes that are killed, disks that are full or lie, and many clients at once.

#![allow(clippy::unwrap_used)]

mod control_plane;
mod disk;
mod evaluators;
mod modules;
mod thousand;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use assent_e2e::{Evaluator, evaluator::revision, http};
use tokio::task::JoinHandle;

/// Asks one path of one evaluator all the time, as an API server does.
struct Traffic {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<i64>>,
}

impl Traffic {
    fn start(evaluator: &Evaluator, path: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let url = format!("http://{}/validate/{path}", evaluator.listen);
        let asking = tokio::spawn(ask(url, stop.clone()));
        Self { stop, asking }
    }

    /// Every request was decided, by one revision, and none by an older one than before.
    async fn check(self) {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.asking.await.unwrap();
        assert!(!seen.is_empty());
        assert!(seen.is_sorted(), "{seen:?}");
    }
}

/// The generations that answered, in order.
async fn ask(url: String, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (code, verdict) = http::review(&url, &http::pod()).await.unwrap();
        assert_eq!(code, 200, "{verdict}");
        let by = revision(&verdict).rsplit('/').next().unwrap();
        seen.push(by.split('-').next().unwrap().parse().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    seen
}
