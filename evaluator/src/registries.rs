//! Answers what policies ask about images: goes to registries, and remembers for a while.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc},
    time::{Duration, Instant},
};

use assent_core::Digest;
use assent_modules::pull::{Images, SourcesError};
use assent_wasm::HostServices;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, future::Shared};
use tokio::runtime::Handle;

use crate::config::RegistryAccess;

mod cache;
mod question;

use cache::Cache;
use question::Question;

/// Answers to host calls about images, as an evaluator gives them, by tasks of the current
/// runtime. Its threads must not be those that evaluate: a guest waits for the answer.
pub fn host_services(access: RegistryAccess) -> Result<Arc<dyn HostServices>, SourcesError> {
    Ok(Arc::new(Registries::new(access)?))
}

/// The registries, for guests on other threads.
pub(crate) struct Registries {
    access: RegistryAccess,
    /// Made at the first question: most policies ask none.
    images: OnceLock<Result<Images, String>>,
    runtime: Handle,
    memory: Arc<Mutex<Memory>>,
}

/// What is known, and what is being asked.
#[derive(Default)]
struct Memory {
    cache: Cache,
    pending: HashMap<Digest, Pending>,
}

/// For the guest, whichever it is.
type Reply = Result<Bytes, Arc<str>>;

/// One question under way. Whoever asks the same meanwhile waits for the same answer.
type Pending = Shared<BoxFuture<'static, Reply>>;

/// Questions under way at once: each holds a connection, and manifests of a few KiB.
const MAX_PENDING: usize = 64;

/// As long as a webhook may take. A question outlives the evaluation that asked it: the
/// answer of a slow registry is there for the next try.
const LONGEST: Duration = Duration::from_secs(30);

// === impl Registries ===

impl Registries {
    /// Answers on the current runtime.
    pub(crate) fn new(access: RegistryAccess) -> Result<Self, SourcesError> {
        let registries = Self {
            runtime: Handle::current(),
            images: OnceLock::new(),
            memory: Arc::default(),
            access,
        };
        // What somebody declared is checked while somebody looks.
        if registries.access.is_declared() {
            let images = registries.access.open()?;
            let _ = registries.images.set(Ok(images));
        }
        Ok(registries)
    }

    /// The answer to come; the error is for the guest.
    fn ask(&self, key: Digest, question: Question) -> Result<Pending, String> {
        let images = self.images()?;
        let mut memory = self.memory();
        if let Some(pending) = memory.pending.get(&key) {
            return Ok(pending.clone());
        }
        if memory.pending.len() >= MAX_PENDING {
            return Err("too many questions to registries at once".to_owned());
        }
        let task = self.runtime.spawn(answer(images, question));
        let remembered = self.memory.clone();
        let pending = async move {
            let reply = task.await;
            let reply = reply.unwrap_or_else(|_| Err("the evaluator is ending".into()));
            remember(&remembered, key, &reply);
            reply
        };
        let pending = pending.boxed().shared();
        memory.pending.insert(key, pending.clone());
        // Somebody must drive it to its end when all who asked have gone.
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

impl HostServices for Registries {
    fn oci(&self, operation: &str, payload: &[u8], within: Duration) -> Result<Vec<u8>, String> {
        let key = key(operation, payload);
        if let Some(known) = self.memory().cache.get(&key, Instant::now()) {
            return Ok(known.to_vec());
        }
        let pending = self.ask(key, Question::read(operation, payload)?)?;
        // Guests run on threads that may block, the runtime's own may not.
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(pending.map(move |reply| {
            let _ = sender.send(reply);
        }));
        match receiver.recv_timeout(within) {
            Ok(reply) => reply
                .map(|bytes| bytes.to_vec())
                .map_err(|why| why.to_string()),
            Err(_) => Err("the registry did not answer in time".to_owned()),
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

/// Only good answers are kept: whoever signs an image wants it taken at once.
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

/// Operations hold no NUL.
fn key(operation: &str, payload: &[u8]) -> Digest {
    Digest::of(&[operation.as_bytes(), b"\0", payload].concat())
}
