//! What the controller asks for, and what became of it, as plain values.

use std::{sync::Arc, time::Duration};

use assent_api::{
    ParsedServer, PolicyRevisionSpec, PolicyStatus,
    parse::Module,
    revision::Phase,
    server::PolicyServerStatus,
    settings::{SecretSettings, SettingsSource},
};
use assent_core::{
    Digest, Policy, PolicyKey, RevisionId, Snapshot,
    policy::Limits,
    rollout::{PolicyId, Refusal, RefusalReason},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Map, Value};

use crate::{
    backend::Backend,
    contexts::{Assignment, FollowedCollection, KindRef},
    objects::{Change, Kind, Meta, Object, ObjectRef, RouteObject},
};

/// Something to perform, in this order. Actions that can fail or take time report an [`Outcome`].
#[derive(Debug)]
pub enum Action<B: Backend> {
    // === modules
    /// Fetch and vet a module.
    Vet(Box<VetJob>),
    /// Stop vetting for this policy: its result is no longer needed.
    CancelVet(PolicyId),
    /// Fetch a module that a stored revision names and the module store lacks.
    FetchModule(Box<FetchModule>),
    /// Check the signature of a module that is distributed. Retried until there is a result.
    VerifySignature(Box<VerifySignature>),
    /// Read the Secrets that the settings of an accepted generation come from again.
    CheckSettings(Box<CheckSettings>),

    // === revisions
    /// Store a revision, if the backend would accept the route to it.
    StoreRevision(Box<StoreRevision<B>>),
    /// Store a revision again that is being served and whose object is missing or damaged.
    RestoreRevision(Box<RestoreRevision>),
    /// Record the phase of a revision for readers; the route decides what is active.
    SetPhase(PolicyId, RevisionId, Phase),
    /// Store a revision as history (`keep`), or delete one that never was active.
    RetireRevision {
        /// The policy.
        id: PolicyId,
        /// The revision.
        revision: RevisionId,
        /// Whether it was active and can be rolled back to.
        keep: bool,
    },
    /// Delete history beyond what the policy keeps, by namespace and name.
    DeleteRevisions(PolicyId, Vec<(String, String)>),

    // === routes
    /// Read the server's replicas again: the last check before a flip.
    CheckReplicas {
        /// The policy to flip.
        id: PolicyId,
        /// The revision to flip to.
        to: Arc<Policy>,
        /// Its server.
        server: String,
    },
    /// Point the policy's route at a revision.
    Flip(PolicyId, RevisionId, Box<RouteUpdate<B>>),
    /// Restore a route that was edited or removed by somebody else.
    RepairRoute(PolicyId, Box<RouteUpdate<B>>),
    /// Remove the routes of a deleted policy.
    RemoveRoutes(PolicyId, Vec<RouteObject<B::Existing>>),
    /// Remove the routes of all policies of a server that is being deleted.
    RemoveServerRoutes(String, Vec<RouteObject<B::Existing>>),
    /// Remove routes that no policy owns.
    RemoveOrphans(Vec<RouteObject<B::Existing>>),

    // === policies and servers
    /// Add or remove the finalizer of a policy, PolicyServer or revision.
    SetFinalizer(Kind, Meta, bool),
    /// Write an earlier spec into a policy, and remove the annotation that asked for it.
    RollBack {
        /// The policy.
        key: PolicyKey,
        /// Its object.
        meta: Meta,
        /// What to write, or why the rollback is rejected.
        target: Result<RollbackTarget, String>,
    },
    /// Write `spec.settingsVersion`, which makes a new generation: a value of a Secret changed. If
    /// it fails, the next check asks for it again.
    TakeSettings {
        /// The kind of the policy.
        kind: Kind,
        /// Its object, in the state that was decided on.
        meta: Meta,
        /// What to write.
        version: String,
    },
    /// Answer a request for a rollback.
    AnswerRollback(u64, Result<(i64, i64), RollbackError>),
    /// Write a status; `None` withdraws a status that was not written yet.
    WriteStatus(StatusTarget, Option<StatusUpdate>),
    /// Record an event about a policy.
    RecordEvent(Box<PolicyEvent>),
    /// Delete a pod of a StatefulSet whose evaluator is missing or outdated.
    DeletePod(Meta),
    /// Apply everything that a server needs.
    ApplyServer(String, Box<B::Workload>),
    /// Delete what was made for a server, then remove its finalizer.
    DeleteServer(Meta),

    // === streams
    /// Accept streams for a server.
    AddServer(String),
    /// End the streams of a server.
    RemoveServer(String),
    /// Look up these kinds, and report when one of them changes. They replace the earlier ones.
    FollowKinds(Vec<KindRef>),
    /// Follow these collections, and report their states. They replace the earlier ones.
    FollowCollections(Vec<FollowedCollection>),
    /// Send these collections to the evaluators of a server.
    AssignCollections(Box<Assignment>),
    /// Publish a snapshot. Everything that precedes it must be durable first.
    Publish(Arc<str>, Arc<Snapshot>),
    /// All objects were read: from now on an empty set means "no policies".
    SetSynced,

    // === metrics
    /// Count or observe something.
    Measure(Measurement),
}

/// What became of an action.
#[derive(Debug)]
pub enum Outcome<B: Backend> {
    /// Vetting ended.
    Vetted {
        /// The policy.
        id: PolicyId,
        /// The generation that was vetted.
        generation: i64,
        /// The module, or why it is rejected.
        result: Result<Module, Failure>,
    },
    /// The signature of a distributed module was checked.
    SignatureChecked {
        /// The policy.
        id: PolicyId,
        /// The revision whose module it is.
        revision: RevisionId,
        /// The keys that it was checked with.
        keys: Vec<String>,
        /// Why none of them counts.
        result: Result<(), String>,
    },
    /// The Secrets of a policy were read again.
    SettingsChecked {
        /// The policy.
        id: PolicyId,
        /// The generation that was checked.
        generation: i64,
        /// The version of the settings with the present values, or why there is none.
        result: Result<String, String>,
    },
    /// A revision is stored as a candidate; the object is as stored.
    Stored(PolicyId, Arc<Policy>, Box<Object<B::Existing>>),
    /// A revision of this generation could not be stored.
    NotStored(PolicyId, i64, Failure),
    /// A revision is stored again; nothing if that failed.
    Restored(PolicyId, RevisionId, Option<Box<Object<B::Existing>>>),
    /// A phase is recorded; the object is as stored, if it still exists.
    PhaseSet(PolicyId, RevisionId, Option<Box<Object<B::Existing>>>),
    /// The server's replicas, read again for a flip.
    ReplicasChecked(PolicyId, Arc<Policy>, Vec<Object<B::Existing>>),
    /// The route names this revision.
    Flipped(PolicyId, RevisionId, Vec<Change<B::Existing>>),
    /// The route could not be written.
    FlipFailed(PolicyId, RevisionId, FlipError),
    /// A repair was written; nothing if it failed.
    Repaired(PolicyId, Vec<Change<B::Existing>>),
    /// A revision is history, or deleted.
    Retired(PolicyId, RevisionId),
    /// Old revisions were deleted, or will be another time.
    RevisionsDeleted(PolicyId, Vec<(String, String)>),
    /// The routes of a deleted policy are gone.
    RoutesRemoved(PolicyId, Vec<ObjectRef>),
    /// The routes of a deleted server's policies are gone.
    ServerRoutesRemoved(String, Vec<ObjectRef>),
    /// Routes that no policy owned are gone.
    OrphansRemoved(Vec<ObjectRef>),
    /// A server's objects were applied, or what went wrong.
    ServerApplied(String, Result<(), String>),
    /// A policy has the spec of an earlier generation: that generation and the object as
    /// written; or why not.
    RolledBack(PolicyKey, RollbackResult<B>),
    /// A status was written (with the object as stored), or the object changed meanwhile.
    StatusWritten(StatusTarget, Option<Box<Object<B::Existing>>>),
}

/// The generation that a rollback copied and the object as written, or why not.
pub type RollbackResult<B> = Result<(i64, Box<Object<<B as Backend>::Existing>>), String>;

/// One generation of a policy whose module is to be fetched and vetted.
#[derive(Clone, Debug)]
pub struct VetJob {
    /// The policy.
    pub id: PolicyId,
    /// Its generation.
    pub generation: i64,
    /// Where the module is.
    pub url: String,
    /// The digest that a rollback pinned, whatever the URL resolves to now.
    pub pinned: Option<Digest>,
    /// Canonical JSON, without the values of Secrets.
    pub settings: Arc<[u8]>,
    /// Settings that come from Secrets.
    pub settings_from: Vec<SettingsSource>,
    /// The complete settings of a generation that is stored already: Secrets are not read.
    pub secret_settings: Option<SecretSettings>,
    /// Entrypoint of a Rego module.
    pub entrypoint: String,
    /// Whether the policy may change objects.
    pub mutating: bool,
    /// Whether the policy decides about requests at Envoy.
    pub check: bool,
    /// Resolved limits of one evaluation.
    pub limits: Limits,
    /// Host calls that the policy's server grants; the module's own list narrows them.
    pub granted_capabilities: Vec<String>,
    /// Whether the policy declares objects of the cluster that it reads.
    pub declares_context: bool,
    /// Public keys (PEM), one of which must have signed the module; empty for no signature.
    pub verification: Vec<String>,
    /// The policy's server, which declares sources; `None` for the built-in default server.
    pub server: Option<Box<ParsedServer>>,
}

/// Secrets to read again.
#[derive(Clone, Debug)]
pub struct CheckSettings {
    /// The policy.
    pub id: PolicyId,
    /// Its generation.
    pub generation: i64,
    /// Canonical JSON, without the values of Secrets.
    pub settings: Arc<[u8]>,
    /// Settings that come from Secrets.
    pub settings_from: Vec<SettingsSource>,
}

/// A module to fetch again.
#[derive(Clone, Debug)]
pub struct FetchModule {
    /// Where it came from, pinned.
    pub url: String,
    /// What it must hash to.
    pub digest: Digest,
    /// The server that declares its source.
    pub server: Option<Box<ParsedServer>>,
}

/// A module whose signature is to be checked.
#[derive(Clone, Debug)]
pub struct VerifySignature {
    /// The policy.
    pub id: PolicyId,
    /// The revision whose module it is.
    pub revision: RevisionId,
    /// Where the module is, pinned.
    pub url: String,
    /// The key that signed it when the revision was made: a module whose signer is among the keys is not looked at
    /// again.
    pub signer: Option<String>,
    /// Public keys (PEM), one of which must have signed; at least one.
    pub keys: Vec<String>,
    /// The server that declares its source.
    pub server: Option<Box<ParsedServer>>,
}

/// A revision to store.
#[derive(Debug)]
pub struct StoreRevision<B: Backend> {
    /// The policy.
    pub id: PolicyId,
    /// What evaluators get.
    pub policy: Arc<Policy>,
    /// What is stored of it.
    pub spec: PolicyRevisionSpec,
    /// The route that will point at it.
    pub route: B::Desired,
}

/// A revision to store again.
#[derive(Debug)]
pub struct RestoreRevision {
    /// The policy.
    pub id: PolicyId,
    /// The revision.
    pub revision: RevisionId,
    /// What is stored of it.
    pub spec: Arc<PolicyRevisionSpec>,
}

/// A route to write.
#[derive(Debug)]
pub struct RouteUpdate<B: Backend> {
    /// What it must be.
    pub desired: B::Desired,
    /// What exists; the write is conditional on it.
    pub existing: Vec<RouteObject<B::Existing>>,
}

/// Why a route was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlipError {
    /// It changed meanwhile: decide again.
    Conflict(String),
    /// The backend rejects the route for good.
    Invalid(String),
    /// Something else; retried.
    Other(String),
}

/// Why a module or revision cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the user is told.
    pub refusal: Refusal,
    /// Whether the same may work later.
    pub retryable: bool,
}

/// What a rollback writes.
#[derive(Clone, Debug, PartialEq)]
pub struct RollbackTarget {
    /// The generation that is copied.
    pub generation: i64,
    /// Its spec as it was.
    pub spec: Map<String, Value>,
    /// Where its very module is.
    pub module_url: String,
    /// That module.
    pub module_digest: String,
}

/// Why a rollback was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RollbackError {
    /// There is no such policy.
    NotFound(String),
    /// It cannot be done.
    Rejected(String),
}

/// An object that has a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatusTarget {
    /// Its kind.
    pub kind: Kind,
    /// Empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// The whole status.
    pub status: Status,
    /// The state of the object that it was computed for: the write is void once that changed.
    pub resource_version: String,
    /// The uid of the object.
    pub uid: String,
    /// Whether somebody may be waiting for it; otherwise it goes at a lower rate.
    pub urgent: bool,
}

/// A status of either kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Of a policy.
    Policy(Box<PolicyStatus>),
    /// Of a PolicyServer.
    Server(Box<PolicyServerStatus>),
}

/// An event about a policy.
#[derive(Clone, Debug)]
pub struct PolicyEvent {
    /// The policy.
    pub key: PolicyKey,
    /// Its object.
    pub meta: Meta,
    /// What happened.
    pub what: EventKind,
}

/// What an event reports.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// A condition changed.
    Condition(Condition),
    /// The policy has the content of an earlier generation again.
    RolledBack {
        /// The generation that was copied.
        from: i64,
        /// The new generation.
        generation: i64,
    },
    /// A rollback was rejected.
    RollbackRejected(String),
    /// A value of a Secret that the settings come from changed, and a new generation is made.
    SettingsChanged,
    /// Something happened to a revision that is being served.
    Revision(RevisionIncident, String),
}

/// What happened to a revision that is being served, without the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevisionIncident {
    /// Its object was missing or damaged, and is stored again.
    Restored,
    /// Somebody asked to delete its object, which is kept.
    Kept,
    /// Its object is gone, and it cannot be made again.
    Lost,
}

/// Something to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurement {
    /// A route is being pointed at another revision.
    Flip,
    /// From publishing a version to the last replica's acknowledgement.
    PublishToApplied(Duration),
    /// From seeing a generation to its enforcement.
    ChangeToEnforced(Duration),
}

// === impl Failure ===

impl Failure {
    /// Wrong for good, until the policy changes.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            refusal: Refusal {
                reason: RefusalReason::Invalid,
                message: message.into(),
            },
            retryable: false,
        }
    }

    /// Nothing is known to be wrong with the module or the policy.
    pub fn temporary(message: impl Into<String>) -> Self {
        Self {
            refusal: Refusal {
                reason: RefusalReason::PullError,
                message: message.into(),
            },
            retryable: true,
        }
    }
}

// === impl RevisionIncident ===

impl RevisionIncident {
    /// The reason of the event.
    pub fn as_str(self) -> &'static str {
        match self {
            RevisionIncident::Restored => "RevisionRestored",
            RevisionIncident::Kept => "RevisionKept",
            RevisionIncident::Lost => "RevisionLost",
        }
    }
}

// === impl RollbackError ===

impl std::fmt::Display for RollbackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RollbackError::NotFound(message) | RollbackError::Rejected(message) => {
                f.write_str(message)
            }
        }
    }
}
