//! Follows the objects of a cluster and tells of every change.

pub use assent_controller::Kind;
use assent_core::PolicyKey;
use futures::StreamExt as _;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::StatefulSet,
    core::v1::{Namespace, Pod, Service},
};
use kube::{
    Api, Client, Resource,
    core::DynamicObject,
    discovery::ApiResource,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{Instrument as _, debug, info_span, warn};

use crate::names;

/// What a control plane that decides has to know.
pub const ALL: [Kind; 10] = [
    Kind::ClusterPolicies,
    Kind::Policies,
    Kind::Servers,
    Kind::Revisions,
    Kind::Validating,
    Kind::Mutating,
    Kind::Pods,
    Kind::Sets,
    Kind::Services,
    Kind::Namespaces,
];

/// Something happened to objects of one kind.
#[derive(Debug)]
pub struct Change {
    /// Which.
    pub kind: Kind,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug)]
pub enum What {
    /// An object is there, or has changed.
    Applied(Box<DynamicObject>),
    /// An object is gone.
    Deleted(Box<DynamicObject>),
    /// Everything was listed afresh.
    Listed(Vec<DynamicObject>),
}

/// Follows `kinds` until the set of tasks is dropped. The channel is bounded: if nobody
/// takes changes, the watches wait.
pub fn spawn(
    client: &Client,
    own_namespace: &str,
    kinds: &[Kind],
    changes: &mpsc::Sender<Change>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for kind in kinds {
        let api = kind.api(client, own_namespace);
        let task = follow(*kind, api, changes.clone());
        tasks.spawn(task.instrument(info_span!("watch", ?kind)));
    }
    tasks
}

/// The list call asks the store itself, never a cache that may be old; a watch that expired
/// is started again with a fresh list.
async fn follow(kind: Kind, api: Api<DynamicObject>, changes: mpsc::Sender<Change>) {
    let mut config = watcher::Config::default();
    if let Some(selector) = selector(kind) {
        config = config.labels(&selector);
    }
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let what = match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(slim(object));
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                debug!(objects = listed.len(), "listed");
                What::Listed(std::mem::take(&mut listed))
            }
            Ok(watcher::Event::Apply(object)) => What::Applied(Box::new(slim(object))),
            Ok(watcher::Event::Delete(object)) => What::Deleted(Box::new(slim(object))),
            Err(error) => {
                warn!("watch failed and starts again: {error}");
                continue;
            }
        };
        if changes.send(Change { kind, what }).await.is_err() {
            return;
        }
    }
}

/// Who wrote which field is of no use here, and often larger than the object.
fn slim(mut object: DynamicObject) -> DynamicObject {
    object.metadata.managed_fields = None;
    object
}

/// How objects of a kind are read.
pub trait KindExt {
    /// What the API calls it.
    fn resource(self) -> ApiResource;

    /// Objects of this kind: workloads only in the control plane's namespace, because no rollout
    /// waits for evaluators in pods of others.
    fn api(self, client: &Client, own_namespace: &str) -> Api<DynamicObject>;
}

impl KindExt for Kind {
    fn resource(self) -> ApiResource {
        match self {
            Kind::ClusterPolicies => ApiResource::erase::<assent_api::ClusterAdmissionPolicy>(&()),
            Kind::Policies => ApiResource::erase::<assent_api::AdmissionPolicy>(&()),
            Kind::ClusterRequestPolicies => {
                request_policies("ClusterRequestPolicy", "clusterrequestpolicies")
            }
            Kind::RequestPolicies => request_policies("RequestPolicy", "requestpolicies"),
            Kind::Servers => ApiResource::erase::<assent_api::PolicyServer>(&()),
            Kind::Revisions => ApiResource::erase::<assent_api::PolicyRevision>(&()),
            Kind::Validating => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            Kind::Mutating => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
            Kind::Pods => ApiResource::erase::<Pod>(&()),
            Kind::Sets => ApiResource::erase::<StatefulSet>(&()),
            Kind::Services => ApiResource::erase::<Service>(&()),
            Kind::Namespaces => ApiResource::erase::<Namespace>(&()),
        }
    }

    fn api(self, client: &Client, own_namespace: &str) -> Api<DynamicObject> {
        let resource = self.resource();
        match self {
            Kind::Pods | Kind::Sets | Kind::Services => {
                Api::namespaced_with(client.clone(), own_namespace, &resource)
            }
            _ => Api::all_with(client.clone(), &resource),
        }
    }
}

/// The kind of a policy.
pub fn policy_kind(key: &PolicyKey) -> Kind {
    Kind::of(key)
}

fn request_policies(kind: &str, plural: &str) -> ApiResource {
    let server = ApiResource::erase::<assent_api::PolicyServer>(&());
    ApiResource {
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        ..server
    }
}

fn selector(kind: Kind) -> Option<String> {
    let (key, value) = names::MANAGED_BY;
    match kind {
        // Somebody may remove the labels of a webhook configuration, and it would still be called. Their names
        // show which of them belong to policies, and there are few others in a cluster.
        Kind::Validating | Kind::Mutating => None,
        Kind::Sets | Kind::Services => Some(format!("{key}={value}")),
        Kind::Pods => Some(names::SERVER_LABEL.to_owned()),
        _ => None,
    }
}

/// One object of a kind.
pub fn object_api<K>(client: &Client, namespace: &str) -> Api<DynamicObject>
where
    K: Resource<DynamicType = ()>,
{
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}
