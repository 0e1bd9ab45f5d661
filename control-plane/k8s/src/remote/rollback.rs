//! Rolling a policy back with the person's own rights: an annotation, which the control plane
//! answers. Whoever may edit the policy may do it, and the API server's audit log has their name.

use std::time::Duration;

use assent_core::PolicyKey;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::json;

use super::{Error, Remote, Step};
use crate::watch::{KindExt as _, policy_kind};

/// How a rollback ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolledBack {
    /// This generation has the content of the earlier one.
    Done(i64),
    /// The control plane refused it.
    Refused(String),
}

/// A leader answers within a second; a new one is elected within half a minute.
const PATIENCE: Duration = Duration::from_secs(45);

/// How often the policy is read meanwhile.
const INTERVAL: Duration = Duration::from_millis(250);

/// Reads of the events after a refusal: they are written a moment later.
const EVENT_READS: u32 = 8;

/// The reason of the event about a refused rollback.
const REFUSED: &str = "RollbackRefused";

impl Remote {
    /// Rolls a policy back to a generation, or to the revision that was active before.
    pub async fn roll_back(&self, key: &PolicyKey, to: Option<i64>) -> Result<RolledBack, Error> {
        let api = self.policies(key);
        let read = || async {
            let found = self.ask(Step::Read, api.get_opt(key.name())).await?;
            found.ok_or_else(|| Error::NoPolicy(key.to_string()))
        };
        let before = read().await?;
        let value = to.map_or_else(|| "previous".to_owned(), |to| to.to_string());
        let patch = json!({"metadata": {
            // Another policy of the same name was not meant.
            "uid": before.metadata.uid,
            "annotations": {assent_api::ROLLBACK_ANNOTATION: value},
        }});
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        let patched = api.patch(key.name(), &params, &patch);
        let asked = self.ask(Step::RollBack, patched).await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let now = read().await?;
            let annotations = now.metadata.annotations.as_ref();
            if !annotations.is_some_and(|all| all.contains_key(assent_api::ROLLBACK_ANNOTATION)) {
                return match (now.metadata.generation, asked.metadata.generation) {
                    (Some(new), old) if Some(new) != old => Ok(RolledBack::Done(new)),
                    _ => Ok(RolledBack::Refused(self.refusal(key, &now).await)),
                };
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(Error::NotRolledBack(PATIENCE.as_secs()));
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Why the control plane refused, as its event has it, if the person may read events.
    async fn refusal(&self, key: &PolicyKey, policy: &DynamicObject) -> String {
        // Events about objects without a namespace are in `default`.
        let namespace = key.namespace().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let uid = policy.metadata.uid.as_deref().unwrap_or_default();
        let about = format!("regarding.uid={uid},reason={REFUSED}");
        let params = ListParams::default().fields(&about);
        for _ in 0..EVENT_READS {
            let Ok(mut events) = self.ask(Step::Read, api.list(&params)).await else {
                break;
            };
            let time = |event: &Event| {
                let repeated = event.series.as_ref().map(|s| s.last_observed_time.clone());
                repeated.or_else(|| event.event_time.clone()).map(|t| t.0)
            };
            events.items.sort_by_key(time);
            if let Some(note) = events.items.pop().and_then(|event| event.note) {
                return note;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        format!("the control plane refused to roll back {key}; its events have the reason")
    }

    fn policies(&self, key: &PolicyKey) -> Api<DynamicObject> {
        let resource = policy_kind(key).resource();
        match key.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}
