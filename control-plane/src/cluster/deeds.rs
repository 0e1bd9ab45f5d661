//! What the machine asks for, done against the API server. Each deed is a task of its own that
//! ends with one [`Done`]; nothing here decides.

use std::{sync::Arc, time::Duration};

use assent_api::PolicyRevision;
use assent_core::{Policy, PolicyKey, RevisionId, rollout::PolicyId};
use assent_k8s::{
    index,
    lease::Standing,
    names, objects,
    webhook::{self, Desired, Step},
    workload,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, info, warn};

use super::failpoint::failpoint;
use crate::vetting::Failed;

/// How long a deed that failed rests before it is asked for again.
const REST: Duration = Duration::from_secs(2);

/// The longest rest of a deed that must be done some time.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The hands of one leader's term; dropped, whatever was under way is cut off.
pub(super) struct Deeds {
    context: Context,
    done: mpsc::UnboundedSender<Done>,
    tasks: JoinSet<()>,
}

/// What every deed needs.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) standing: Standing,
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
    /// Something came out that changes nothing by itself.
    Nothing,
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
    pub(super) present: Vec<(webhook::Kind, DynamicObject)>,
}

// === impl Deeds ===

impl Deeds {
    pub(super) fn new(context: Context, done: mpsc::UnboundedSender<Done>) -> Self {
        Self {
            context,
            done,
            tasks: JoinSet::new(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Stores a revision, after the API server was asked whether it would take the webhook.
    pub(super) fn store(
        &mut self,
        id: PolicyId,
        policy: Arc<Policy>,
        object: PolicyRevision,
        webhook: Desired,
    ) {
        self.spawn(move |context| async move {
            failpoint("revision.before");
            let generation = policy.generation;
            let stored = match dry_run(&context, &webhook).await {
                Ok(()) => store(&context, &object).await,
                Err(failed) => Err(failed),
            };
            failpoint("revision.after");
            match stored {
                Ok(object) => Done::Stored(id, policy, Box::new(object)),
                Err(failed) => Done::NotStored(id, generation, failed),
            }
        });
    }

    /// Reads the pods of a server afresh: the last look before a flip.
    pub(super) fn read_pods(&mut self, id: PolicyId, to: Arc<Policy>, server: String) {
        self.spawn(move |context| async move {
            let revision = to.revision.clone();
            match list_pods(&context, &server).await {
                Ok(pods) => Done::Pods(id, to, pods),
                Err(error) => {
                    warn!(%server, "failed to read the pods before a flip: {error}");
                    tokio::time::sleep(REST).await;
                    Done::FlipFailed(id, revision, webhook::Error::Other(Box::new(error)))
                }
            }
        });
    }

    /// Points the webhook at a revision.
    pub(super) fn flip(&mut self, id: PolicyId, to: RevisionId, pointing: Pointing) {
        self.spawn(move |context| async move {
            failpoint("flip.before");
            let pointed = point(&context, &pointing).await;
            failpoint("flip.after");
            match pointed {
                Ok(pointed) => Done::Flipped(id, to, pointed),
                Err(error) => {
                    tokio::time::sleep(REST).await;
                    Done::FlipFailed(id, to, error)
                }
            }
        });
    }

    /// Brings a webhook configuration back to what it must be.
    pub(super) fn repair(&mut self, key: PolicyKey, pointing: Pointing) {
        self.spawn(move |context| async move {
            match point(&context, &pointing).await {
                Ok(pointed) => Done::Repaired(key, pointed),
                Err(error) => {
                    warn!(policy = %key, "failed to repair the webhook configuration: {error}");
                    tokio::time::sleep(REST).await;
                    Done::Repaired(key, Vec::new())
                }
            }
        });
    }

    /// Removes webhook configurations, however often that takes.
    pub(super) fn unroute(&mut self, id: PolicyId, present: Vec<(webhook::Kind, DynamicObject)>) {
        self.spawn(move |context| async move {
            failpoint("unroute.before");
            remove_webhooks(&context, &present).await;
            failpoint("unroute.after");
            Done::Unrouted(id)
        });
    }

    /// The same for all policies of a server.
    pub(super) fn unroute_server(
        &mut self,
        server: String,
        present: Vec<(webhook::Kind, DynamicObject)>,
    ) {
        self.spawn(move |context| async move {
            remove_webhooks(&context, &present).await;
            Done::ServerUnrouted(server)
        });
    }

    /// Removes webhook configurations of policies that no longer exist.
    pub(super) fn remove_orphans(&mut self, present: Vec<(webhook::Kind, DynamicObject)>) {
        self.spawn(move |context| async move {
            remove_webhooks(&context, &present).await;
            Done::Nothing
        });
    }

    /// Stores a revision's phase as history, or removes a revision that was never active.
    pub(super) fn retire(&mut self, id: PolicyId, revision: RevisionId, keep: bool) {
        self.spawn(move |context| async move {
            failpoint("retire.before");
            let (namespace, name) = revision_name(&context, &id.key, &revision);
            forever(&context, "retire a revision", || async {
                match keep {
                    true => set_phase(&context, &namespace, &name, "History").await,
                    false => delete_revision(&context, &namespace, &name).await,
                }
            })
            .await;
            failpoint("retire.after");
            Done::Retired(id, revision)
        });
    }

    /// Stores a phase that people read; the webhook configuration is what decides.
    pub(super) fn set_phase(&mut self, id: &PolicyId, revision: &RevisionId, phase: &'static str) {
        let (namespace, name) = revision_name(&self.context, &id.key, revision);
        self.spawn(move |context| async move {
            if let Err(error) = set_phase(&context, &namespace, &name, phase).await {
                debug!(revision = %name, "failed to store a phase: {error}");
            }
            Done::Nothing
        });
    }

    /// Removes revisions that nobody goes back to.
    pub(super) fn drop_revisions(&mut self, names: Vec<(String, String)>) {
        self.spawn(move |context| async move {
            for (namespace, name) in names {
                if let Err(error) = delete_revision(&context, &namespace, &name).await {
                    debug!(revision = %name, "failed to remove old history: {error}");
                }
            }
            Done::Nothing
        });
    }

    /// Adds or removes our finalizer.
    pub(super) fn hold(&mut self, kind: index::Kind, meta: index::Meta, held: bool) {
        self.spawn(move |context| async move {
            failpoint("finalizer.before");
            forever(&context, "change a finalizer", || {
                objects::set_finalizer(&context.client, kind, &meta, held)
            })
            .await;
            Done::Nothing
        });
    }

    /// Writes an earlier spec into a policy, and takes away the annotation that asked for it.
    pub(super) fn roll_back(
        &mut self,
        kind: index::Kind,
        meta: index::Meta,
        key: PolicyKey,
        target: Result<(i64, Value), String>,
    ) {
        self.spawn(move |context| async move {
            let (from, spec) = match target {
                Ok((from, spec)) => (from, Some(spec)),
                Err(why) => {
                    let written = objects::roll_back(&context.client, kind, &meta, None).await;
                    if let Err(error) = written {
                        warn!(policy = %key, "failed to remove the rollback annotation: {error}");
                    }
                    return Done::RolledBack(key, Err(why));
                }
            };
            let written = objects::roll_back(&context.client, kind, &meta, spec).await;
            let result = written.map(|object| (from, Box::new(object)));
            Done::RolledBack(key, result.map_err(|e| e.to_string()))
        });
    }

    /// Deletes a pod that was made while nobody injected: its StatefulSet makes another.
    pub(super) fn delete_pod(&mut self, meta: index::Meta) {
        self.spawn(move |context| async move {
            let api: Api<Pod> = Api::namespaced(context.client.clone(), &meta.namespace);
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: Some(meta.uid.clone()),
                resource_version: None,
            });
            match api.delete(&meta.name, &params).await {
                Ok(_) => info!(pod = %meta.name, "had no evaluator and was deleted"),
                Err(error) => warn!(pod = %meta.name, "failed to delete it: {error}"),
            }
            Done::Nothing
        });
    }

    /// Removes what was made for a server, then lets the server go.
    pub(super) fn end_server(&mut self, meta: index::Meta) {
        self.spawn(move |context| async move {
            forever(&context, "remove what was made for a policy server", || {
                remove_workload(&context, &meta)
            })
            .await;
            forever(&context, "release a policy server", || {
                objects::set_finalizer(&context.client, index::Kind::Servers, &meta, false)
            })
            .await;
            Done::Nothing
        });
    }

    /// Anything else.
    pub(super) fn spawn<F, Fut>(&mut self, deed: F)
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Done> + Send + 'static,
    {
        let (deed, done) = (deed(self.context.clone()), self.done.clone());
        self.tasks.spawn(async move {
            // The receiver is gone only when the term is over.
            let _ = done.send(deed.await);
        });
        while self.tasks.try_join_next().is_some() {}
    }
}

/// Where a revision is kept, and under which name.
pub(super) fn revision_name(
    context: &Context,
    key: &PolicyKey,
    revision: &RevisionId,
) -> (String, String) {
    let namespace = key.namespace().unwrap_or(&context.namespace);
    (namespace.to_owned(), names::revision(key, revision.short()))
}

/// Does something until it is done: what must not be forgotten, and can't be refused for good.
async fn forever<T, E, Fut>(context: &Context, what: &str, deed: impl Fn() -> Fut) -> T
where
    E: std::fmt::Display,
    Fut: Future<Output = Result<T, E>>,
{
    let mut rest = REST / 4;
    loop {
        if context.standing.leads().is_none() {
            // It is the next leader's to do; this term is about to end.
            std::future::pending::<()>().await;
        }
        match deed().await {
            Ok(done) => return done,
            Err(error) => warn!("failed to {what}, which is tried again: {error}"),
        }
        tokio::time::sleep(rest).await;
        rest = (rest * 2).min(LONGEST_REST);
    }
}

/// Whether the API server would take the webhook: it checks selectors and conditions in CEL,
/// and its words belong to the policy before anything of it is distributed.
async fn dry_run(context: &Context, webhook: &Desired) -> Result<(), Failed> {
    let writer = webhook::Writer::new(context.client.clone());
    match writer.dry_run(webhook).await {
        Ok(()) | Err(webhook::Error::Exists) => Ok(()),
        Err(error @ webhook::Error::Invalid(_)) => Err(Failed::invalid(error.to_string())),
        Err(error) => Err(Failed::later(error.to_string())),
    }
}

/// Creates the revision. One of that name is the same one, stored by whoever led before, or
/// its module's tag has moved since: then it was never distributed, and goes.
async fn store(context: &Context, object: &PolicyRevision) -> Result<DynamicObject, Failed> {
    let later =
        |error: kube::Error| Failed::later(format!("failed to store the revision: {error}"));
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(names::FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    for _ in 0..3 {
        match api.create(&params, object).await {
            Ok(stored) => return objects::erase(&stored).map_err(|e| Failed::later(e.to_string())),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(kube::Error::Api(status)) if status.is_invalid() => {
                return Err(Failed::invalid(status.message.clone()));
            }
            Err(error) => return Err(later(error)),
        }
        let Some(existing) = api.get_opt(&name).await.map_err(later)? else {
            continue;
        };
        let same = existing.spec.content_digest == object.spec.content_digest
            && existing.spec.policy_ref == object.spec.policy_ref;
        if same {
            set_phase(context, &namespace, &name, "Candidate")
                .await
                .map_err(later)?;
            return objects::erase(&existing).map_err(|e| Failed::later(e.to_string()));
        }
        info!(revision = %name, "a revision of that name has other content and is replaced");
        delete_revision(context, &namespace, &name)
            .await
            .map_err(later)?;
    }
    Err(Failed::later(format!(
        "failed to store the revision {name}: somebody else keeps changing it"
    )))
}

async fn list_pods(context: &Context, server: &str) -> Result<Vec<DynamicObject>, kube::Error> {
    let api = assent_k8s::watch::object_api::<Pod>(&context.client, &context.namespace);
    let params = ListParams::default().labels(&format!("{}={server}", names::SERVER_LABEL));
    Ok(api.list(&params).await?.items)
}

/// Writes webhook configurations step by step; each write is conditional on what was seen.
async fn point(context: &Context, pointing: &Pointing) -> Result<Vec<Pointed>, webhook::Error> {
    let writer = webhook::Writer::new(context.client.clone());
    let kinds: Vec<webhook::Kind> = pointing.present.iter().map(|(kind, _)| *kind).collect();
    let present = |kind| pointing.present.iter().find(|(k, _)| *k == kind);
    let mut pointed = Vec::new();
    for step in webhook::steps(&kinds, pointing.desired.kind()) {
        // A paused leader must not write when it wakes; the version would stop it too.
        if context.standing.leads().is_none() {
            return Err(webhook::Error::Conflict);
        }
        match step {
            Step::Create(kind) => {
                let meta = writer.create(&pointing.desired).await?;
                pointed.push(at(kind, &pointing.desired, meta));
            }
            Step::Update(kind) => {
                let Some((_, actual)) = present(kind) else {
                    continue;
                };
                let meta = writer.update(&actual.metadata, &pointing.desired).await?;
                pointed.push(at(kind, &pointing.desired, meta));
            }
            Step::Delete(kind) => {
                failpoint("flip.between");
                let Some((_, actual)) = present(kind) else {
                    continue;
                };
                remove_webhook(&writer, kind, actual).await?;
                pointed.push(Pointed::Gone(index_kind(kind), Box::new(actual.clone())));
            }
        }
    }
    Ok(pointed)
}

/// Ends when nothing is left; until then it says what is.
async fn remove_workload(context: &Context, meta: &index::Meta) -> Result<(), String> {
    let removed =
        workload::delete(&context.client, &context.namespace, &meta.name, &meta.uid).await;
    match removed.map_err(|e| e.to_string())? {
        workload::Outcome::Done => Ok(()),
        workload::Outcome::Waiting(what) => Err(what),
    }
}

async fn remove_webhook(
    writer: &webhook::Writer,
    kind: webhook::Kind,
    actual: &DynamicObject,
) -> Result<(), webhook::Error> {
    let (name, uid) = (actual.name_any(), actual.uid().unwrap_or_default());
    match writer.delete(kind, &name, &uid).await {
        // Another life of the name: ours is gone.
        Ok(()) | Err(webhook::Error::Gone | webhook::Error::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn remove_webhooks(context: &Context, present: &[(webhook::Kind, DynamicObject)]) {
    let writer = webhook::Writer::new(context.client.clone());
    for (kind, actual) in present {
        forever(context, "remove a webhook configuration", || {
            remove_webhook(&writer, *kind, actual)
        })
        .await;
    }
}

/// The configuration as it is after a write, before a watch tells.
fn at(kind: webhook::Kind, desired: &Desired, meta: ObjectMeta) -> Pointed {
    let value = match desired {
        Desired::Validating(object) => serde_json::to_value(object),
        Desired::Mutating(object) => serde_json::to_value(object),
    };
    let mut data = value.unwrap_or_default();
    if let Some(fields) = data.as_object_mut() {
        for name in ["apiVersion", "kind", "metadata"] {
            fields.remove(name);
        }
    }
    let object = DynamicObject {
        types: None,
        metadata: meta,
        data,
    };
    Pointed::At(index_kind(kind), Box::new(object))
}

async fn set_phase(
    context: &Context,
    namespace: &str,
    name: &str,
    phase: &str,
) -> Result<(), kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({ "status": { "phase": phase } });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

async fn delete_revision(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<(), kube::Error> {
    let api: Api<PolicyRevision> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

/// The same kind in the mirror.
pub(super) fn index_kind(kind: webhook::Kind) -> index::Kind {
    match kind {
        webhook::Kind::Validating => index::Kind::Validating,
        webhook::Kind::Mutating => index::Kind::Mutating,
    }
}

/// The same kind of a mirrored configuration.
pub(super) fn webhook_kind(kind: index::Kind) -> webhook::Kind {
    match kind {
        index::Kind::Mutating => webhook::Kind::Mutating,
        _ => webhook::Kind::Validating,
    }
}
