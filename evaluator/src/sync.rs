//! The discovery client: a loop around a pure state machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use assent_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    active::{ActiveSet, LoadedPolicies},
    client::{Connection, Connector},
    context::stream::Replication,
    evaluation::{HealthEvent, LoadedPolicy, PolicyStates},
    failure::{Failure, Stage},
    metrics::Metrics,
    prepare::{Modules, Preparer},
    readiness::Readiness,
};

pub(crate) mod backoff;
mod health;
pub(crate) mod keep;
pub(crate) mod machine;
pub(crate) mod parts;
mod session;

use backoff::{Backoff, Ended};
use machine::{Input, Machine, Output, Swap};

/// Follows the discovery stream and replaces the set in place.
pub(crate) struct DiscoveryClient {
    pub(crate) connector: Connector,
    pub(crate) node: v1::Node,
    pub(crate) machine: Machine,
    pub(crate) preparer: Preparer,
    pub(crate) active: Arc<ActiveSet>,
    pub(crate) states: PolicyStates,
    pub(crate) context: Arc<Replication>,
    /// Where live reads go; none while there is no stream.
    pub(crate) live: Arc<ArcSwapOption<Connection>>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) metrics: Metrics,
    pub(crate) health: mpsc::Receiver<HealthEvent>,
    pub(crate) health_sender: mpsc::Sender<HealthEvent>,
    /// Sets to keep on disk; only the newest matters.
    pub(crate) keep: watch::Sender<Option<keep::Kept>>,
    pub(crate) resync: Duration,
    /// How long a set from disk waits for its confirmation.
    pub(crate) ready_without: Duration,
    /// The module service of the open stream.
    pub(crate) modules: Option<Modules>,
    /// Loaded revisions; the machine decides which of them are kept.
    pub(crate) loaded: LoadedPolicies,
}

/// How a connection ended, and the leader to connect to next.
pub(crate) struct End {
    ended: Ended,
    leader: Option<String>,
}

/// The metadata key by which a standby names the leader's address.
const LEADER: &str = "assent-leader";

// === impl DiscoveryClient ===

impl DiscoveryClient {
    /// Runs until `stop`. `restored` is the set from disk.
    pub(crate) async fn run(
        mut self,
        restored: Option<crate::store::Restored>,
        stop: CancellationToken,
    ) {
        let mut backoff = Backoff::default();
        let mut leader: Option<String> = None;
        let mut retry_at = None;
        let mut first = self.connect(None).await;
        if let Some(restored) = restored {
            let modules = first
                .as_ref()
                .map(|connection| Modules::new(connection.clone()));
            tokio::select! {
                again = self.restore(restored, modules) => retry_at = again,
                () = stop.cancelled() => return,
            }
        }
        loop {
            let connection = match first.take() {
                Some(connection) => Some(connection),
                None => tokio::select! {
                    connection = self.connect(leader.as_deref()) => connection,
                    () = stop.cancelled() => return,
                },
            };
            let end = match connection {
                None => {
                    if retry_at.is_some_and(|at| at <= Instant::now()) {
                        tokio::select! {
                            again = self.retry_restored() => retry_at = again,
                            () = stop.cancelled() => return,
                        }
                    }
                    End {
                        ended: Ended::Failed,
                        leader: None,
                    }
                }
                Some(connection) => tokio::select! {
                    end = self.session(connection) => end,
                    () = stop.cancelled() => return,
                },
            };
            self.metrics.connected.set(0);
            let wait = if end.leader.is_some() && leader.is_none() {
                // Without back-off, but not all evaluators in the same moment.
                Duration::from_millis(100).mul_f64(rand::random())
            } else {
                backoff.after(end.ended, rand::random())
            };
            // If that leader can't be reached, the configured address is used again.
            leader = end.leader;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn connect(&self, leader: Option<&str>) -> Option<Connection> {
        match self.connector.connect(leader).await {
            Ok(connection) => Some(connection),
            Err(error) => {
                tracing::warn!(%error, "failed to reach the control plane; serving the loaded policies");
                None
            }
        }
    }

    /// Puts the set from disk in place before the stream is opened. Returns when to retry what is missing.
    async fn restore(
        &mut self,
        restored: crate::store::Restored,
        modules: Option<Modules>,
    ) -> Option<Instant> {
        let input = Input::Restored {
            set: restored.set,
            whole: restored.whole,
        };
        let retry_at = self.offline(input, modules).await;
        tracing::info!(
            whole = self.machine.is_whole(),
            "last good set loaded from disk"
        );
        retry_at
    }

    /// Retries what the set from disk lacks, while there is no control plane.
    async fn retry_restored(&mut self) -> Option<Instant> {
        self.offline(Input::RetryDue, None).await
    }

    /// Processes an input without a stream. Returns when to retry.
    async fn offline(&mut self, input: Input, modules: Option<Modules>) -> Option<Instant> {
        let (mut out, mut retry_at) = (Vec::new(), None);
        self.machine.step(input, &mut out);
        let mut complete = false;
        while let Some(output) = pop(&mut out) {
            match output {
                Output::Prepare(policies) => {
                    let (outcomes, timing) = self
                        .preparer
                        .prepare(policies.clone(), modules.clone())
                        .await;
                    let results = self.adopt(&policies, outcomes);
                    self.machine
                        .step(Input::Prepared { results, timing }, &mut out);
                }
                Output::Swap(swap) => {
                    complete = swap.table.active_complete;
                    self.swap(*swap);
                }
                Output::RetryLater { attempt } => {
                    retry_at = Some(Instant::now() + backoff::retry(attempt, rand::random()));
                }
                other => tracing::debug!(?other, "ignored without a stream"),
            }
        }
        if complete {
            let (readiness, wait) = (self.readiness.clone(), self.ready_without);
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                readiness.unconfirmed();
            });
        }
        retry_at
    }

    /// Adds prepared revisions to the loaded ones; the machine only needs to know which.
    fn adopt(
        &mut self,
        policies: &[Arc<assent_core::Policy>],
        outcomes: std::collections::BTreeMap<assent_core::RevisionId, crate::prepare::Outcome>,
    ) -> machine::Results {
        let mut results = machine::Results::new();
        for policy in policies {
            let Some(outcome) = outcomes.get(&policy.revision) else {
                continue;
            };
            // Prepared once, and cached: what waits for objects costs nothing when they come.
            let missing = self.context.data().missing(policy);
            let outcome = match (outcome, missing) {
                (Ok(_), Some(missing)) => &Err(Failure::transient(Stage::Context, missing)),
                (outcome, _) => outcome,
            };
            let result = match outcome {
                Ok(sandbox) => {
                    let events = self.health_sender.clone();
                    let loaded =
                        LoadedPolicy::new(policy.clone(), sandbox.clone(), &self.states, events);
                    self.loaded
                        .insert(policy.revision.to_string(), Arc::new(loaded));
                    Ok(())
                }
                Err(failure) => {
                    tracing::warn!(revision = %policy.revision, stage = failure.stage.as_str(), why = failure.message, "failed to load a revision");
                    Err(failure.clone())
                }
            };
            results.insert(policy.revision.clone(), result);
        }
        results
    }

    /// Puts a set in place; returns how long that took.
    fn swap(&mut self, swap: Swap) -> Duration {
        let began = Instant::now();
        self.loaded
            .retain(|revision, _| swap.table.retained.contains(revision.as_str()));
        self.active.swap(&swap.table, &self.loaded);
        let took = began.elapsed();
        self.preparer.retain(swap.loaded.values());
        self.metrics.swap_seconds.observe(took.as_secs_f64());
        self.metrics
            .loaded_policies
            .set(i64::try_from(swap.loaded.len()).unwrap_or(i64::MAX));
        let version = i64::try_from(swap.table.version.gauge()).unwrap_or(i64::MAX);
        self.metrics.snapshot_version.set(version);
        tracing::info!(version = %swap.table.version, revisions = swap.loaded.len(), whole = swap.whole, "set in place");
        if swap.confirmed {
            self.context.saw(swap.lease_transitions);
            self.readiness.confirmed(swap.table.active_complete);
            self.keep.send_replace(Some(keep::Kept {
                policies: swap.loaded,
                routes: swap.routes,
                whole: swap.whole,
                lease_transitions: swap.lease_transitions,
                modules: self.modules.clone(),
            }));
        }
        took
    }
}

/// The leader that a standby names in its status.
pub(crate) fn leader_of(status: &tonic::Status) -> Option<String> {
    if status.code() != tonic::Code::Unavailable {
        return None;
    }
    let leader = status.metadata().get(LEADER)?.to_str().ok()?;
    (!leader.is_empty()).then(|| leader.to_owned())
}

/// Outputs are processed in order; processing one may add others.
fn pop<T>(list: &mut Vec<T>) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(0))
}
