//! From a policy's spec to a revision that is known to load: pull, store, vet.
//!
//! The work on a module that does not depend on settings (pull, compile) is done once for
//! all policies that name it. Namespaces take turns, and neither pulls nor queues hold more
//! than a fixed number of bytes.

mod budget;
mod fetch;
mod flights;
mod locks;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use assent_api::parse::Module;
use assent_core::{
    Digest,
    policy::Limits,
    rollout::{PolicyId, Refusal, RefusalReason},
};
use assent_modules::{
    store::{MAX_MODULE_BYTES, Store},
    vet::{Compiled, Facts, Refused, Stage, VetLimits, VetReport, VetRequest, Vetter},
};
use assent_oci::{AddressPolicy, Files, ModuleUrl, Puller, Sources};
use assent_wasm::capability;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::{
    fetch::{BYTES_IN_FLIGHT, Fetched, Fetcher},
    locks::DigestLocks,
    turns::FairTurns,
};
use crate::metrics::Metrics;

/// Runs vetting jobs and reports their outcomes.
#[derive(Clone)]
pub(crate) struct Vetting {
    store: Store,
    fetcher: Fetcher,
    vetter: Vetter,
    turns: FairTurns,
    compiling: DigestLocks,
    /// The fingerprint of the engine in the vetting child, once a child has reported it.
    engine: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
    outcomes: mpsc::Sender<Outcome>,
}

/// One generation of a policy to be vetted.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// The URL of the module.
    pub(crate) url: String,
    /// The module of the revision to roll back to, whatever the URL refers to now.
    pub(crate) pinned: Option<Digest>,
    /// The base of relative `file://` URLs; none refuses files.
    pub(crate) files: Option<PathBuf>,
    /// Addresses that may be connected to, besides declared ones.
    pub(crate) addresses: AddressPolicy,
    /// Public keys (PEM), one of which must have signed the module; none requires no
    /// signature.
    pub(crate) verification: Vec<String>,
    /// Canonical JSON.
    pub(crate) settings: Arc<[u8]>,
    /// Entrypoint of a Rego module.
    pub(crate) entrypoint: String,
    /// Whether the policy may change objects.
    pub(crate) mutating: bool,
    /// Resolved limits.
    pub(crate) limits: Limits,
    /// The host calls that the policy's server grants.
    pub(crate) granted_capabilities: Vec<String>,
}

/// The sources that a PolicyServer declares.
#[derive(Clone, Debug)]
pub(crate) enum DeclaredSources {
    /// Complete.
    Given(Box<Sources>),
    /// To be read, because they refer to Secrets and ConfigMaps.
    Elsewhere(Arc<dyn ReadSources>),
}

/// Reads declared sources.
#[async_trait]
pub(crate) trait ReadSources: std::fmt::Debug + Send + Sync {
    /// Reads them; the error says what is missing.
    async fn read(&self) -> Result<Sources, Failed>;
}

/// The outcome of a job.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// A module that loads with the job's settings, or the reason why there is none.
    pub(crate) result: Result<Module, Failed>,
}

/// Why a generation can not be used.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// For the user.
    pub(crate) refusal: Refusal,
    /// Whether a retry may succeed.
    pub(crate) retryable: bool,
}

// === impl Vetting ===

impl Vetting {
    /// Vets with `vetter`, stores in `store`, reports to `outcomes`.
    pub(crate) fn new(
        store: Store,
        vetter: Vetter,
        metrics: Metrics,
        outcomes: mpsc::Sender<Outcome>,
    ) -> Self {
        Self {
            fetcher: Fetcher::new(store.clone(), metrics.clone()),
            turns: FairTurns::new(vetter.concurrency()),
            compiling: DigestLocks::default(),
            engine: Arc::default(),
            store,
            vetter,
            metrics,
            outcomes,
        }
    }

    /// The store of modules.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Starts a job. Cancelling it ends its child process.
    pub(crate) fn start(&self, job: Job, sources: DeclaredSources, cancelled: CancellationToken) {
        let vetting = self.clone();
        let since = self.fetcher.now();
        tokio::spawn(async move {
            let running = vetting.run(&job, &sources, since);
            let Some(result) = cancelled.run_until_cancelled(running).await else {
                return;
            };
            let outcome = Outcome {
                id: job.id,
                generation: job.generation,
                result,
            };
            // The receiver is gone only when the process ends.
            let _ = vetting.outcomes.send(outcome).await;
        });
    }

    /// Between fetching and vetting the module is on disk only: however many jobs wait for
    /// their turn, they hold no bytes of modules.
    async fn run(
        &self,
        job: &Job,
        sources: &DeclaredSources,
        since: u64,
    ) -> Result<Module, Failed> {
        let Fetched { digest, size, url } = self.fetch(job, sources, since).await?;
        let turn = self.turns.take(job.namespace()).await;
        let start = Instant::now();
        let facts = self.vet(job, digest).await?;
        self.metrics
            .module_compile
            .observe(start.elapsed().as_secs_f64());
        drop(turn);
        if let Some(why) = facts.required_context {
            return Err(Failed::no_context(&why));
        }
        let listed = facts.metadata.and_then(|m| m.host_capabilities);
        let granted = &job.granted_capabilities;
        Ok(Module {
            digest,
            size,
            abi: facts.abi,
            host_capabilities: capability::effective(granted, listed.as_deref()),
            url,
        })
    }

    /// Brings the module into the store, unless it is pinned and there. If it must be signed
    /// it is pulled again: it may have been stored before a signature was required.
    async fn fetch(
        &self,
        job: &Job,
        sources: &DeclaredSources,
        since: u64,
    ) -> Result<Fetched, Failed> {
        if let Some(digest) = job.pinned.filter(|_| job.verification.is_empty())
            && let Some(size) = self.fetcher.stat(digest).await?
        {
            return Ok(Fetched {
                digest,
                size,
                url: job.url.clone(),
            });
        }
        let sources = sources.read().await?;
        let fetched = self.fetcher.fetch(job, sources, since).await?;
        match job.pinned.filter(|pinned| *pinned != fetched.digest) {
            None => Ok(fetched),
            Some(pinned) => Err(Failed::pull(format!(
                "{} does not match {pinned}, the digest of the revision to roll back to, and the \
                 module with that digest is no longer stored",
                job.url
            ))),
        }
    }

    /// Vets the module with the job's settings. It is compiled only if that was not done
    /// before: policies that share a module differ in their settings.
    async fn vet(&self, job: &Job, digest: Digest) -> Result<Facts, Failed> {
        let request = request(job);
        let mut artefact = self.artefact(digest).await;
        let mut compiling = None;
        if artefact.is_none() {
            compiling = Some(self.compiling.lock(digest).await);
            artefact = self.artefact(digest).await;
        }
        if let Some(artefact) = artefact {
            drop(compiling.take());
            match self.vetter.vet_compiled(artefact, &request).await {
                Ok(VetReport::Accepted(compiled)) => return Ok(compiled.facts),
                Ok(VetReport::Refused { refused, .. }) => return Err(Failed::vetted(refused)),
                Err(error) => debug!(%digest, "failed to vet a compiled module: {error}"),
            }
        }
        let module = self.store.get(digest).await;
        let module = module.map_err(|e| Failed::later(e.to_string()))?;
        let module = module.ok_or_else(|| {
            // A stored module that does not match its digest is removed when it is read.
            Failed::later(format!("the stored module {digest} was damaged"))
        })?;
        let report = self.vetter.vet(module, &request).await;
        match report.map_err(|e| Failed::later(e.to_string()))? {
            VetReport::Accepted(compiled) => Ok(self.keep(digest, *compiled).await),
            VetReport::Refused { refused, compiled } => {
                if let Some(compiled) = compiled {
                    self.keep(digest, *compiled).await;
                }
                Err(Failed::vetted(refused))
            }
        }
    }

    /// What the module compiles to, if that is known.
    async fn artefact(&self, digest: Digest) -> Option<Bytes> {
        let engine = self.engine.lock().ok()?.clone()?;
        self.store.get_artefact(&engine, digest).await.ok()?
    }

    /// Stores the artefact, for evaluators and for the next policy with this module. Without
    /// it they compile the portable module themselves.
    async fn keep(&self, digest: Digest, compiled: Compiled) -> Facts {
        if let Some(artefact) = compiled.artefact {
            let engine = artefact.engine;
            let stored = self.store.put_artefact(&engine, digest, artefact.bytes);
            match stored.await {
                Ok(_) => {
                    if let Ok(mut known) = self.engine.lock() {
                        *known = Some(engine);
                    }
                }
                Err(error) => warn!("failed to store a compiled module: {error}"),
            }
        }
        compiled.facts
    }
}

// === impl Job ===

impl Job {
    /// Whom the policy is scheduled for; all cluster-wide policies together count as one.
    fn namespace(&self) -> &str {
        self.id.key.namespace().unwrap_or_default()
    }
}

// === impl DeclaredSources ===

impl DeclaredSources {
    async fn read(&self) -> Result<Sources, Failed> {
        match self {
            DeclaredSources::Given(sources) => Ok(Sources::clone(sources)),
            DeclaredSources::Elsewhere(place) => place.read().await,
        }
    }
}

// === impl Failed ===

impl Failed {
    pub(crate) fn invalid(message: String) -> Self {
        Self {
            refusal: refusal(RefusalReason::Invalid, message),
            retryable: false,
        }
    }

    /// A process that died or was too slow may have been the machine's fault: it is tried
    /// again before the module is refused for good.
    fn vetted(refused: Refused) -> Self {
        Self {
            retryable: matches!(refused.stage, Stage::Crashed | Stage::TimedOut),
            ..Self::invalid(refused.message)
        }
    }

    /// A module that is missing may be pushed later; content that is not a module stays so.
    fn pulling(error: assent_oci::Error) -> Self {
        let reason = match &error {
            assent_oci::Error::NotWasm { .. } | assent_oci::Error::TooLarge { .. } => {
                RefusalReason::Invalid
            }
            assent_oci::Error::SignatureRejected { .. } => RefusalReason::SignatureRejected,
            _ => RefusalReason::PullError,
        };
        Self {
            retryable: reason == RefusalReason::PullError,
            refusal: refusal(reason, error.to_string()),
        }
    }

    /// A module that would evaluate requests without the objects that it must see.
    fn no_context(why: &str) -> Self {
        Self {
            refusal: assent_controller::context_unavailable("spec.module", why),
            retryable: false,
        }
    }

    fn pull(message: String) -> Self {
        Self {
            refusal: refusal(RefusalReason::PullError, message),
            retryable: false,
        }
    }

    /// A failure that is not the module's fault.
    pub(crate) fn later(message: String) -> Self {
        Self {
            refusal: refusal(RefusalReason::PullError, message),
            retryable: true,
        }
    }
}

/// Fetches a module that a stored revision names and the store lacks; retries until it is
/// there.
pub(crate) async fn fetch_again(
    store: &Store,
    url: &str,
    digest: Digest,
    sources: &DeclaredSources,
    addresses: AddressPolicy,
    files: Option<&Path>,
) {
    let mut wait = Duration::from_secs(2);
    loop {
        let fetched = fetch_once(store, url, digest, sources, addresses, files).await;
        let Err(why) = fetched else { return };
        warn!(%digest, "failed to fetch a module again; retrying: {why}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(300));
    }
}

async fn fetch_once(
    store: &Store,
    url: &str,
    digest: Digest,
    sources: &DeclaredSources,
    addresses: AddressPolicy,
    files: Option<&Path>,
) -> Result<(), String> {
    if is_stored(store, digest).await? {
        return Ok(());
    }
    let sources = sources.read().await.map_err(|f| f.refusal.message)?;
    let mut puller = Puller::new(sources, addresses).map_err(|e| e.to_string())?;
    if let Some(base) = files {
        puller = puller.with_files(Files::Below(base.to_owned()));
    }
    pull_into(store, &puller, url, digest).await
}

async fn is_stored(store: &Store, digest: Digest) -> Result<bool, String> {
    let found = store.stat(digest).await;
    found.map(|size| size.is_some()).map_err(|e| e.to_string())
}

/// Pulls within the budget that all pulls share: after a restart many modules may be missing
/// at once.
async fn pull_into(
    store: &Store,
    puller: &Puller,
    url: &str,
    digest: Digest,
) -> Result<(), String> {
    let url: ModuleUrl = url.parse().map_err(|e| format!("{e}"))?;
    let located = puller.locate(&url).await.map_err(|e| e.to_string())?;
    let size = located.size().unwrap_or(MAX_MODULE_BYTES as u64);
    let _share = BYTES_IN_FLIGHT.take(size).await;
    let pulled = puller.fetch(located).await.map_err(|e| e.to_string())?;
    let stored = store.put_expected(digest, pulled.bytes).await;
    stored.map_err(|e| e.to_string())
}

fn request(job: &Job) -> VetRequest {
    let settings = String::from_utf8_lossy(&job.settings).into_owned();
    VetRequest {
        entrypoint: job.entrypoint.clone(),
        mutating: job.mutating,
        granted_capabilities: job.granted_capabilities.clone(),
        limits: VetLimits {
            timeout_ms: job.limits.timeout_ms.into(),
            memory_bytes: job.limits.memory_bytes,
        },
        ..VetRequest::new(settings)
    }
}

fn refusal(reason: RefusalReason, message: String) -> Refusal {
    Refusal { reason, message }
}
