//! From a policy's spec to a revision that is known to load: pull, store, vet.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_api::parse::Module;
use assent_core::{
    Digest,
    policy::Limits,
    rollout::{PolicyId, Refusal, RefusalReason},
};
use assent_modules::{
    pull::{self, Files, ModuleUrl, Puller, Reach, Sources},
    store::Store,
    verify::Keys,
    vet::{Refused, Stage, VetLimits, VetReport, VetRequest, Vetter},
};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::metrics::Metrics;

/// Runs vetting jobs and reports what came out.
#[derive(Clone)]
pub(crate) struct Vetting {
    store: Store,
    vetter: Vetter,
    metrics: Metrics,
    outcomes: mpsc::Sender<Outcome>,
}

/// One generation of one policy to be vetted.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// Where the module is.
    pub(crate) url: String,
    /// The module that a rollback pinned, wherever its URL leads now.
    pub(crate) pinned: Option<Digest>,
    /// Where relative `file://` URLs start; none where files are refused.
    pub(crate) files: Option<PathBuf>,
    /// Addresses that may be fetched from, besides declared ones.
    pub(crate) reach: Reach,
    /// Public keys (PEM), one of which must have signed the module; none asks for no
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
    /// Where only some host calls are allowed: these.
    pub(crate) allowed_capabilities: Option<Vec<String>>,
}

/// What a server declares about the hosts that modules come from.
#[derive(Clone, Debug)]
pub(crate) enum DeclaredSources {
    /// All of it is at hand.
    Given(Box<Sources>),
    /// Some of it must be read first.
    Elsewhere(Arc<dyn ReadSources>),
}

/// Reads declared sources from where they are kept.
#[async_trait]
pub(crate) trait ReadSources: std::fmt::Debug + Send + Sync {
    /// Reads them, or says what is missing.
    async fn read(&self) -> Result<Sources, Failed>;
}

/// What came out of a job.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// A module that loads with the job's settings, or why there is none.
    pub(crate) result: Result<Module, Failed>,
}

/// Why a generation can't be used.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// For the user.
    pub(crate) refusal: Refusal,
    /// Whether the same may work later.
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
            store,
            vetter,
            metrics,
            outcomes,
        }
    }

    /// Where modules are kept.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Starts a job. Cancelling it ends its child process.
    pub(crate) fn start(&self, job: Job, sources: DeclaredSources, cancelled: CancellationToken) {
        let vetting = self.clone();
        tokio::spawn(async move {
            let running = vetting.run(&job, &sources);
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

    async fn run(&self, job: &Job, sources: &DeclaredSources) -> Result<Module, Failed> {
        let (digest, bytes, url) = self.fetch(job, sources).await?;
        let size = bytes.len() as u64;
        let start = Instant::now();
        let report = self.vetter.vet(bytes, &request(job)).await;
        self.metrics
            .module_compile
            .observe(start.elapsed().as_secs_f64());
        let accepted = match report.map_err(|e| Failed::later(e.to_string()))? {
            VetReport::Accepted(accepted) => accepted,
            VetReport::Refused(refused) => return Err(Failed::vetted(refused)),
        };
        if let Some(artefact) = accepted.artefact {
            // Without it evaluators compile the portable module themselves.
            let stored = self
                .store
                .put_artefact(&artefact.engine, digest, artefact.bytes);
            if let Err(error) = stored.await {
                warn!("failed to store a compiled module: {error}");
            }
        }
        let metadata = accepted.facts.metadata.as_ref();
        let wanted = metadata.map(|m| m.host_capabilities.clone());
        Ok(Module {
            digest,
            size,
            abi: accepted.facts.abi,
            host_capabilities: allowed(wanted.unwrap_or_default(), job),
            url,
        })
    }

    /// The module's bytes, out of the store where it is pinned and there. Where it must
    /// be signed it is pulled again: what is stored may be older than that wish.
    async fn fetch(
        &self,
        job: &Job,
        sources: &DeclaredSources,
    ) -> Result<(Digest, Bytes, String), Failed> {
        if let Some(digest) = job.pinned.filter(|_| job.verification.is_empty()) {
            let stored = self.store.get(digest).await;
            if let Some(bytes) = stored.map_err(|e| Failed::later(e.to_string()))? {
                return Ok((digest, bytes, job.url.clone()));
            }
        }
        let start = Instant::now();
        let url: ModuleUrl = job
            .url
            .parse()
            .map_err(|e| Failed::invalid(format!("spec.module: {e}")))?;
        let pulled = puller(job, sources)
            .await?
            .pull(&url)
            .await
            .map_err(Failed::pulling)?;
        self.metrics
            .module_pull
            .observe(start.elapsed().as_secs_f64());
        if let Some(pinned) = job.pinned.filter(|pinned| *pinned != pulled.digest) {
            return Err(Failed::pull(format!(
                "{} is not the module that is gone back to ({pinned}), and that one is no longer stored",
                job.url
            )));
        }
        let stored = self.store.put_expected(pulled.digest, pulled.bytes.clone());
        stored.await.map_err(|e| Failed::later(e.to_string()))?;
        debug!(module = %job.url, digest = %pulled.digest, signer = ?pulled.verified_by, "fetched");
        let resolved = pulled.resolved_url.to_string();
        Ok((pulled.digest, pulled.bytes, resolved))
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

    /// A process that died or was too slow may have been the machine's fault: it gets
    /// another try.
    fn vetted(refused: Refused) -> Self {
        Self {
            retryable: refused.stage == Stage::Crashed,
            ..Self::invalid(refused.message)
        }
    }

    /// What can't be fetched now may be there later; what is no module stays none.
    fn pulling(error: pull::Error) -> Self {
        let reason = match &error {
            pull::Error::NotWasm { .. } | pull::Error::TooLarge { .. } => RefusalReason::Invalid,
            pull::Error::SignatureRejected { .. } => RefusalReason::SignatureRejected,
            _ => RefusalReason::PullError,
        };
        Self {
            // A tag that is not there may be pushed the next moment.
            retryable: reason == RefusalReason::PullError,
            refusal: refusal(reason, error.to_string()),
        }
    }

    fn pull(message: String) -> Self {
        Self {
            refusal: refusal(RefusalReason::PullError, message),
            retryable: false,
        }
    }

    /// Nothing is known to be wrong with the module.
    pub(crate) fn later(message: String) -> Self {
        Self {
            refusal: refusal(RefusalReason::PullError, message),
            retryable: true,
        }
    }
}

/// Fetches a module that a stored revision names, however often that takes.
pub(crate) async fn restore(
    store: &Store,
    url: &str,
    digest: Digest,
    sources: &dyn ReadSources,
    reach: Reach,
) {
    let mut wait = Duration::from_secs(2);
    while let Err(why) = try_restore(store, url, digest, sources, reach).await {
        warn!(%digest, "failed to fetch a module again, which is tried again: {why}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(300));
    }
}

async fn try_restore(
    store: &Store,
    url: &str,
    digest: Digest,
    sources: &dyn ReadSources,
    reach: Reach,
) -> Result<(), String> {
    if store
        .stat(digest)
        .await
        .map_err(|e| e.to_string())?
        .is_some()
    {
        return Ok(());
    }
    let sources = sources.read().await.map_err(|f| f.refusal.message)?;
    let url: ModuleUrl = url.parse().map_err(|e| format!("{e}"))?;
    let puller = Puller::new(sources, reach).map_err(|e| e.to_string())?;
    let pulled = puller.pull(&url).await.map_err(|e| e.to_string())?;
    let stored = store.put_expected(digest, pulled.bytes).await;
    stored.map_err(|e| e.to_string())
}

async fn puller(job: &Job, sources: &DeclaredSources) -> Result<Puller, Failed> {
    let sources = match sources {
        DeclaredSources::Given(sources) => Sources::clone(sources),
        DeclaredSources::Elsewhere(place) => place.read().await?,
    };
    let puller = Puller::new(sources, job.reach);
    let mut puller = puller.map_err(|e| Failed::invalid(e.to_string()))?;
    if let Some(base) = &job.files {
        puller = puller.with_files(Files::Below(base.clone()));
    }
    if job.verification.is_empty() {
        return Ok(puller);
    }
    let keys = Keys::any_of(&job.verification).map_err(|e| {
        Failed::invalid(format!(
            "spec.verification.publicKeys of the PolicyServer: {e}"
        ))
    })?;
    Ok(puller.with_verification(keys))
}

fn request(job: &Job) -> VetRequest {
    let settings = String::from_utf8_lossy(&job.settings).into_owned();
    VetRequest {
        entrypoint: job.entrypoint.clone(),
        mutating: job.mutating,
        limits: VetLimits {
            timeout_ms: job.limits.timeout_ms.into(),
            memory_bytes: job.limits.memory_bytes,
        },
        ..VetRequest::new(settings)
    }
}

fn allowed(mut wanted: Vec<String>, job: &Job) -> Vec<String> {
    if let Some(allowed) = &job.allowed_capabilities {
        wanted.retain(|w| allowed.iter().any(|a| a == w || a == "*"));
    }
    wanted
}

fn refusal(reason: RefusalReason, message: String) -> Refusal {
    Refusal { reason, message }
}

#[cfg(test)]
mod tests {
    use assent_modules::verify::Rejected;

    use super::*;

    #[track_caller]
    fn check(error: pull::Error, reason: RefusalReason, retryable: bool) {
        let failed = Failed::pulling(error);
        assert_eq!(
            (failed.refusal.reason, failed.retryable),
            (reason, retryable)
        );
    }

    #[test]
    fn a_missing_signature_is_told_from_a_registry_that_is_away() {
        let url = || "registry://r.io/p:v1".to_owned();
        let rejected = pull::Error::SignatureRejected {
            url: url(),
            why: Rejected::Unsigned,
            keys: String::new(),
        };
        check(rejected, RefusalReason::SignatureRejected, false);
        let away = pull::Error::Network {
            url: url(),
            why: String::new(),
        };
        check(away, RefusalReason::PullError, true);
        let no_module = pull::Error::NotWasm {
            url: url(),
            why: "",
        };
        check(no_module, RefusalReason::Invalid, false);
    }
}
