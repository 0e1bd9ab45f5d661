//! What the plane is told, and what it asks for.

use std::{sync::Arc, time::Duration};

use crate::{
    fleet::{CountedReplicas, Name, Node},
    policy::{Policy, RevisionId},
    rollout::{self, PolicyId, Refusal, StoredRevisions, Timing},
    session::Report,
    snapshot::Snapshot,
};

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A PolicyServer exists.
    ServerAdded {
        /// The PolicyServer.
        server: Arc<str>,
        /// Whose answers count.
        counted: CountedReplicas,
    },
    /// A PolicyServer no longer exists.
    ServerRemoved(Arc<str>),
    /// The replicas that a PolicyServer must have.
    ReplicasExpected {
        /// The PolicyServer.
        server: Arc<str>,
        /// The names of its replicas.
        replicas: Vec<Name>,
    },
    /// Whether snapshots of a PolicyServer must not be published: a webhook names a revision of
    /// which nothing is known, and replicas would unload it.
    ServerWithheld {
        /// The PolicyServer.
        server: Arc<str>,
        /// Whether nothing is published.
        withheld: bool,
    },
    /// Everything is known that the first snapshots must contain: all objects were read, and
    /// policies without a stored revision were decided. From now on, absence means deletion.
    Synced,
    /// The newest generation of a policy.
    PolicyObserved {
        /// The policy.
        id: PolicyId,
        /// Its PolicyServer.
        server: Arc<str>,
        /// Its generation.
        generation: i64,
        /// The durations that its spec asks for.
        timing: Timing,
        /// Its stored revisions; ignored unless the policy is new to the plane.
        stored: StoredRevisions,
    },
    /// Something else happened to a policy.
    Rollout(PolicyId, rollout::Input),
    /// No webhook calls the policy's revisions, and no evaluator may keep them. If the policy
    /// is observed again, it is new to the plane.
    PolicyForgotten(PolicyId),
    /// A stream or a health check of a replica reported something.
    Stream(StreamEvent),
}

/// What streams and health checks of replicas report, in the order in which it happened on
/// one stream.
#[derive(Clone, Debug)]
pub enum StreamEvent {
    /// An authenticated stream opened.
    Opened {
        /// The replica's description of itself; it names the PolicyServer.
        node: Node,
        /// The identity in the stream's credential.
        identity: String,
        /// The stream's number; a later stream of the same replica has a higher one.
        stream: u64,
    },
    /// A response was sent on the stream, or an answer arrived.
    Reported {
        /// The PolicyServer.
        server: Arc<str>,
        /// The replica.
        replica: Name,
        /// The stream's number.
        stream: u64,
        /// The state of the stream after it.
        report: Report,
    },
    /// The stream ended, or its client no longer reads.
    Closed {
        /// The PolicyServer.
        server: Arc<str>,
        /// The replica.
        replica: Name,
        /// The stream's number.
        stream: u64,
    },
    /// A health check arrived.
    Heartbeat {
        /// The PolicyServer.
        server: Arc<str>,
        /// The replica.
        replica: Name,
    },
    /// A replica counted requests on a retired route since its last health check.
    RetiredRequests {
        /// The PolicyServer.
        server: Arc<str>,
        /// The replica.
        replica: Name,
        /// The route's path, which is the name of its revision.
        path: RevisionId,
        /// The number of requests.
        requests: u64,
    },
}

/// What the caller has to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Give this snapshot to the streams of a PolicyServer.
    Publish {
        /// The PolicyServer.
        server: Arc<str>,
        /// The snapshot.
        snapshot: Arc<Snapshot>,
    },
    /// Do something for a policy.
    Rollout(PolicyId, rollout::Output),
    /// The last replica acknowledged the published snapshot.
    AppliedEverywhere {
        /// The PolicyServer.
        server: Arc<str>,
        /// The time since the snapshot was published.
        took: Duration,
    },
}

// === impl Event ===

impl Event {
    /// A generation that will not be distributed.
    pub fn refused(id: PolicyId, generation: i64, refusal: Refusal) -> Self {
        let input = rollout::Input::Refused {
            generation,
            refusal,
        };
        Event::Rollout(id, input)
    }

    /// A generation that became a revision.
    pub fn ready(id: PolicyId, policy: Arc<Policy>) -> Self {
        Event::Rollout(id, rollout::Input::Ready(policy))
    }
}

impl From<StreamEvent> for Event {
    fn from(event: StreamEvent) -> Self {
        Event::Stream(event)
    }
}
