//! Modules of the store in vetting children: their settings tried, their artefacts kept.
//!
//! One for the whole process: it outlives leaderships, and a standby uses it too.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Instant, SystemTime},
};

use assent_controller::Failure;
use assent_core::Digest;
use assent_modules::{
    attempts::{Attempt, Attempts},
    store::Store,
    vet::{Compiled, Facts, System, VetReport, VetRequest, Vetter},
};
use assent_text::Text;
use bytes::Bytes;
use tracing::{debug, error, info, warn};

use super::{failure, locks::DigestLocks, memory, turns::FairTurns};
use crate::metrics::Metrics;

/// Runs vetting children on modules of the store.
#[derive(Clone)]
pub(crate) struct Compiler {
    store: Store,
    vetter: Vetter,
    attempts: Attempts,
    pub(super) turns: FairTurns,
    compiling: DigestLocks,
    /// The fingerprint of the engine in the vetting child, once a child has reported it.
    engine: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
}

// === impl Compiler ===

impl Compiler {
    /// Vets with `vetter`, within the memory of this container; marks of attempts are kept in
    /// the directory `state`. Blocking: call it at start.
    pub(crate) fn open(
        state: &Path,
        store: Store,
        vetter: Vetter,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let vetter = vetter.with_memory(memory::for_children());
        let attempts = Attempts::open(state, vetter.memory_bytes(), SystemTime::now())?;
        Ok(Self {
            turns: FairTurns::new(vetter.concurrency()),
            compiling: DigestLocks::default(),
            engine: Arc::default(),
            store,
            vetter,
            attempts,
            metrics,
        })
    }

    /// The store of modules.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Metrics of the process.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The engine that artefacts are made for, if it is known.
    pub(crate) fn engine(&self) -> Option<String> {
        self.engine.lock().ok()?.clone()
    }

    /// Asks a child how it is confined on this system, and reports it.
    pub(crate) async fn probe(&self) {
        let System {
            confinement,
            engine,
        } = match self.vetter.probe().await {
            Ok(system) => system,
            Err(error) => {
                error!("modules can not be vetted on this system: {error}");
                return;
            }
        };
        let memory_mib = self.vetter.memory_bytes() >> 20;
        info!(%confinement, memory_mib, "modules are vetted in confined processes");
        for (mechanism, in_force) in confinement.mechanisms() {
            self.metrics.set_confinement(mechanism, in_force);
            if !in_force {
                warn!(mechanism, "this system does not confine vetting with it");
            }
        }
        self.set_engine(engine);
    }

    /// Vets a stored module when the namespace has its turn. It is compiled only if that was
    /// not done before: policies that share a module differ in their settings.
    pub(super) async fn vet(
        &self,
        namespace: &str,
        digest: Digest,
        request: &VetRequest,
    ) -> Result<Facts, Failure> {
        let _turn = self.turns.take(namespace).await;
        let start = Instant::now();
        let attempt = self.begin(digest).await?;
        let facts = self.vet_marked(digest, request, &attempt).await?;
        let took = start.elapsed();
        self.metrics.module_compile.observe(took.as_secs_f64());
        Ok(facts)
    }

    /// Makes a module of a text when the namespace has its turn.
    pub(super) async fn build(&self, namespace: &str, text: &Text) -> Result<Bytes, Failure> {
        let _turn = self.turns.take(namespace).await;
        let built = self.vetter.build(text).await;
        let built = built.map_err(|e| failure::later(e.to_string()))?;
        built.map_err(|refused| failure::vetted(refused, &VetRequest::compile()))
    }

    /// Compiles a stored module for evaluators, unless that was done, when nobody waits for
    /// vetting. A revision that is active needs no artefact to work, so that a failure is no
    /// more than slower starts.
    pub(super) async fn make_artefact(&self, digest: Digest) -> Result<(), Failure> {
        if self.has_artefact(digest).await || !self.has_module(digest).await {
            return Ok(());
        }
        let _turn = self.turns.take_idle().await;
        let _compiling = self.compiling.lock(digest).await;
        if self.has_artefact(digest).await {
            return Ok(());
        }
        let attempt = self.begin(digest).await?;
        let request = VetRequest::compile();
        let compiled = self.compile(digest, &request, &attempt).await;
        compiled.map(|_| info!(%digest, "compiled a module that a revision names"))
    }

    async fn vet_marked(
        &self,
        digest: Digest,
        request: &VetRequest,
        attempt: &Attempt,
    ) -> Result<Facts, Failure> {
        let mut artefact = self.artefact(digest).await;
        let mut compiling = None;
        if artefact.is_none() {
            compiling = Some(self.compiling.lock(digest).await);
            artefact = self.artefact(digest).await;
        }
        if let Some(artefact) = artefact {
            drop(compiling.take());
            let vetter = self.vetter(attempt);
            match vetter.vet_compiled(artefact, request).await {
                Ok(VetReport::Accepted(compiled)) => return Ok(compiled.facts),
                Ok(VetReport::Refused { refused, .. }) => {
                    return Err(failure::vetted(refused, request));
                }
                Err(error) => debug!(%digest, "failed to vet a compiled module: {error}"),
            }
        }
        self.compile(digest, request, attempt).await
    }

    async fn compile(
        &self,
        digest: Digest,
        request: &VetRequest,
        attempt: &Attempt,
    ) -> Result<Facts, Failure> {
        let module = self.store.get(digest).await;
        let module = module.map_err(|e| failure::later(e.to_string()))?;
        let module = module.ok_or_else(|| {
            // A stored module that does not match its digest is removed when it is read.
            failure::later(format!("the stored module {digest} was damaged"))
        })?;
        let report = self.vetter(attempt).vet(module, request).await;
        match report.map_err(|e| failure::later(e.to_string()))? {
            VetReport::Accepted(compiled) => Ok(self.keep(digest, *compiled).await),
            VetReport::Refused { refused, compiled } => {
                if let Some(compiled) = compiled {
                    self.keep(digest, *compiled).await;
                }
                Err(failure::vetted(refused, request))
            }
        }
    }

    pub(super) async fn begin(&self, digest: Digest) -> Result<Attempt, Failure> {
        let attempts = self.attempts.clone();
        let begun = tokio::task::spawn_blocking(move || attempts.begin(digest)).await;
        let begun = begun.map_err(|e| failure::later(e.to_string()))?;
        begun.map_err(failure::attempting)
    }

    /// A module at whose last attempt the process died gets half of the memory.
    pub(super) fn vetter(&self, attempt: &Attempt) -> Vetter {
        match attempt.is_careful() {
            true => self.vetter.with_memory(self.vetter.memory_bytes() / 2),
            false => self.vetter.clone(),
        }
    }

    async fn has_module(&self, digest: Digest) -> bool {
        self.store.stat(digest).await.is_ok_and(|s| s.is_some())
    }

    /// Whether there is an artefact, or none can be made because the engine is not known.
    async fn has_artefact(&self, digest: Digest) -> bool {
        let Some(engine) = self.engine() else {
            return true;
        };
        let stat = self.store.stat_artefact(&engine, digest).await;
        stat.is_ok_and(|stat| stat.is_some())
    }

    /// What the module compiles to, if that is known.
    async fn artefact(&self, digest: Digest) -> Option<Bytes> {
        let engine = self.engine()?;
        self.store.get_artefact(&engine, digest).await.ok()?
    }

    /// Stores the artefact, for evaluators and for the next policy with this module. Without
    /// it they compile the portable module themselves.
    async fn keep(&self, digest: Digest, compiled: Compiled) -> Facts {
        if let Some(artefact) = compiled.artefact {
            let engine = artefact.engine;
            let stored = self.store.put_artefact(&engine, digest, artefact.bytes);
            match stored.await {
                Ok(_) => self.set_engine(engine),
                Err(error) => warn!("failed to store a compiled module: {error}"),
            }
        }
        compiled.facts
    }

    fn set_engine(&self, engine: String) {
        if let Ok(mut known) = self.engine.lock() {
            *known = Some(engine);
        }
    }
}
