//! `ModuleService`: modules by digest, in chunks.

use std::sync::Arc;

use assent_core::Digest;
use assent_proto::v1::{self, module_service_server::ModuleService};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::{
    auth::{Access, Authenticator, Gate, Principal},
    hub::Hub,
};

pub use assent_proto::v1::module_service_server::ModuleServiceServer;

/// Largest chunk: small enough to share a connection, large enough to cost nothing.
const CHUNK_BYTES: usize = 256 << 10;

/// Digests that one call may ask for.
const MAX_DIGESTS: usize = 1_000;

/// Where modules come from.
#[tonic::async_trait]
pub trait ModuleSource: Send + Sync + 'static {
    /// What there is of `digests`, in their order. `engine` is empty if only portable
    /// modules are asked for.
    async fn stat(&self, digests: &[Digest], engine: &str) -> Vec<ModuleStat>;

    /// The portable module, or with `engine` the artefact for it; none if there is no such
    /// thing.
    async fn open(&self, digest: Digest, engine: &str) -> Option<ModuleBytes>;
}

/// What there is of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleStat {
    /// Size of the portable module; none if there is no such module.
    pub size: Option<u64>,
    /// The artefact for the asked engine.
    pub artefact: Option<Artefact>,
}

/// A compiled module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artefact {
    /// Of the artefact itself.
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
}

/// A module or artefact in memory, shared by all who fetch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleBytes {
    /// All of it.
    pub bytes: Bytes,
    /// Of `bytes`.
    pub digest: Digest,
}

/// The service.
#[derive(Clone)]
pub struct Modules {
    hub: Hub,
    gate: Gate,
    source: Arc<dyn ModuleSource>,
}

// === impl Modules ===

impl Modules {
    /// Serves what `source` has to callers known to `authenticator`.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        source: Arc<dyn ModuleSource>,
    ) -> ModuleServiceServer<Self> {
        ModuleServiceServer::new(Self {
            hub,
            gate: Gate::new(authenticator),
            source,
        })
    }

    /// Whether the caller may have the module. A replica of one PolicyServer gets what is
    /// published for that server: modules of other tenants may contain their secrets, and
    /// their digests are no secret.
    fn is_published(&self, caller: &Principal, digest: &Digest) -> bool {
        let server = caller.server();
        server.is_none_or(|server| self.hub.names_module(server, digest))
    }
}

#[tonic::async_trait]
impl ModuleService for Modules {
    async fn stat_modules(
        &self,
        request: Request<v1::StatModulesRequest>,
    ) -> Result<Response<v1::StatModulesResponse>, Status> {
        let caller = self.gate.admit_request(&request, Access::Replica).await?;
        let request = request.into_inner();
        if request.digests.len() > MAX_DIGESTS {
            let text = format!("`digests` has more than {MAX_DIGESTS} entries: ask in turns");
            return Err(Status::invalid_argument(text));
        }
        let digests = request.digests.iter().map(|text| digest(text));
        let digests: Vec<Digest> = digests.collect::<Result<_, _>>()?;
        let stats = self.source.stat(&digests, &request.engine).await;
        let modules = digests.iter().zip(stats).map(|(digest, stat)| {
            // What belongs to others looks like what does not exist.
            let stat = match self.is_published(&caller.principal, digest) {
                true => stat,
                false => ModuleStat::default(),
            };
            stat.to_proto(*digest, &request.engine)
        });
        Ok(Response::new(v1::StatModulesResponse {
            modules: modules.collect(),
        }))
    }

    type FetchModuleStream = BoxStream<'static, Result<v1::ModuleChunk, Status>>;

    async fn fetch_module(
        &self,
        request: Request<v1::FetchModuleRequest>,
    ) -> Result<Response<Self::FetchModuleStream>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Replica).await?;
        let request = request.into_inner();
        let digest = digest(&request.digest)?;
        if !self.is_published(&caller.principal, &digest) {
            return Err(not_found(digest, &request.engine));
        }
        let module = self.source.open(digest, &request.engine).await;
        let module = module.ok_or_else(|| not_found(digest, &request.engine))?;
        let chunks = chunks(module, request.offset)?;
        Ok(Response::new(stream::iter(chunks.map(Ok)).boxed()))
    }
}

// === impl ModuleStat ===

impl ModuleStat {
    fn to_proto(&self, digest: Digest, engine: &str) -> v1::ModuleStat {
        v1::ModuleStat {
            digest: digest.to_string(),
            present: self.size.is_some(),
            size: self.size.unwrap_or_default(),
            artefact: self.artefact.map(|artefact| v1::ModuleArtefact {
                engine: engine.to_owned(),
                digest: artefact.digest.to_string(),
                size: artefact.size,
            }),
        }
    }
}

fn digest(text: &str) -> Result<Digest, Status> {
    let digest = text.parse::<Digest>();
    digest.map_err(|error| Status::invalid_argument(format!("`digest`: {error}")))
}

fn not_found(digest: Digest, engine: &str) -> Status {
    if engine.is_empty() {
        return Status::not_found(format!("there is no module {digest}"));
    }
    Status::not_found(format!(
        "there is no artefact of module {digest} for this engine: fetch the portable module"
    ))
}

/// Slices of the module from `offset` on, none of them copied; one empty chunk at its end.
fn chunks(
    module: ModuleBytes,
    offset: u64,
) -> Result<impl Iterator<Item = v1::ModuleChunk> + Send + 'static, Status> {
    let ModuleBytes { bytes, digest } = module;
    let total = bytes.len();
    let start = usize::try_from(offset).ok().filter(|start| *start <= total);
    let start = start.ok_or_else(|| {
        Status::out_of_range(format!(
            "offset {offset} is beyond the size of {total} bytes"
        ))
    })?;
    let digest = digest.to_string();
    let rest = bytes.slice(start..);
    let count = rest.len().div_ceil(CHUNK_BYTES).max(1);
    Ok((0..count).map(move |n| {
        let from = n * CHUNK_BYTES;
        let to = rest.len().min(from + CHUNK_BYTES);
        v1::ModuleChunk {
            data: rest.slice(from..to),
            offset: (start + from) as u64,
            total_size: total as u64,
            digest: digest.clone(),
        }
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_chunks(size: usize, offset: u64) -> Result<Vec<v1::ModuleChunk>, Status> {
        let bytes = Bytes::from(vec![7; size]);
        let digest = Digest::of(&bytes);
        chunks(ModuleBytes { bytes, digest }, offset).map(Iterator::collect)
    }

    #[test]
    fn modules_come_in_slices() {
        let list = mk_chunks(CHUNK_BYTES + 1, 0).unwrap();
        let sizes: Vec<_> = list.iter().map(|c| (c.offset, c.data.len())).collect();
        assert_eq!(sizes, [(0, CHUNK_BYTES), (CHUNK_BYTES as u64, 1)]);
        assert_eq!(mk_chunks(10, 4).unwrap()[0].data.len(), 6);
    }

    #[test]
    fn an_offset_at_the_end_gets_one_empty_chunk() {
        let list = mk_chunks(10, 10).unwrap();
        assert_eq!((list.len(), list[0].data.len(), list[0].offset), (1, 0, 10));
        assert_eq!(mk_chunks(0, 0).unwrap().len(), 1);
        assert_eq!(
            mk_chunks(10, 11).unwrap_err().code(),
            tonic::Code::OutOfRange
        );
    }
}
