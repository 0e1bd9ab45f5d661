//! Asking and telling a running control plane, from any task.

use assent_api::parse::Rollback;
use assent_core::PolicyKey;
use assent_grpc::{rollout, status};
use tokio::sync::{mpsc, oneshot, watch};

use crate::view::{ManifestProblem, PolicyObject};

/// A handle to the one event loop. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct Control {
    queries: mpsc::Sender<Query>,
    changes: watch::Receiver<u64>,
}

/// What is asked of the event loop; each has its answer's way back.
#[derive(Debug)]
pub(crate) enum Query {
    /// All policies as objects.
    Objects(oneshot::Sender<Vec<PolicyObject>>),
    /// What is wrong with manifests whose objects are not known.
    Problems(oneshot::Sender<Vec<ManifestProblem>>),
    /// Gauges are to be brought up to date.
    Measure(oneshot::Sender<()>),
    /// The discovery state.
    ClientStatus(status::Query, oneshot::Sender<Option<status::Page>>),
    /// The names of the PolicyServers, in order.
    Servers(oneshot::Sender<Vec<String>>),
    /// Revisions of a policy.
    Revisions(
        PolicyKey,
        oneshot::Sender<Option<Vec<rollout::RevisionRow>>>,
    ),
    /// Go back to an earlier revision.
    Undo(
        PolicyKey,
        Rollback,
        oneshot::Sender<Result<(i64, i64), rollout::Error>>,
    ),
}

/// The control plane is ending.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the control plane is shutting down")]
pub struct Ended;

// === impl Control ===

impl Control {
    pub(crate) fn new(queries: mpsc::Sender<Query>, changes: watch::Receiver<u64>) -> Self {
        Self { queries, changes }
    }

    /// All policies as objects.
    pub async fn objects(&self) -> Result<Vec<PolicyObject>, Ended> {
        self.ask(Query::Objects).await
    }

    /// What is wrong with manifests whose objects are not known.
    pub async fn problems(&self) -> Result<Vec<ManifestProblem>, Ended> {
        self.ask(Query::Problems).await
    }

    /// Told whenever something may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    pub(crate) async fn ask<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<T>) -> Query,
    ) -> Result<T, Ended> {
        let (answer, answered) = oneshot::channel();
        self.queries.send(query(answer)).await.map_err(|_| Ended)?;
        answered.await.map_err(|_| Ended)
    }
}
