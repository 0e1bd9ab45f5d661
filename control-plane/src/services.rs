//! What the gRPC services are backed by: the event loop and the module store.

use std::sync::Arc;

use assent_api::parse::Rollback;
use assent_core::{Digest, PolicyKey};
use assent_grpc::{
    Authenticator, Discovery, Hub, Services,
    certificate::{Certificates, Signer},
    context::{Context, LiveReads},
    csds::Csds,
    modules::{Artefact, ModuleBytes, ModuleSource, ModuleStat, Modules},
    rollout::{self, RevisionRow, Rollout, Rollouts, Undone},
    status::{ClientStatus, Page, Query as StatusQuery, StatusSource, Unavailable},
};
use assent_modules::store::Store;
use async_trait::async_trait;
use tokio::sync::watch;
use tracing::error;

use crate::control::{Control, Query};

/// Everything that services are made of.
pub(crate) struct Sources {
    pub(crate) hub: Hub,
    pub(crate) control: Control,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) signer: Arc<dyn Signer>,
    pub(crate) reads: Arc<dyn LiveReads>,
}

/// The module store as a source.
pub(crate) struct Blobs(pub(crate) Store);

// === impl Sources ===

impl Sources {
    /// All services, open to those whom the authenticator knows.
    pub(crate) fn services(&self, authenticator: Arc<dyn Authenticator>) -> Services {
        let (hub, auth) = (&self.hub, &authenticator);
        let control = Arc::new(self.control.clone());
        Services::new(Discovery::new(hub.clone(), auth.clone()))
            .with(Modules::new(hub.clone(), auth.clone(), self.blobs.clone()))
            .with(ClientStatus::new(
                hub.clone(),
                auth.clone(),
                control.clone(),
            ))
            .with(Csds::new(hub.clone(), auth.clone(), control.clone()))
            .with(Rollout::new(hub.clone(), auth.clone(), control))
            .with(Context::new(hub.clone(), auth.clone(), self.reads.clone()))
            .with(Certificates::new(
                hub.clone(),
                auth.clone(),
                self.signer.clone(),
            ))
    }
}

// === impl Blobs ===

#[async_trait]
impl ModuleSource for Blobs {
    async fn stat(&self, digests: &[Digest], engine: &str) -> Vec<ModuleStat> {
        let mut stats = Vec::with_capacity(digests.len());
        for digest in digests {
            let size = known(self.0.stat(*digest).await);
            let artefact = match engine {
                "" => None,
                engine => known(self.0.stat_artefact(engine, *digest).await),
            };
            stats.push(ModuleStat {
                size,
                artefact: artefact.map(|a| Artefact {
                    digest: a.digest,
                    size: a.size,
                }),
            });
        }
        stats
    }

    async fn open(&self, digest: Digest, engine: &str) -> Option<ModuleBytes> {
        if engine.is_empty() {
            let bytes = known(self.0.get(digest).await)?;
            return Some(ModuleBytes { bytes, digest });
        }
        let bytes = known(self.0.get_artefact(engine, digest).await)?;
        let stat = known(self.0.stat_artefact(engine, digest).await)?;
        Some(ModuleBytes {
            bytes,
            digest: stat.digest,
        })
    }
}

// === impl Control ===

#[async_trait]
impl StatusSource for Control {
    async fn client_status(&self, query: StatusQuery) -> Result<Option<Page>, Unavailable> {
        let asked = self.ask(|answer| Query::ClientStatus(query, answer)).await;
        asked.map_err(|ended| Unavailable(ended.to_string()))
    }

    async fn servers(&self) -> Result<Vec<String>, Unavailable> {
        let asked = self.ask(Query::Servers).await;
        asked.map_err(|ended| Unavailable(ended.to_string()))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        Control::changes(self)
    }
}

#[async_trait]
impl Rollouts for Control {
    async fn list(&self, policy: &PolicyKey) -> Result<Vec<RevisionRow>, rollout::Error> {
        let key = policy.clone();
        let asked = self.ask(|answer| Query::Revisions(key, answer)).await;
        let rows = asked.map_err(|e| rollout::Error::Unavailable(e.to_string()))?;
        rows.ok_or_else(|| rollout::Error::NotFound(format!("there is no policy {policy}")))
    }

    async fn undo(&self, policy: &PolicyKey, to: Option<i64>) -> Result<Undone, rollout::Error> {
        let to = to.map_or(Rollback::Previous, Rollback::Generation);
        let key = policy.clone();
        let asked = self.ask(|answer| Query::Undo(key, to, answer)).await;
        let done = asked.map_err(|e| rollout::Error::Unavailable(e.to_string()))?;
        let (from_generation, new_generation) = done?;
        Ok(Undone {
            from_generation,
            new_generation,
        })
    }
}

/// A failing disk is told, and looks like a missing module to whoever asked: they try
/// again.
fn known<T, E: std::fmt::Display>(result: Result<Option<T>, E>) -> Option<T> {
    result.unwrap_or_else(|e| {
        error!("failed to read from the module store: {e}");
        None
    })
}
