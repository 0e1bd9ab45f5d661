//! What the machine asks for, and what became of it, as plain values.

use std::sync::Arc;

use assent_api::PolicyRevision;
use assent_core::{Digest, Policy, PolicyKey, RevisionId, rollout::PolicyId};
use assent_k8s::{
    index,
    webhook::{self, Desired},
    workload,
};
use assent_modules::{pull::Reach, store::Store};
use kube::{Client, core::DynamicObject};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::sources::{References, SecretSources};
use crate::vetting::{Failed, Job, restore};

/// Something to be done against the API server, or by a child process. It ends with one [`Done`],
/// or with an outcome of vetting.
#[derive(Debug)]
pub(super) enum Deed {
    /// Vet a module, unless that is cancelled.
    Vet(Box<Job>, References, CancellationToken),
    /// Fetch a module that a stored revision names and the store lacks.
    Fetch(Fetch),
    /// Store a revision, after the API server was asked whether it would take the webhook.
    Store {
        id: PolicyId,
        policy: Arc<Policy>,
        object: Box<PolicyRevision>,
        webhook: Box<Desired>,
    },
    /// Read the pods of a server afresh: the last look before a flip.
    ReadPods {
        id: PolicyId,
        to: Arc<Policy>,
        server: String,
    },
    /// Point the webhook at a revision.
    Flip(PolicyId, RevisionId, Box<Pointing>),
    /// Bring a webhook configuration back to what it must be.
    Repair(PolicyKey, Box<Pointing>),
    /// Remove webhook configurations, however often that takes.
    Unroute(PolicyId, Vec<Present>),
    /// The same for all policies of a server.
    UnrouteServer(String, Vec<Present>),
    /// Remove webhook configurations of policies that no longer exist.
    RemoveOrphans(Vec<Present>),
    /// Store a revision's phase as history, or remove a revision that was never active.
    Retire {
        id: PolicyId,
        revision: RevisionId,
        keep: bool,
    },
    /// Store a phase that people read; the webhook configuration is what decides.
    SetPhase(PolicyKey, RevisionId, &'static str),
    /// Remove revisions that nobody goes back to, by namespace and name.
    DropRevisions(Vec<(String, String)>),
    /// Add or remove our finalizer.
    Hold(index::Kind, index::Meta, bool),
    /// Write an earlier spec into a policy, and take away the annotation that asked for it.
    RollBack {
        kind: index::Kind,
        meta: index::Meta,
        key: PolicyKey,
        target: Result<(i64, Value), String>,
    },
    /// Delete a pod that was made while nobody injected: its StatefulSet makes another.
    DeletePod(index::Meta),
    /// Apply everything that a server needs.
    ApplyServer(String, Box<workload::Objects>),
    /// Remove what was made for a server, then let the server go.
    EndServer(index::Meta),
}

/// What was done, or not.
#[derive(Debug)]
pub(super) enum Done {
    /// A revision is stored as candidate.
    Stored(PolicyId, Arc<Policy>, Box<DynamicObject>),
    /// It can't be, or not now.
    NotStored(PolicyId, i64, Failed),
    /// The pods of a server, read afresh for a flip.
    Pods(PolicyId, Arc<Policy>, Vec<DynamicObject>),
    /// A webhook configuration names this revision.
    Flipped(PolicyId, RevisionId, Vec<Pointed>),
    /// It could not be made to.
    FlipFailed(PolicyId, RevisionId, webhook::Error),
    /// A webhook configuration is as it must be again, or not.
    Repaired(PolicyKey, Vec<Pointed>),
    /// A revision is history, or gone.
    Retired(PolicyId, RevisionId),
    /// No webhook configuration of the policy is left.
    Unrouted(PolicyId),
    /// Webhook configurations of a server's policies are gone.
    ServerUnrouted(String),
    /// A server's objects were applied; the text is what went wrong.
    ServerApplied(String, Result<(), String>),
    /// A policy has the content of an earlier generation again, or why not.
    RolledBack(PolicyKey, Result<(i64, Box<DynamicObject>), String>),
    /// Revisions are gone, or are to be removed another time.
    Dropped(Vec<(String, String)>),
    /// Something came out that changes nothing by itself.
    Nothing,
}

/// A webhook configuration as it is.
pub(super) type Present = (webhook::Kind, DynamicObject);

/// A module that is to be fetched again.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) url: String,
    pub(super) digest: Digest,
    pub(super) sources: References,
    pub(super) reach: Reach,
}

/// A webhook configuration that was written or removed.
#[derive(Debug)]
pub(super) enum Pointed {
    /// It is there as such.
    At(index::Kind, Box<DynamicObject>),
    /// It is gone.
    Gone(index::Kind, Box<DynamicObject>),
}

/// A webhook configuration that is to become `desired`.
#[derive(Clone, Debug)]
pub(super) struct Pointing {
    pub(super) desired: Desired,
    /// What is there now.
    pub(super) present: Vec<Present>,
}

// === impl Fetch ===

impl Fetch {
    /// Fetches it, however often that takes.
    pub(super) async fn run(self, client: &Client, namespace: &str, store: &Store) {
        let sources = SecretSources::new(client, namespace, self.sources);
        restore(store, &self.url, self.digest, &sources, self.reach).await;
    }
}
