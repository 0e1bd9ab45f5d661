//! ConfigMaps that are policies: for each labelled ConfigMap of a policy namespace the leader keeps a
//! ClusterAdmissionPolicy, pinned to the text that the ConfigMap contains.
//!
//! From there on it is a policy like any other: an edit is a new generation, vetted, rolled out and flipped, and a text
//! that is refused leaves the revision before it in force.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    time::Duration,
};

use assent_api::ClusterAdmissionPolicy;
use futures::{StreamExt as _, stream::SelectAll};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ObjectReference};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    runtime::{
        WatchStreamExt as _,
        events::{Event, EventType, Recorder, Reporter},
        watcher,
    },
};
use tracing::{info, warn};

use crate::names;

mod plan;
#[cfg(test)]
mod tests;

pub use plan::LABEL;
use plan::{Existing, Key, Plan, Step, Wanted};

/// How often everything is compared without a reason: also how soon a refused text is reported on its ConfigMap.
const INTERVAL: Duration = Duration::from_secs(10);

/// Changes within this time are one pass.
const DEBOUNCE: Duration = Duration::from_millis(300);

/// The longest note that an API server accepts.
const MAX_NOTE: usize = 1000;

/// Keeps the policies of labelled ConfigMaps, for as long as this process leads.
pub struct ConfigMapPolicies {
    /// The API server.
    pub client: Client,
    /// The policy namespaces.
    pub namespaces: Vec<String>,
    /// The name of this process in events.
    pub identity: String,
}

/// What the last pass reported: an event is written once for each version of a ConfigMap, or generation of its policy.
type Reported = HashSet<(String, String)>;

// === impl ConfigMapPolicies ===

impl ConfigMapPolicies {
    /// Keeps them for as long as it is polled.
    pub async fn run(self) {
        if self.namespaces.is_empty() {
            return std::future::pending().await;
        }
        let mut changes: SelectAll<_> = self.namespaces.iter().map(|ns| self.changes(ns)).collect();
        let mut reported = Reported::new();
        loop {
            if let Err(error) = self.reconcile(&mut reported).await {
                warn!("failed to keep the policies of ConfigMaps; retrying: {error}");
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                Some(()) = changes.next() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    }

    /// Something changed in a namespace. What it is, the next pass finds out.
    fn changes(&self, namespace: &str) -> futures::stream::BoxStream<'static, ()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let config = watcher::Config::default().labels(LABEL);
        watcher(api, config)
            .default_backoff()
            .filter_map(async |event| match event {
                Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => None,
                Ok(_) => Some(()),
                Err(error) => {
                    warn!("failed to watch ConfigMaps; retrying: {error}");
                    None
                }
            })
            .boxed()
    }

    async fn reconcile(&self, reported: &mut Reported) -> Result<(), kube::Error> {
        let policies: Api<ClusterAdmissionPolicy> = Api::all(self.client.clone());
        let wanted = self.wanted().await;
        let existing = self.existing(&policies, &wanted).await?;
        let Plan { steps, notes } = plan::plan(&wanted, &existing);
        for step in steps {
            self.perform(&policies, step).await;
        }
        let before = mem::take(reported);
        for note in notes {
            let about = (note.uid.clone(), note.version.clone());
            if !before.contains(&about) && !reported.contains(&about) {
                self.report(&note).await;
            }
            reported.insert(about);
        }
        Ok(())
    }

    /// The labelled ConfigMaps of all policy namespaces that can be read.
    async fn wanted(&self) -> BTreeMap<Key, Wanted> {
        let mut wanted = BTreeMap::new();
        for namespace in &self.namespaces {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            match api.list(&ListParams::default().labels(LABEL)).await {
                Ok(found) => {
                    for config_map in found.items {
                        let one = Wanted::of(&config_map);
                        wanted.insert((namespace.clone(), config_map.name_any()), one);
                    }
                }
                // Nothing is known of this namespace: its policies stay as they are, unless a read tells that it is
                // gone.
                Err(error) => warn!(%namespace, "failed to list ConfigMaps: {error}"),
            }
        }
        wanted
    }

    /// The policies of ConfigMaps, and those that somebody else made under the name of one. Not all policies: there may
    /// be ten thousand, and this runs every few seconds.
    async fn existing(
        &self,
        policies: &Api<ClusterAdmissionPolicy>,
        wanted: &BTreeMap<Key, Wanted>,
    ) -> Result<Vec<Existing>, kube::Error> {
        let (managed_by, assent) = names::MANAGED_BY;
        let ours = ListParams::default().labels(&format!("{managed_by}={assent}"));
        let mut existing: BTreeMap<String, Existing> = BTreeMap::new();
        for policy in policies.list(&ours).await?.items {
            existing.insert(policy.name_any(), Existing::of(&policy));
        }
        for (_, name) in wanted.keys() {
            if !existing.contains_key(name)
                && let Some(policy) = policies.get_opt(name).await?
            {
                existing.insert(name.clone(), Existing::of(&policy));
            }
        }
        Ok(existing.into_values().collect())
    }

    async fn perform(&self, policies: &Api<ClusterAdmissionPolicy>, step: Step) {
        let name = step.name().to_owned();
        let done = match step {
            Step::Create(object) => {
                let created = policies.create(&PostParams::default(), &object).await;
                created.map(|_| info!(policy = name, "created the policy of a ConfigMap"))
            }
            Step::Update { object, version } => self.update(policies, *object, version).await,
            Step::Delete { uid, from, .. } => self.delete(policies, &name, uid, &from).await,
        };
        if let Err(error) = done {
            warn!(
                policy = name,
                "failed to keep the policy of a ConfigMap: {error}"
            );
        }
    }

    /// Conditional: whoever changed the policy since it was read is seen first.
    async fn update(
        &self,
        policies: &Api<ClusterAdmissionPolicy>,
        object: ClusterAdmissionPolicy,
        version: String,
    ) -> Result<(), kube::Error> {
        let name = object.name_any();
        // The whole spec is replaced: a merge would keep fields that are no longer wanted. Labels, annotations and
        // finalizers of others stay.
        let mut current = policies.get(&name).await?;
        current.metadata.resource_version = Some(version);
        current.labels_mut().extend(object.labels().clone());
        current
            .annotations_mut()
            .extend(object.annotations().clone());
        current.spec = object.spec;
        let replaced = policies
            .replace(&name, &PostParams::default(), &current)
            .await;
        replaced.map(|_| info!(policy = name, "updated the policy of a ConfigMap"))
    }

    async fn delete(
        &self,
        policies: &Api<ClusterAdmissionPolicy>,
        name: &str,
        uid: String,
        from: &Key,
    ) -> Result<(), kube::Error> {
        if !self.is_gone(from).await? {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(uid),
            resource_version: None,
        });
        policies.delete(name, &params).await?;
        info!(policy = name, "deleted the policy: its ConfigMap is gone");
        Ok(())
    }

    /// Whether a read confirms that a ConfigMap is gone, or is no policy any more.
    async fn is_gone(&self, (namespace, config_map): &Key) -> Result<bool, kube::Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        match api.get_opt(config_map).await {
            Ok(found) => Ok(!found.is_some_and(|found| plan::is_policy(&found))),
            // The permission to read a namespace is deleted with it.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let namespaces: Api<Namespace> = Api::all(self.client.clone());
                match namespaces.get_metadata_opt(namespace).await? {
                    None => Ok(true),
                    Some(_) => Err(kube::Error::Api(status)),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn report(&self, note: &plan::Note) {
        let reporter = Reporter {
            controller: names::FIELD_MANAGER.into(),
            instance: Some(self.identity.clone()),
        };
        let about = ObjectReference {
            api_version: Some(ConfigMap::api_version(&()).into_owned()),
            kind: Some(ConfigMap::kind(&()).into_owned()),
            name: Some(note.name.clone()),
            namespace: Some(note.namespace.clone()),
            uid: Some(note.uid.clone()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: note.reason.to_owned(),
            note: Some(note.message.chars().take(MAX_NOTE).collect()),
            action: "Policy".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(self.client.clone(), reporter);
        if let Err(error) = recorder.publish(&event, &about).await {
            warn!("failed to write an event: {error}");
        }
    }
}
