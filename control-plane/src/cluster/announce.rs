//! Kubernetes events, so that `kubectl describe` tells what happened to a policy.

use assent_k8s::index::PolicyEntry;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;
use tracing::debug;

use crate::view::kind;

/// Events that may wait to be written. More are dropped: statuses say what is true, events only
/// that it changed.
const WAITING: usize = 256;

/// Longest note that an API server takes.
const MAX_NOTE: usize = 1000;

/// Tells of transitions; the events are aggregated by the recorder.
#[derive(Clone)]
pub(super) struct Announcer(mpsc::Sender<Told>);

/// An event, and what it is about.
pub(super) type Told = (ObjectReference, Event);

// === impl Announcer ===

impl Announcer {
    /// An announcer, and what it tells.
    pub(super) fn new() -> (Self, mpsc::Receiver<Told>) {
        let (sender, told) = mpsc::channel(WAITING);
        (Self(sender), told)
    }

    /// A condition has changed.
    pub(super) fn condition(&self, policy: &PolicyEntry, condition: &Condition) {
        let good = condition.status != "False";
        let reason = match (condition.type_.as_str(), condition.status.as_str()) {
            (_, "Unknown") => return,
            // While a rollout is on its way there is nothing to warn of.
            ("Enforced", "False") if condition.reason != "PartiallyEnforced" => return,
            _ => condition.reason.clone(),
        };
        let note = match condition.observed_generation {
            Some(generation) => format!("generation {generation}: {}", condition.message),
            None => condition.message.clone(),
        };
        self.send(policy, good, reason, condition.type_.clone(), note);
    }

    /// A policy went back.
    pub(super) fn rolled_back(&self, policy: Option<&PolicyEntry>, from: i64, generation: i64) {
        let Some(policy) = policy else { return };
        let note = format!("generation {generation} has the content of generation {from} again");
        self.send(policy, true, "RolledBack".into(), "Rollback".into(), note);
    }

    /// A policy could not go back.
    pub(super) fn not_rolled_back(&self, policy: Option<&PolicyEntry>, why: &str) {
        let Some(policy) = policy else { return };
        let reason = "RollbackRefused".to_owned();
        self.send(policy, false, reason, "Rollback".into(), why.to_owned());
    }

    fn send(&self, policy: &PolicyEntry, good: bool, reason: String, action: String, note: String) {
        let about = ObjectReference {
            api_version: Some(assent_api::API_VERSION.into()),
            kind: Some(kind(&policy.key).into()),
            name: Some(policy.meta.name.clone()),
            namespace: policy.key.namespace().map(Into::into),
            uid: Some(policy.meta.uid.clone()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if good {
                EventType::Normal
            } else {
                EventType::Warning
            },
            reason,
            note: Some(note.chars().take(MAX_NOTE).collect()),
            action,
            secondary: None,
        };
        if self.0.try_send((about, event)).is_err() {
            debug!("an event was dropped: too many wait");
        }
    }
}

/// Writes events until nobody tells any more.
pub(super) async fn write(client: Client, instance: String, mut told: mpsc::Receiver<Told>) {
    let reporter = Reporter {
        controller: "assent-control-plane".into(),
        instance: Some(instance),
    };
    let recorder = Recorder::new(client, reporter);
    while let Some((about, event)) = told.recv().await {
        if let Err(error) = recorder.publish(&event, &about).await {
            debug!("failed to write an event: {error}");
        }
    }
}
