//! The discovery client: a loop around a pure state machine.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use assent_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    active::Active,
    client::{Connection, Connector},
    metrics::Metrics,
    prepare::{Modules, Preparer},
    readiness::Readiness,
    served::{HealthEvent, Served},
};

pub(crate) mod backoff;
mod health;
pub(crate) mod keep;
pub(crate) mod machine;
pub(crate) mod parts;
mod session;

use backoff::{Backoff, Ended};
use machine::{Input, Machine, Output, Swap};

/// Everything that the loop acts on.
pub(crate) struct Follower {
    pub(crate) connector: Connector,
    pub(crate) node: v1::Node,
    pub(crate) machine: Machine,
    pub(crate) preparer: Preparer,
    pub(crate) active: Arc<Active>,
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
    /// Loaded revisions, by name; the machine says which of them stay.
    pub(crate) served: HashMap<String, Arc<Served>>,
}

/// How a connection ended, and where to go next.
pub(crate) struct End {
    ended: Ended,
    leader: Option<String>,
}

/// The address that a standby gives for the leader.
const LEADER: &str = "assent-leader";

// === impl Follower ===

impl Follower {
    /// Follows the control plane until told to stop. `restored` is the set from disk.
    pub(crate) async fn run(
        mut self,
        restored: Option<crate::store::Restored>,
        stop: CancellationToken,
    ) {
        let mut backoff = Backoff::default();
        let mut leader: Option<String> = None;
        let mut first = self.connect(None).await;
        if let Some(restored) = restored {
            let modules = first
                .as_ref()
                .map(|connection| Modules::new(connection.clone()));
            tokio::select! {
                () = self.restore(restored, modules) => {}
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
                None => End {
                    ended: Ended::Failed,
                    leader: None,
                },
                Some(connection) => tokio::select! {
                    end = self.session(connection) => end,
                    () = stop.cancelled() => return,
                },
            };
            self.metrics.connected.set(0);
            let wait = if end.leader.is_some() && leader.is_none() {
                // Directly, but not everybody in the same moment.
                Duration::from_millis(100).mul_f64(rand::random())
            } else {
                backoff.after(end.ended, rand::random())
            };
            // A leader that did not work out is asked for again at the known address.
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
                tracing::warn!(%error, "control plane not reached; serving on with what is loaded");
                None
            }
        }
    }

    /// Puts the set from disk in place before anything is asked for.
    async fn restore(&mut self, restored: crate::store::Restored, modules: Option<Modules>) {
        let mut out = Vec::new();
        let input = Input::Restored {
            set: restored.set,
            whole: restored.whole,
        };
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
                    complete = swap.layout.active_complete;
                    self.swap(*swap);
                }
                other => tracing::debug!(?other, "not done without a stream"),
            }
        }
        tracing::info!(
            whole = self.machine.is_whole(),
            "last good set loaded from disk"
        );
        if complete {
            let (readiness, wait) = (self.readiness.clone(), self.ready_without);
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                readiness.unconfirmed();
            });
        }
    }

    /// Makes prepared sandboxes into served revisions; the machine only needs to know which.
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
            let result = match outcome {
                Ok(sandbox) => {
                    let gate = self.active.gate(policy.policy.as_str());
                    let metrics = self.metrics.of(policy);
                    let events = self.health_sender.clone();
                    let served =
                        Served::new(policy.clone(), sandbox.clone(), gate, metrics, events);
                    self.served
                        .insert(policy.revision.to_string(), Arc::new(served));
                    Ok(())
                }
                Err(failure) => {
                    tracing::warn!(revision = %policy.revision, stage = failure.stage.name(), why = failure.message, "revision not loaded");
                    Err(failure.clone())
                }
            };
            results.insert(policy.revision.clone(), result);
        }
        results
    }

    /// Puts a set in place; gives the time that took.
    fn swap(&mut self, swap: Swap) -> Duration {
        let began = Instant::now();
        self.served
            .retain(|revision, _| swap.layout.stay.contains(revision.as_str()));
        self.active.swap(&swap.layout, &self.served);
        let took = began.elapsed();
        self.preparer.retain(swap.loaded.values());
        self.metrics.swap_seconds.observe(took.as_secs_f64());
        self.metrics
            .loaded_policies
            .set(i64::try_from(swap.loaded.len()).unwrap_or(i64::MAX));
        let version = i64::try_from(swap.layout.version.gauge()).unwrap_or(i64::MAX);
        self.metrics.snapshot_version.set(version);
        tracing::info!(version = %swap.layout.version, revisions = swap.loaded.len(), whole = swap.whole, "set in place");
        if swap.confirmed {
            self.readiness.confirmed(swap.layout.active_complete);
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

/// Whom a standby says to ask instead.
pub(crate) fn leader_of(status: &tonic::Status) -> Option<String> {
    if status.code() != tonic::Code::Unavailable {
        return None;
    }
    let leader = status.metadata().get(LEADER)?.to_str().ok()?;
    (!leader.is_empty()).then(|| leader.to_owned())
}

/// Outputs are done in their order, and may bring new ones.
fn pop<T>(list: &mut Vec<T>) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(0))
}
