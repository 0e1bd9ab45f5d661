//! From a policy's spec to a revision that is known to load: pull, store, vet.
//!
//! The work on a module that does not depend on settings (pull, compile) is done once for
//! all policies that name it. Namespaces take turns, and neither pulls nor queues hold more
//! than a fixed number of bytes.

mod artefacts;
mod budget;
mod compiler;
pub(crate) mod failure;
mod fetch;
mod flights;
mod locks;
mod memory;
mod settings;
mod signature;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use assent_api::{
    parse::Module,
    settings::{SecretSettings, SettingsSource},
};
use assent_controller::Failure;
use assent_core::{Digest, policy::Limits, rollout::PolicyId};
use assent_modules::{
    store::{MAX_MODULE_BYTES, Store},
    vet::{VetLimits, VetRequest},
};
use assent_oci::{AddressPolicy, ConfigMapKey, Files, ModuleUrl, Puller, Sources};
use assent_wasm::capability;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::fetch::{BYTES_IN_FLIGHT, Fetched, Fetcher, RESTORING};
#[cfg(any(feature = "cluster", test))]
pub(crate) use self::settings::ReadSettings;
pub(crate) use self::{
    artefacts::{Artefacts, COLLECT_EVERY},
    compiler::Compiler,
    settings::{SettingsAccess, SettingsReport},
    signature::{SignatureJob, SignatureReport},
};

/// Runs vetting jobs and reports their outcomes.
#[derive(Clone)]
pub(crate) struct Vetting {
    compiler: Compiler,
    artefacts: Artefacts,
    fetcher: Fetcher,
    outcomes: mpsc::Sender<Report>,
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
    /// Canonical JSON, without the values of Secrets.
    pub(crate) settings: Arc<[u8]>,
    /// Settings that come from Secrets.
    pub(crate) settings_from: Vec<SettingsSource>,
    /// The complete settings, if they are known: Secrets are not read.
    pub(crate) secret_settings: Option<SecretSettings>,
    /// Reads Secrets; none refuses settings that come from them.
    pub(crate) settings_access: Option<SettingsAccess>,
    /// Entrypoint of a Rego module.
    pub(crate) entrypoint: String,
    /// Whether the policy may change objects.
    pub(crate) mutating: bool,
    /// Whether the policy decides about requests at Envoy.
    pub(crate) check: bool,
    /// Resolved limits.
    pub(crate) limits: Limits,
    /// The host calls that the policy's server grants.
    pub(crate) granted_capabilities: Vec<String>,
    /// Whether the policy declares objects of the cluster that it reads.
    pub(crate) declares_context: bool,
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
    async fn read(&self) -> Result<Sources, Failure>;

    /// Reads a key of a ConfigMap, for a policy of `namespace`; none is a policy of the cluster.
    async fn config_map(
        &self,
        key: &ConfigMapKey,
        namespace: Option<&str>,
    ) -> Result<Bytes, Failure>;
}

/// What is reported.
#[derive(Clone, Debug)]
pub(crate) enum Report {
    /// A job ended.
    Vetted(Outcome),
    /// A signature was checked.
    Signature(SignatureReport),
    /// Secrets were read again.
    Settings(SettingsReport),
}

/// The outcome of a job.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The policy.
    pub(crate) id: PolicyId,
    /// Its generation.
    pub(crate) generation: i64,
    /// A module that loads with the job's settings, or the reason why there is none.
    pub(crate) result: Result<Module, Failure>,
}

// === impl Vetting ===

impl Vetting {
    /// Vets with the compiler of `artefacts`, reports to `outcomes`.
    pub(crate) fn new(artefacts: Artefacts, outcomes: mpsc::Sender<Report>) -> Self {
        let compiler = artefacts.compiler().clone();
        let store = compiler.store().clone();
        Self {
            fetcher: Fetcher::new(store, compiler.clone()),
            compiler,
            artefacts,
            outcomes,
        }
    }

    /// Artefacts of modules that were vetted before.
    pub(crate) fn artefacts(&self) -> &Artefacts {
        &self.artefacts
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
            let _ = vetting.outcomes.send(Report::Vetted(outcome)).await;
        });
    }

    /// Between fetching and vetting the module is on disk only: however many jobs wait for
    /// their turn, they hold no bytes of modules.
    async fn run(
        &self,
        job: &Job,
        sources: &DeclaredSources,
        since: u64,
    ) -> Result<Module, Failure> {
        let secret_settings = settings::resolve(job).await?;
        let Fetched {
            digest,
            size,
            url,
            signer,
        } = self.fetch(job, sources, since).await?;
        let request = request(job, secret_settings.as_ref());
        let vetted = self.compiler.vet(job.namespace(), digest, &request);
        let facts = vetted.await?;
        if let Some(why) = facts.required_context
            && !job.declares_context
        {
            return Err(failure::no_context(&why));
        }
        let listed = facts.metadata.and_then(|m| m.host_capabilities);
        let granted = &job.granted_capabilities;
        Ok(Module {
            digest,
            size,
            abi: facts.abi,
            host_capabilities: capability::effective(granted, listed.as_deref()),
            signer,
            url,
            secret_settings,
        })
    }

    /// Brings the module into the store, unless it is pinned and there. If it must be signed
    /// it is pulled again: it may have been stored before a signature was required.
    async fn fetch(
        &self,
        job: &Job,
        sources: &DeclaredSources,
        since: u64,
    ) -> Result<Fetched, Failure> {
        if let Some(digest) = job.pinned.filter(|_| job.verification.is_empty())
            && let Some(size) = self.fetcher.stat(digest).await?
        {
            return Ok(Fetched {
                digest,
                size,
                url: job.url.clone(),
                signer: None,
            });
        }
        let url: ModuleUrl = job
            .url
            .parse()
            .map_err(|e| failure::invalid(format!("spec.module: {e}")))?;
        let fetched = match url.config_map() {
            Some(key) => self.fetch_config_map(job, &url, key, sources).await?,
            None => {
                let sources = sources.read().await?;
                self.fetcher.fetch(job, url, sources, since).await?
            }
        };
        match job.pinned.filter(|pinned| *pinned != fetched.digest) {
            None => Ok(fetched),
            Some(pinned) => Err(failure::pull(format!(
                "{} does not match {pinned}, the digest of the revision to roll back to, and the \
                 module with that digest is no longer stored",
                job.url
            ))),
        }
    }
}

// === impl Job ===

impl Vetting {
    /// A ConfigMap is read once per generation: what it contains then is what the revision is made of.
    async fn fetch_config_map(
        &self,
        job: &Job,
        url: &ModuleUrl,
        key: &ConfigMapKey,
        sources: &DeclaredSources,
    ) -> Result<Fetched, Failure> {
        if !job.verification.is_empty() {
            let why = "a ConfigMap has no signature, which the PolicyServer requires";
            return Err(failure::invalid(format!("spec.module: {why}")));
        }
        let DeclaredSources::Elsewhere(place) = sources else {
            let why = "ConfigMaps can be read in a cluster only; use file://";
            return Err(failure::invalid(format!("spec.module: {why}")));
        };
        let content = place.config_map(key, job.id.key.namespace()).await?;
        let pinned = url.pin_text(&content).map_err(failure::pulling)?;
        self.fetcher.keep(&pinned, content, job).await
    }
}

impl Job {
    /// Whom the policy is scheduled for; all cluster-wide policies together count as one.
    fn namespace(&self) -> &str {
        self.id.key.namespace().unwrap_or_default()
    }
}

// === impl DeclaredSources ===

impl DeclaredSources {
    async fn read(&self) -> Result<Sources, Failure> {
        match self {
            DeclaredSources::Given(sources) => Ok(Sources::clone(sources)),
            DeclaredSources::Elsewhere(place) => place.read().await,
        }
    }
}

/// Fetches a module that a stored revision names and the store lacks, or builds it again from its text; retries until
/// it is there.
pub(crate) async fn fetch_again(
    artefacts: &Artefacts,
    url: &str,
    digest: Digest,
    sources: &DeclaredSources,
    addresses: AddressPolicy,
    files: Option<&Path>,
) {
    let mut wait = Duration::from_secs(2);
    loop {
        let fetched = fetch_once(artefacts, url, digest, sources, addresses, files).await;
        let Err(why) = fetched else { return };
        warn!(%digest, "failed to fetch a module again; retrying: {why}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(300));
    }
}

async fn fetch_once(
    artefacts: &Artefacts,
    url: &str,
    digest: Digest,
    sources: &DeclaredSources,
    addresses: AddressPolicy,
    files: Option<&Path>,
) -> Result<(), String> {
    let store = artefacts.store();
    if is_stored(store, digest).await? {
        return Ok(());
    }
    let _turn = RESTORING.acquire().await.map_err(|e| e.to_string())?;
    let url: ModuleUrl = url.parse().map_err(|e| format!("{e}"))?;
    let content = match (url.config_map(), sources) {
        (Some(key), DeclaredSources::Elsewhere(place)) => {
            let content = place.config_map(key, Some(&key.namespace)).await;
            let content = content.map_err(|f| f.refusal.message)?;
            url.pin_text(&content).map_err(|e| e.to_string())?;
            content
        }
        _ => {
            let sources = sources.read().await.map_err(|f| f.refusal.message)?;
            let mut puller = Puller::new(sources, addresses).map_err(|e| e.to_string())?;
            if let Some(base) = files {
                puller = puller.with_files(Files::Below(base.to_owned()));
            }
            pull(&puller, &url).await?
        }
    };
    let module = match url.text_name() {
        Some(name) => rebuild(artefacts.compiler(), name, content).await?,
        None => content,
    };
    let stored = store.put_expected(digest, module).await;
    stored.map_err(|e| e.to_string())
}

/// Builds a text again. Another version of the interpreter gives another module, which the store refuses.
async fn rebuild(compiler: &Compiler, name: &str, content: Bytes) -> Result<Bytes, String> {
    let text = fetch::text(name, content, String::new()).map_err(|f| f.refusal.message)?;
    let built = compiler.build("", &text).await;
    built.map_err(|f| f.refusal.message)
}

async fn is_stored(store: &Store, digest: Digest) -> Result<bool, String> {
    let found = store.stat(digest).await;
    found.map(|size| size.is_some()).map_err(|e| e.to_string())
}

/// Pulls within the budget that all pulls share: after a restart many modules may be missing
/// at once.
async fn pull(puller: &Puller, url: &ModuleUrl) -> Result<Bytes, String> {
    let located = puller.locate(url).await.map_err(|e| e.to_string())?;
    let size = located.size().unwrap_or(MAX_MODULE_BYTES as u64);
    let _share = BYTES_IN_FLIGHT.take(size).await;
    let pulled = puller.fetch(located).await.map_err(|e| e.to_string())?;
    Ok(pulled.bytes)
}

fn request(job: &Job, secret: Option<&SecretSettings>) -> VetRequest {
    let settings = secret.map_or(&job.settings, |secret| &secret.json);
    let settings = String::from_utf8_lossy(settings).into_owned();
    VetRequest {
        confidential: secret.is_some(),
        entrypoint: job.entrypoint.clone(),
        mutating: job.mutating,
        check: job.check,
        granted_capabilities: job.granted_capabilities.clone(),
        limits: VetLimits {
            timeout_ms: job.limits.timeout_ms.into(),
            memory_bytes: job.limits.memory_bytes,
        },
        ..VetRequest::new(settings)
    }
}
