//! `RolloutService`: lists the revisions of a policy, and rolls back to one of them.

use std::{sync::Arc, time::SystemTime};

use assent_core::PolicyKey;
use assent_proto::v1::{self, rollout_service_server};
use tonic::{Request, Response, Status};

use crate::{
    auth::{Access, Authenticator, Gate},
    hub::Hub,
    to_proto::timestamp,
};

pub use assent_proto::v1::rollout_service_server::RolloutServiceServer;

/// The store of revisions.
#[tonic::async_trait]
pub trait Rollouts: Send + Sync + 'static {
    /// Revisions of a policy, newest first.
    async fn list(&self, policy: &PolicyKey) -> Result<Vec<RevisionRow>, Error>;

    /// Rolls back to a generation; `None` is the one that was active before the active one.
    async fn undo(&self, policy: &PolicyKey, to_generation: Option<i64>) -> Result<Undone, Error>;
}

/// One revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionRow {
    /// `<generation>-<uid8>`.
    pub name: String,
    /// The policy's generation.
    pub generation: i64,
    /// `Candidate`, `Active`, `Draining` or `History`.
    pub phase: String,
    /// The module URL in the policy's spec.
    pub module: String,
    /// `sha256:<hex>`.
    pub module_digest: String,
    /// `sha256:<hex>`.
    pub content_digest: String,
    /// When the revision was stored.
    pub created_at: Option<SystemTime>,
}

/// The result of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The generation whose content was copied.
    pub from_generation: i64,
    /// The new generation that carries its content.
    pub new_generation: i64,
}

/// Why a rollback was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such policy or revision.
    #[error("{0}")]
    NotFound(String),
    /// There is no revision to roll back to, or a rollback is not allowed now.
    #[error("{0}")]
    Refused(String),
    /// The policy was changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The control plane cannot do it now; a retry may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// The service.
#[derive(Clone)]
pub struct Rollout {
    hub: Hub,
    gate: Gate,
    rollouts: Arc<dyn Rollouts>,
}

// === impl Rollout ===

impl Rollout {
    /// Serves `rollouts` to callers known to `authenticator`.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        rollouts: Arc<dyn Rollouts>,
    ) -> RolloutServiceServer<Self> {
        RolloutServiceServer::new(Self {
            hub,
            gate: Gate::new(authenticator),
            rollouts,
        })
    }
}

#[tonic::async_trait]
impl rollout_service_server::RolloutService for Rollout {
    async fn list_revisions(
        &self,
        request: Request<v1::ListRevisionsRequest>,
    ) -> Result<Response<v1::ListRevisionsResponse>, Status> {
        self.hub.check_serving()?;
        self.gate.admit_request(&request, Access::Read).await?;
        let policy = key(&request.get_ref().policy)?;
        let revisions = self.rollouts.list(&policy).await?;
        Ok(Response::new(v1::ListRevisionsResponse {
            revisions: revisions.into_iter().map(RevisionRow::into_proto).collect(),
        }))
    }

    async fn undo(
        &self,
        request: Request<v1::UndoRequest>,
    ) -> Result<Response<v1::UndoResponse>, Status> {
        self.hub.check_serving()?;
        self.gate.admit_request(&request, Access::Write).await?;
        let request = request.into_inner();
        let policy = key(&request.policy)?;
        let to = match request.to_generation {
            0 => None,
            generation if generation > 0 => Some(generation),
            _ => {
                return Err(Status::invalid_argument(
                    "`to_generation` must not be negative",
                ));
            }
        };
        let undone = self.rollouts.undo(&policy, to).await?;
        Ok(Response::new(v1::UndoResponse {
            from_generation: undone.from_generation,
            new_generation: undone.new_generation,
        }))
    }
}

// === impl RevisionRow ===

impl RevisionRow {
    fn into_proto(self) -> v1::RevisionInfo {
        v1::RevisionInfo {
            name: self.name,
            generation: self.generation,
            phase: self.phase,
            module: self.module,
            module_digest: self.module_digest,
            content_digest: self.content_digest,
            created_at: self.created_at.map(timestamp),
        }
    }
}

// === impl Error ===

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound(text) => Status::not_found(text),
            Error::Refused(text) => Status::failed_precondition(text),
            Error::Conflict(text) => Status::aborted(text),
            Error::Unavailable(text) => Status::unavailable(text),
        }
    }
}

fn key(text: &str) -> Result<PolicyKey, Status> {
    PolicyKey::parse(text).ok_or_else(|| {
        Status::invalid_argument("`policy` must be cluster/<name> or namespaced/<namespace>/<name>")
    })
}
