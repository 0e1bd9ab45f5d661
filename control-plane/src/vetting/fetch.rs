//! Brings modules into the store, each digest once, within a budget of memory.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use assent_controller::Failure;
use assent_core::Digest;
use assent_modules::store::{MAX_MODULE_BYTES, Store};
use assent_oci::{AddressPolicy, Files, ModuleUrl, Puller, Sources, SourcesError, verify::Keys};
use assent_text::Text;
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tracing::debug;

use super::{
    Job,
    budget::ByteBudget,
    compiler::Compiler,
    failure,
    flights::Flights,
    locks::DigestLocks,
    turns::{FairTurns, Turn},
};

/// Pulls at once: enough to hide the latency of registries, few enough to be polite to them.
const CONCURRENT_PULLS: usize = 4;

/// Bytes of modules in memory because they are being pulled: two of the largest.
const MAX_BYTES_IN_FLIGHT: u64 = 2 * MAX_MODULE_BYTES as u64;

/// Clients that are kept, with their connections: one for each set of sources, which are as
/// many as PolicyServers that declare some.
const MAX_PULLERS: usize = 16;

/// A client reads the system's certificate authorities once. After this time a new client
/// reads them again.
const PULLER_MAX_AGE: Duration = Duration::from_secs(600);

/// All pulls of the process share one budget: those of policies that are vetted, and those
/// of revisions whose modules are restored.
pub(super) static BYTES_IN_FLIGHT: LazyLock<ByteBudget> =
    LazyLock::new(|| ByteBudget::new(MAX_BYTES_IN_FLIGHT));

/// Modules of stored revisions that are fetched at once. After a restart all of them may be
/// missing.
pub(super) static RESTORING: Semaphore = Semaphore::const_new(CONCURRENT_PULLS);

/// Fetches modules for jobs.
#[derive(Clone)]
pub(super) struct Fetcher {
    store: Store,
    budget: ByteBudget,
    turns: FairTurns,
    pulls: Arc<Flights<PullKey, Fetched, Failure>>,
    downloads: DigestLocks,
    pullers: Arc<Mutex<Pullers>>,
    compiler: Compiler,
}

/// A module that is in the store.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    pub(super) digest: Digest,
    pub(super) size: u64,
    /// The URL, pinned.
    pub(super) url: String,
    /// Fingerprint of the key that signed it, if a signature is required.
    pub(super) signer: Option<String>,
}

/// Access to the registries of one PolicyServer.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) addresses: AddressPolicy,
    pub(super) files: Option<&'a PathBuf>,
    /// Public keys, one of which must have signed; none requires no signature.
    pub(super) verification: &'a [String],
}

/// Everything that decides what a pull gives.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PullKey {
    url: String,
    sources: Sources,
    addresses: AddressPolicy,
    files: Option<PathBuf>,
    verification: Vec<String>,
    /// A text is built with it.
    entrypoint: String,
}

/// Clients by sources, the most recently used last.
#[derive(Default)]
struct Pullers(VecDeque<KeptPuller>);

struct KeptPuller {
    sources: Sources,
    addresses: AddressPolicy,
    made: Instant,
    puller: Puller,
}

// === impl Fetcher ===

impl Fetcher {
    /// Texts are built by `compiler`.
    pub(super) fn new(store: Store, compiler: Compiler) -> Self {
        Self {
            store,
            budget: BYTES_IN_FLIGHT.clone(),
            turns: FairTurns::new(CONCURRENT_PULLS),
            pulls: Arc::default(),
            downloads: DigestLocks::default(),
            pullers: Arc::default(),
            compiler,
        }
    }

    #[cfg(test)]
    pub(super) fn with_budget(self, budget: ByteBudget) -> Self {
        Self { budget, ..self }
    }

    /// The present, for [`Fetcher::fetch`].
    pub(super) fn now(&self) -> u64 {
        self.pulls.now()
    }

    /// Brings the module of a job that began at `since` into the store.
    pub(super) async fn fetch(
        &self,
        job: &Job,
        url: ModuleUrl,
        sources: Sources,
        since: u64,
    ) -> Result<Fetched, Failure> {
        let access = Access {
            addresses: job.addresses,
            files: job.files.as_ref(),
            verification: &job.verification,
        };
        let puller = self.puller(access, &sources)?;
        let key = PullKey {
            url: job.url.clone(),
            sources,
            addresses: job.addresses,
            files: job.files.clone(),
            verification: job.verification.clone(),
            entrypoint: job.entrypoint.clone(),
        };
        let ticket = self.pulls.enter(key, since, url.is_pinned());
        let turn = self.turns.take(job.namespace()).await;
        let (fetcher, job) = (self.clone(), job.clone());
        ticket
            .share(|| async move { fetcher.pull(&puller, &url, &job, turn).await }.boxed())
            .await
    }

    async fn pull(
        &self,
        puller: &Puller,
        url: &ModuleUrl,
        job: &Job,
        _turn: Turn,
    ) -> Result<Fetched, Failure> {
        let start = Instant::now();
        let located = puller.locate(url).await.map_err(failure::pulling)?;
        let signer = located.verified_by().map(|key| key.to_string());
        let mut _downloading = None;
        if let (Some(digest), Some(url)) = (located.digest(), located.resolved_url())
            && url.text_name().is_none()
        {
            // Another tag, or another registry, may name the same module.
            _downloading = Some(self.downloads.lock(digest).await);
            if let Some(size) = self.stat(digest).await? {
                debug!(%url, %digest, "the store has the module already");
                let url = url.to_string();
                return Ok(Fetched {
                    digest,
                    size,
                    url,
                    signer,
                });
            }
        }
        let size = located.size().unwrap_or(MAX_MODULE_BYTES as u64);
        let _share = self.budget.take(size).await;
        let pulled = puller.fetch(located).await.map_err(failure::pulling)?;
        self.compiler
            .metrics()
            .module_pull
            .observe(start.elapsed().as_secs_f64());
        let fetched = self.keep(&pulled.resolved_url, pulled.bytes, job).await?;
        debug!(url = url.redacted(), digest = %fetched.digest, signer = ?pulled.verified_by, "fetched a module");
        Ok(Fetched { signer, ..fetched })
    }

    /// Stores a module, or the one that a text becomes. `url` is pinned.
    pub(super) async fn keep(
        &self,
        url: &ModuleUrl,
        content: Bytes,
        job: &Job,
    ) -> Result<Fetched, Failure> {
        let module = match url.text_name() {
            Some(name) => {
                let text = text(name, content, job.entrypoint.clone())?;
                self.compiler.build(job.namespace(), &text).await?
            }
            None => content,
        };
        let (digest, size) = (Digest::of(&module), module.len() as u64);
        let stored = self.store.put_expected(digest, module);
        stored.await.map_err(|e| failure::later(e.to_string()))?;
        Ok(Fetched {
            digest,
            size,
            url: url.to_string(),
            signer: None,
        })
    }

    /// A turn to use registries.
    pub(super) async fn turn(&self, namespace: &str) -> Turn {
        self.turns.take(namespace).await
    }

    /// The size of a stored module.
    pub(super) async fn stat(&self, digest: Digest) -> Result<Option<u64>, Failure> {
        let found = self.store.stat(digest).await;
        found.map_err(|e| failure::later(e.to_string()))
    }

    pub(super) fn puller(&self, access: Access<'_>, sources: &Sources) -> Result<Puller, Failure> {
        let mut pullers = self.pullers.lock().unwrap_or_else(PoisonError::into_inner);
        let puller = pullers.get(sources, access.addresses, Instant::now());
        let mut puller = puller.map_err(|e| failure::invalid(e.to_string()))?;
        if let Some(base) = access.files {
            puller = puller.with_files(Files::Below(base.clone()));
        }
        if access.verification.is_empty() {
            return Ok(puller);
        }
        let keys = Keys::any_of(access.verification).map_err(|e| {
            failure::invalid(format!(
                "spec.verification.publicKeys of the PolicyServer: {e}"
            ))
        })?;
        Ok(puller.with_verification(keys))
    }
}

/// The text of a policy, and the rule that its manifest names.
pub(super) fn text(name: &str, content: Bytes, entrypoint: String) -> Result<Text, Failure> {
    let content = String::from_utf8(content.into())
        .map_err(|_| failure::invalid(format!("{name}: the text is not UTF-8")))?;
    let text = Text::from_file(name, content);
    let text = text.ok_or_else(|| failure::invalid(format!("{name}: unknown language")))?;
    Ok(Text { entrypoint, ..text })
}

// === impl Pullers ===

impl Pullers {
    fn get(
        &mut self,
        sources: &Sources,
        addresses: AddressPolicy,
        now: Instant,
    ) -> Result<Puller, SourcesError> {
        self.0
            .retain(|kept| now.saturating_duration_since(kept.made) < PULLER_MAX_AGE);
        let is_wanted = |kept: &KeptPuller| kept.sources == *sources && kept.addresses == addresses;
        let found = self.0.iter().position(is_wanted);
        let kept = match found.and_then(|at| self.0.remove(at)) {
            Some(kept) => kept,
            None => KeptPuller {
                sources: sources.clone(),
                addresses,
                made: now,
                puller: Puller::new(sources.clone(), addresses)?,
            },
        };
        let puller = kept.puller.clone();
        self.0.push_back(kept);
        if self.0.len() > MAX_PULLERS {
            self.0.pop_front();
        }
        Ok(puller)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sources(host: usize) -> Sources {
        Sources {
            insecure: vec![format!("host-{host}")],
            ..Sources::default()
        }
    }

    #[test]
    fn clients_are_kept_by_their_sources_for_some_time() {
        let (mut pullers, start) = (Pullers::default(), Instant::now());
        let mut get = |host, addresses, now| {
            pullers.get(&sources(host), addresses, now).unwrap();
            pullers.0.len()
        };
        assert_eq!(get(0, AddressPolicy::PUBLIC, start), 1);
        assert_eq!(get(0, AddressPolicy::PUBLIC, start), 1);
        assert_eq!(get(0, AddressPolicy::LOCAL, start), 2);
        assert_eq!(get(1, AddressPolicy::PUBLIC, start), 3);
        for host in 2..2 * MAX_PULLERS {
            assert!(get(host, AddressPolicy::PUBLIC, start) <= MAX_PULLERS);
        }
        assert_eq!(get(0, AddressPolicy::PUBLIC, start + PULLER_MAX_AGE), 1);
    }
}
