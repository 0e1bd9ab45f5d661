//! Artefacts of modules that revisions name, made in the background.
//!
//! Vetting makes the artefact of a new module. A standby, a new leader and a process whose
//! state was lost have modules that they never vetted: evaluators that start then would
//! all compile.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use assent_core::Digest;
use assent_modules::store::{Keep, Store};
use tokio::sync::Notify;
use tracing::{debug, error, warn};

use super::compiler::Compiler;

/// How long a module is kept that nothing names: it is stored before its vetting ends and a
/// revision names it. It is also how often modules are collected.
pub(crate) const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Makes missing artefacts, one after the other.
#[derive(Clone)]
pub(crate) struct Artefacts {
    compiler: Compiler,
    wanted: Arc<Wanted>,
}

/// Modules whose artefacts may be missing.
#[derive(Debug, Default)]
struct Wanted {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: BTreeSet<Digest>,
    /// Not tried again by this process: evaluators compile these themselves.
    failed: HashSet<Digest>,
}

// === impl Artefacts ===

impl Artefacts {
    /// Uses `compiler`; [`Artefacts::run`] does the work.
    pub(crate) fn new(compiler: Compiler) -> Self {
        Self {
            compiler,
            wanted: Arc::default(),
        }
    }

    /// What makes them.
    pub(super) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The store of modules and artefacts.
    pub(crate) fn store(&self) -> &Store {
        self.compiler.store()
    }

    /// Revisions name these modules.
    pub(crate) fn want(&self, modules: impl IntoIterator<Item = Digest>) {
        self.wanted.add(modules);
    }

    /// Removes modules that no revision or snapshot names, and artefacts that nobody uses.
    pub(crate) async fn collect(&self, named: HashSet<Digest>) {
        self.collect_at(named, SystemTime::now()).await;
    }

    pub(super) async fn collect_at(&self, named: HashSet<Digest>, now: SystemTime) {
        let keep = Keep {
            modules: named,
            engine: self.compiler.engine(),
            younger_than: COLLECT_EVERY,
        };
        match self.store().collect(keep, now).await {
            Ok(collected) => debug!(?collected, "removed modules that no revision names"),
            Err(error) => error!("failed to remove modules that no revision names: {error}"),
        }
    }

    /// Makes artefacts for as long as it is polled. Modules that are not stored yet are
    /// passed over: whoever fetches them asks again.
    pub(crate) async fn run(self) {
        self.compiler.probe().await;
        loop {
            let digest = self.wanted.next().await;
            if let Err(failure) = self.compiler.make_artefact(digest).await {
                let why = failure.refusal.message;
                warn!(%digest, "failed to compile a module for evaluators: {why}");
                self.wanted.state().failed.insert(digest);
            }
        }
    }
}

// === impl Wanted ===

impl Wanted {
    fn add(&self, modules: impl IntoIterator<Item = Digest>) {
        let mut state = self.state();
        for digest in modules {
            if !state.failed.contains(&digest) {
                state.queue.insert(digest);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    async fn next(&self) -> Digest {
        loop {
            if let Some(digest) = self.state().queue.pop_first() {
                return digest;
            }
            self.changed.notified().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
