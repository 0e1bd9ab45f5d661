//! Kubernetes events: `kubectl describe` shows what happened to a policy.

use assent_controller::action::{EventKind, PolicyEvent};
use assent_core::PolicyKey;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;
use tracing::debug;

use crate::watch::{KindExt as _, policy_kind};

#[cfg(test)]
mod tests;

/// Events that may wait to be written. Further ones are dropped: statuses hold the current
/// state, and events only report that it changed.
const MAX_PENDING: usize = 256;

/// The longest note that an API server accepts.
const MAX_NOTE: usize = 1000;

/// Records events about policies; clones share one queue. Recording never blocks.
#[derive(Clone)]
pub struct EventRecorder(mpsc::Sender<PendingEvent>);

/// The recorded events, in the order in which they were recorded.
pub struct EventLog(mpsc::Receiver<PendingEvent>);

/// An event, and the object that it is about.
pub type PendingEvent = (ObjectReference, Event);

// === impl EventRecorder ===

impl EventRecorder {
    /// A recorder, and the log of what it records.
    pub fn new() -> (Self, EventLog) {
        let (sender, pending) = mpsc::channel(MAX_PENDING);
        (Self(sender), EventLog(pending))
    }

    /// Records what happened to a policy. A condition that is unknown, or not met only because
    /// a rollout is in progress, is no event.
    pub fn record(&self, event: &PolicyEvent) {
        match &event.what {
            EventKind::Condition(condition) => self.condition(event, condition),
            EventKind::RolledBack { from, generation } => {
                let note =
                    format!("generation {generation} restores the content of generation {from}");
                self.send(event, EventType::Normal, "RolledBack", "Rollback", &note);
            }
            EventKind::Revision(incident, note) => {
                let reason = incident.as_str();
                self.send(event, EventType::Warning, reason, "Revision", note);
            }
            EventKind::SettingsChanged => {
                let note = "a value of a Secret in spec.settingsFrom changed: a new generation is made with it";
                let reason = "SettingsChanged";
                self.send(event, EventType::Normal, reason, "Settings", note);
            }
            EventKind::RollbackRejected(why) => {
                self.send(
                    event,
                    EventType::Warning,
                    "RollbackRefused",
                    "Rollback",
                    why,
                );
            }
        }
    }

    fn condition(&self, event: &PolicyEvent, condition: &Condition) {
        let type_ = match condition.status.as_str() {
            "Unknown" => return,
            "False" if condition.type_ == "Enforced" && condition.reason != "PartiallyEnforced" => {
                return;
            }
            "False" => EventType::Warning,
            _ if condition.reason == "SignatureRejected" => EventType::Warning,
            _ => EventType::Normal,
        };
        let note = match condition.observed_generation {
            Some(generation) => format!("generation {generation}: {}", condition.message),
            None => condition.message.clone(),
        };
        self.send(event, type_, &condition.reason, &condition.type_, &note);
    }

    fn send(&self, event: &PolicyEvent, type_: EventType, reason: &str, action: &str, note: &str) {
        let about = reference(&event.key, &event.meta.name, &event.meta.uid);
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.chars().take(MAX_NOTE).collect()),
            action: action.to_owned(),
            secondary: None,
        };
        if self.0.try_send((about, event)).is_err() {
            debug!("dropped an event: {MAX_PENDING} are already pending");
        }
    }
}

// === impl EventLog ===

impl EventLog {
    /// Writes events until the last recorder is dropped. The API server aggregates repetitions.
    pub async fn write(mut self, client: Client, instance: String) {
        let reporter = Reporter {
            controller: "assent-control-plane".into(),
            instance: Some(instance),
        };
        let recorder = Recorder::new(client, reporter);
        while let Some((about, event)) = self.0.recv().await {
            if let Err(error) = recorder.publish(&event, &about).await {
                debug!("failed to write an event: {error}");
            }
        }
    }

    /// The next event that was already recorded.
    pub fn try_next(&mut self) -> Option<PendingEvent> {
        self.0.try_recv().ok()
    }
}

fn reference(key: &PolicyKey, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(assent_api::API_VERSION.into()),
        kind: Some(policy_kind(key).resource().kind),
        name: Some(name.to_owned()),
        namespace: key.namespace().map(Into::into),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
