//! Fetches modules by digest: broken transfers are resumed, and the result is used only if its hash matches.

use std::{collections::HashMap, sync::Arc, time::Duration};

use assent_core::Digest;
use assent_proto::v1::{
    FetchModuleRequest, ModuleChunk, StatModulesRequest, module_service_client::ModuleServiceClient,
};
use bytes::Bytes;
use tonic::{Code as Grpc, Status};

use crate::{
    client::Connection,
    failure::{Failure, Stage},
    store::Store,
};

/// The module service of the control plane that this evaluator is connected to.
#[derive(Clone)]
pub(crate) struct Modules {
    client: ModuleServiceClient<Connection>,
}

/// Bytes with the right hash.
#[derive(Clone)]
pub(crate) enum Code {
    Portable(Bytes),
    /// Compiled for this engine, with the digest that the control plane gave.
    Artefact(Bytes, Digest),
}

pub(crate) type Fetched = Result<Code, Failure>;

/// An artefact that the control plane offers for this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Artefact {
    digest: Digest,
    size: u64,
}

/// One transfer.
struct Transfer<'a> {
    /// Of the portable module: it names both forms.
    module: Digest,
    /// Of the bytes.
    digest: Digest,
    engine: &'a str,
    largest: u64,
}

/// Digests per call; the protocol's bound.
const STATS: usize = 1_000;

/// A control plane that sends nothing for this long will not: the response must be answered.
const IDLE: Duration = Duration::from_secs(10);

/// Broken transfers in a row without a byte of progress before it is a failure.
const BREAKS: u32 = 3;

/// Compiled code is some four times its module.
const LARGEST_ARTEFACT: u64 = 4 * assent_wasm::MAX_MODULE_BYTES as u64;

/// The artefact if there is one, else the portable module, from disk if possible.
pub(crate) async fn obtain(
    module: Digest,
    artefact: Option<Artefact>,
    engine: &str,
    from: Option<Modules>,
    store: Option<Arc<Store>>,
) -> Fetched {
    if let (Some(artefact), Some(modules)) = (artefact, &from) {
        match modules.artefact(module, artefact, engine).await {
            Ok(bytes) => return Ok(Code::Artefact(bytes, artefact.digest)),
            Err(failure) => {
                tracing::warn!(%module, why = failure.message, "failed to fetch an artefact; falling back to the portable module")
            }
        }
    }
    if let Some(store) = store.clone() {
        let kept = tokio::task::spawn_blocking(move || store.module(&module)).await;
        if let Ok(Some(bytes)) = kept {
            return Ok(Code::Portable(bytes.into()));
        }
    }
    match from {
        Some(modules) => {
            let bytes = modules.portable(module).await?;
            if let Some(store) = store {
                keep(store, module, bytes.clone()).await;
            }
            Ok(Code::Portable(bytes))
        }
        None => Err(Failure::transient(
            Stage::Fetch,
            format!("the module {module} is not on disk, and no control plane is connected"),
        )),
    }
}

/// A module that can't be saved is used nevertheless.
pub(crate) async fn keep(store: Arc<Store>, module: Digest, bytes: Bytes) -> bool {
    let kept = tokio::task::spawn_blocking(move || store.keep_module(&module, &bytes)).await;
    match kept {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%module, %error, "failed to save a module to disk");
            false
        }
        Err(_) => false,
    }
}

// === impl Modules ===

impl Modules {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            client: ModuleServiceClient::new(connection),
        }
    }

    /// Artefacts for this engine. A missing one is not a failure: the portable module can be used.
    pub(crate) async fn artefacts(
        &self,
        digests: &[Digest],
        engine: &str,
    ) -> HashMap<Digest, Artefact> {
        let mut found = HashMap::new();
        for some in digests.chunks(STATS) {
            let request = StatModulesRequest {
                digests: some.iter().map(ToString::to_string).collect(),
                engine: engine.to_owned(),
            };
            let mut client = self.client.clone();
            let answer = tokio::time::timeout(IDLE, client.stat_modules(request)).await;
            let Ok(Ok(answer)) = answer else {
                return found;
            };
            for stat in answer.into_inner().modules {
                let artefact = stat.artefact.filter(|artefact| artefact.engine == engine);
                let digest = artefact.as_ref().and_then(|a| a.digest.parse().ok());
                if let (Ok(module), Some(artefact), Some(digest)) =
                    (stat.digest.parse(), artefact, digest)
                {
                    let size = artefact.size;
                    found.insert(module, Artefact { digest, size });
                }
            }
        }
        found
    }

    /// The portable module.
    pub(crate) async fn portable(&self, module: Digest) -> Result<Bytes, Failure> {
        let wanted = Transfer {
            module,
            digest: module,
            engine: "",
            largest: assent_wasm::MAX_MODULE_BYTES as u64,
        };
        self.transfer(&wanted).await
    }

    async fn artefact(
        &self,
        module: Digest,
        artefact: Artefact,
        engine: &str,
    ) -> Result<Bytes, Failure> {
        let wanted = Transfer {
            module,
            digest: artefact.digest,
            engine,
            largest: artefact.size.min(LARGEST_ARTEFACT),
        };
        self.transfer(&wanted).await
    }

    async fn transfer(&self, wanted: &Transfer<'_>) -> Result<Bytes, Failure> {
        let mut bytes = Vec::new();
        let mut breaks = 0;
        loop {
            let before = bytes.len();
            match self.stream(wanted, &mut bytes).await {
                Ok(()) => break,
                Err(status) if is_permanent(&status) => return Err(wanted.failure(&status)),
                Err(status) => {
                    breaks = if bytes.len() > before { 0 } else { breaks + 1 };
                    if breaks >= BREAKS {
                        return Err(wanted.failure(&status));
                    }
                }
            }
        }
        wanted.verify(bytes.into())
    }

    /// Resumes after the bytes that were received; succeeds when all have arrived.
    async fn stream(&self, wanted: &Transfer<'_>, bytes: &mut Vec<u8>) -> Result<(), Status> {
        let request = FetchModuleRequest {
            digest: wanted.module.to_string(),
            offset: bytes.len() as u64,
            engine: wanted.engine.to_owned(),
        };
        let mut client = self.client.clone();
        let mut chunks = idle(client.fetch_module(request)).await?.into_inner();
        while let Some(chunk) = idle(chunks.message()).await? {
            wanted.accept(&chunk, bytes)?;
            if bytes.len() as u64 == chunk.total_size {
                return Ok(());
            }
        }
        Err(Status::data_loss("the transfer ended early"))
    }
}

// === impl Transfer ===

impl Transfer<'_> {
    fn accept(&self, chunk: &ModuleChunk, bytes: &mut Vec<u8>) -> Result<(), Status> {
        let largest = self.largest;
        if chunk.total_size > largest {
            let size = chunk.total_size;
            return Err(Status::out_of_range(format!(
                "it has {size} bytes, more than {largest}"
            )));
        }
        if chunk.digest != self.digest.to_string() {
            return Err(Status::failed_precondition(format!(
                "received {} instead",
                chunk.digest
            )));
        }
        let end = bytes.len() as u64 + chunk.data.len() as u64;
        if chunk.offset != bytes.len() as u64 || end > chunk.total_size {
            return Err(Status::data_loss("a chunk arrived out of order"));
        }
        bytes.extend_from_slice(&chunk.data);
        Ok(())
    }

    fn verify(&self, bytes: Bytes) -> Result<Bytes, Failure> {
        let found = Digest::of(&bytes);
        if found == self.digest {
            return Ok(bytes);
        }
        let why = format!(
            "failed to verify the module: asked for {}, got {found}",
            self.digest
        );
        Err(Failure::transient(Stage::Verify, why))
    }

    fn failure(&self, status: &Status) -> Failure {
        let why = format!(
            "failed to fetch the module {}: {}",
            self.digest,
            status.message()
        );
        Failure::transient(Stage::Fetch, why)
    }
}

/// Whether an immediate retry can't help.
fn is_permanent(status: &Status) -> bool {
    matches!(
        status.code(),
        Grpc::NotFound
            | Grpc::InvalidArgument
            | Grpc::OutOfRange
            | Grpc::FailedPrecondition
            | Grpc::PermissionDenied
            | Grpc::Unauthenticated
            | Grpc::Unimplemented
    )
}

async fn idle<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let silent = |_| Status::deadline_exceeded("the control plane sends nothing");
    tokio::time::timeout(IDLE, call).await.map_err(silent)?
}
