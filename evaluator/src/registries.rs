//! Serves host calls about images: sends requests to registries, and caches the replies.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc},
    time::{Duration, Instant},
};

use assent_core::Digest;
use assent_oci::{Images, SourcesError};
use assent_wasm::{CallError, HostNamespace, HostServices};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, future::Shared};
use tokio::runtime::Handle;

use crate::config::RegistryAccess;

pub(crate) mod cache;
mod question;

use cache::Cache;
use question::Question;

/// Serves host calls about images by tasks of the current runtime. Evaluations must not run
/// on its threads: a guest blocks until it gets the reply.
pub fn host_services(access: RegistryAccess) -> Result<Arc<HostServices>, SourcesError> {
    let registries = Arc::new(Registries::new(access)?);
    let services = HostServices::offline().with_dns().with(registries);
    Ok(Arc::new(services))
}

/// A client of registries for guests on other threads.
pub(crate) struct Registries {
    access: RegistryAccess,
    /// Created at the first request: most policies send none.
    images: OnceLock<Result<Images, String>>,
    runtime: Handle,
    memory: Arc<Mutex<Memory>>,
}

/// Replies, and requests in progress.
#[derive(Default)]
struct Memory {
    cache: Cache,
    pending: HashMap<Digest, Pending>,
}

/// The reply or the error, for the guest.
type Reply = Result<Bytes, Arc<str>>;

/// One request in progress. The same request of another guest waits for the same reply.
type Pending = Shared<BoxFuture<'static, Reply>>;

/// Concurrent requests: each holds manifests of a few KiB.
const MAX_PENDING: usize = 64;

/// The longest timeout of a webhook. A request outlives the evaluation that sent it, so
/// that the next try finds the reply of a slow registry in the cache.
const LONGEST: Duration = Duration::from_secs(30);

// === impl Registries ===

impl Registries {
    /// Runs on the current runtime.
    pub(crate) fn new(access: RegistryAccess) -> Result<Self, SourcesError> {
        let registries = Self {
            runtime: Handle::current(),
            images: OnceLock::new(),
            memory: Arc::default(),
            access,
        };
        // Errors in the configuration are reported at start rather than at the first request.
        if registries.access.is_declared() {
            let images = registries.access.open()?;
            let _ = registries.images.set(Ok(images));
        }
        Ok(registries)
    }

    /// The pending reply; the error is for the guest.
    fn ask(&self, key: Digest, question: Question) -> Result<Pending, String> {
        let images = self.images()?;
        let mut memory = self.memory();
        if let Some(pending) = memory.pending.get(&key) {
            return Ok(pending.clone());
        }
        if memory.pending.len() >= MAX_PENDING {
            return Err("too many concurrent requests to registries".to_owned());
        }
        let task = self.runtime.spawn(answer(images, question));
        let remembered = self.memory.clone();
        let pending = async move {
            let reply = task.await;
            let reply = reply.unwrap_or_else(|_| Err("the evaluator is shutting down".into()));
            remember(&remembered, key, &reply);
            reply
        };
        let pending = pending.boxed().shared();
        memory.pending.insert(key, pending.clone());
        // Drives it to its end even if every guest that waits for it is gone.
        self.runtime.spawn(pending.clone().map(drop));
        Ok(pending)
    }

    fn images(&self) -> Result<Images, String> {
        let open = || self.access.open().map_err(|error| error.to_string());
        self.images.get_or_init(open).clone()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }
}

impl HostNamespace for Registries {
    fn name(&self) -> &'static str {
        "oci"
    }

    fn operations(&self) -> &'static [&'static str] {
        &[
            "v1/verify",
            "v2/verify",
            "v1/manifest_digest",
            "v1/oci_manifest",
            "v1/oci_manifest_config",
        ]
    }

    fn is_external(&self) -> bool {
        true
    }

    fn waits(&self, _: &str, _: &[u8]) -> bool {
        true
    }

    fn call(
        &self,
        operation: &str,
        payload: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let key = key(operation, payload);
        if let Some(known) = self.memory().cache.get(&key, Instant::now()) {
            return Ok(known.to_vec());
        }
        let pending = self.ask(key, Question::read(operation, payload)?)?;
        // Guests run on threads that may block; those of the runtime may not.
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(pending.map(move |reply| {
            let _ = sender.send(reply);
        }));
        match receiver.recv_timeout(within) {
            Ok(reply) => reply
                .map(|bytes| bytes.to_vec())
                .map_err(|why| CallError::Refused(why.to_string())),
            Err(_) => Err("the registry did not answer in time".into()),
        }
    }
}

async fn answer(images: Images, question: Question) -> Reply {
    let reply = tokio::time::timeout(LONGEST, question.answer(&images)).await;
    match reply {
        Ok(Ok(reply)) => Ok(reply.into()),
        Ok(Err(error)) => Err(error.to_string().into()),
        Err(_) => Err("the registry did not answer in time".into()),
    }
}

/// Errors are not cached: an image that has just been signed must be accepted at once.
fn remember(memory: &Mutex<Memory>, key: Digest, reply: &Reply) {
    let mut memory = lock(memory);
    memory.pending.remove(&key);
    if let Ok(reply) = reply {
        memory.cache.put(key, reply.clone(), Instant::now());
    }
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory
        .lock()
        .expect("the memory's lock must not be poisoned")
}

/// Operations contain no NUL.
fn key(operation: &str, payload: &[u8]) -> Digest {
    Digest::of(&[operation.as_bytes(), b"\0", payload].concat())
}
