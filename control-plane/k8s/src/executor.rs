//! Performs the controller's actions on objects of the cluster.
//!
//! Each action is a task of its own and ends with one [`Outcome`], or without one if nothing
//! depends on it. Nothing here decides: every write is conditional on the state that the
//! controller decided for.

use std::{sync::Arc, time::Duration};

use assent_controller::{
    Action, Failure, Meta, Outcome,
    action::{
        FlipError, RestoreRevision, RollbackTarget, Status, StatusTarget, StatusUpdate,
        StoreRevision,
    },
    objects::{Kind, Object},
};
use assent_core::PolicyKey;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Preconditions},
    core::DynamicObject,
};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, info, warn};

use crate::{
    backend::Cluster,
    convert::Converter,
    events::EventRecorder,
    failpoint::failpoint,
    names, objects,
    status::{StatusQueue, Target, Wanted, Written},
    watch, webhook, workload,
};

use phases::{PhaseWrite, PhaseWrites};
use revisions::Existing;

mod phases;
mod revisions;
mod routes;
#[cfg(test)]
mod tests;

/// How long the executor waits before it reports a failure that is retried at once.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The first and the longest delay between two tries of something that must be done some time.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Whether this process leads at this moment, by the clock: also right in a process that was
/// paused and whose tasks do not know yet that another one leads.
pub type LeaderCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// Performs actions for as long as one process leads; what is under way is cut off when it is
/// dropped, and the next leader finds it in the objects.
pub struct Executor {
    context: Context,
    outcomes: mpsc::Sender<Outcome<Cluster>>,
    events: EventRecorder,
    statuses: StatusQueue,
    phases: PhaseWrites,
    tasks: JoinSet<()>,
}

/// What every action needs.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The control plane's namespace.
    pub namespace: String,
    /// Objects as the controller's mirror stores them.
    pub converter: Arc<Converter>,
    /// Asked before every write that must not be late.
    pub is_leader: LeaderCheck,
}

// === impl Executor ===

impl Executor {
    /// Reports to `outcomes`. Tasks wait while the channel is full.
    pub fn new(
        context: Context,
        outcomes: mpsc::Sender<Outcome<Cluster>>,
        events: EventRecorder,
        statuses: StatusQueue,
    ) -> Self {
        Self {
            context,
            outcomes,
            events,
            statuses,
            phases: PhaseWrites::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Begins an action, and returns it if it does not concern objects of the cluster.
    pub fn perform(&mut self, action: Action<Cluster>) -> Option<Action<Cluster>> {
        match action {
            Action::StoreRevision(store) => self.spawn(|c| store_revision(c, *store)),
            Action::RestoreRevision(restore) => self.spawn(|c| restore_revision(c, *restore)),
            Action::SetPhase(id, revision, phase) => {
                self.write_phase(id, PhaseWrite::Set(revision, phase));
            }
            Action::RetireRevision { id, revision, keep } => {
                self.write_phase(id, PhaseWrite::Retire(revision, keep));
            }
            Action::DeleteRevisions(id, full_names) => self.spawn(|c| async move {
                for (namespace, name) in &full_names {
                    if let Err(error) = revisions::delete(&c, namespace, name, None).await {
                        debug!(revision = %name, "failed to delete old history: {error}");
                    }
                }
                Some(Outcome::RevisionsDeleted(id, full_names))
            }),
            Action::CheckReplicas { id, to, server } => self.spawn(|c| async move {
                Some(match list_pods(&c, &server).await {
                    Ok(pods) => Outcome::ReplicasChecked(id, to, pods),
                    Err(error) => {
                        warn!(%server, "failed to list the pods before a flip: {error}");
                        tokio::time::sleep(RETRY_DELAY).await;
                        let error = FlipError::Other(error.to_string());
                        Outcome::FlipFailed(id, to.revision.clone(), error)
                    }
                })
            }),
            Action::Flip(id, revision, update) => self.spawn(|c| async move {
                failpoint("flip.before");
                let written = routes::write(&c, &update).await;
                failpoint("flip.after");
                Some(match written {
                    Ok(changes) => Outcome::Flipped(id, revision, changes),
                    Err(error) => {
                        tokio::time::sleep(RETRY_DELAY).await;
                        Outcome::FlipFailed(id, revision, flip_error(&error))
                    }
                })
            }),
            Action::RepairRoute(id, update) => self.spawn(|c| async move {
                let changes = match routes::write(&c, &update).await {
                    Ok(changes) => changes,
                    Err(error) => {
                        let policy = &id.key;
                        warn!(%policy, "failed to repair the webhook configuration: {error}");
                        tokio::time::sleep(RETRY_DELAY).await;
                        Vec::new()
                    }
                };
                Some(Outcome::Repaired(id, changes))
            }),
            Action::RemoveRoutes(id, existing) => self.spawn(|c| async move {
                failpoint("unroute.before");
                let removed = routes::remove_all(&c, &existing).await;
                failpoint("unroute.after");
                Some(Outcome::RoutesRemoved(id, removed))
            }),
            Action::RemoveServerRoutes(server, existing) => self.spawn(|c| async move {
                let removed = routes::remove_all(&c, &existing).await;
                Some(Outcome::ServerRoutesRemoved(server, removed))
            }),
            Action::RemoveOrphans(existing) => self.spawn(|c| async move {
                let removed = routes::remove_all(&c, &existing).await;
                Some(Outcome::OrphansRemoved(removed))
            }),
            Action::SetFinalizer(kind, meta, present) => self.spawn(|c| async move {
                failpoint("finalizer.before");
                until_done(&c, "change a finalizer", || {
                    objects::set_finalizer(&c.client, kind, &meta, present)
                })
                .await;
                None
            }),
            Action::RollBack { key, meta, target } => self.spawn(|c| async move {
                let result = roll_back(&c, &key, &meta, target).await;
                Some(Outcome::RolledBack(key, result))
            }),
            Action::TakeSettings {
                kind,
                meta,
                version,
            } => self.spawn(|c| async move {
                let written = match (c.is_leader)() {
                    true => objects::take_settings(&c.client, kind, &meta, &version).await,
                    false => Ok(()),
                };
                // The watch reports the new generation; after a failure the next check decides again.
                if let Err(error) = written {
                    warn!(policy = %meta.name, "failed to write settingsVersion; retrying: {error}");
                }
                None
            }),
            Action::DeletePod(meta) => self.spawn(|c| async move {
                delete_pod(&c, &meta).await;
                None
            }),
            Action::ApplyServer(server, objects) => self.spawn(|c| async move {
                let result = match workload::apply(&c.client, &objects).await {
                    Ok(workload::Outcome::Done) => Ok(()),
                    Ok(workload::Outcome::Waiting(what)) => Err(what),
                    Err(error) => Err(error.to_string()),
                };
                Some(Outcome::ServerApplied(server, result))
            }),
            Action::DeleteServer(meta) => self.spawn(|c| async move {
                delete_server(&c, &meta).await;
                None
            }),
            Action::WriteStatus(target, update) => self.write_status(target, update),
            Action::RecordEvent(event) => self.events.record(&event),
            other => return Some(other),
        }
        None
    }

    /// What the controller must know about a status that was written, or was not.
    pub fn status_written(&self, written: Written) -> Outcome<Cluster> {
        let Target {
            kind,
            namespace,
            name,
        } = written.target;
        let object = written.result.ok();
        let object = object.and_then(|object| self.context.converter.object(kind, *object));
        let target = StatusTarget {
            kind,
            namespace,
            name,
        };
        Outcome::StatusWritten(target, object.map(Box::new))
    }

    fn write_status(&self, target: StatusTarget, update: Option<StatusUpdate>) {
        let StatusTarget {
            kind,
            namespace,
            name,
        } = target;
        let target = Target {
            kind,
            namespace,
            name,
        };
        let Some(update) = update else {
            return self.statuses.withdraw(&target);
        };
        let status = match &update.status {
            Status::Policy(status) => serde_json::to_value(status),
            Status::Server(status) => serde_json::to_value(status),
        };
        let wanted = Wanted {
            status: status.unwrap_or_default(),
            resource_version: update.resource_version,
            uid: update.uid,
            urgent: update.urgent,
        };
        self.statuses.submit(target, wanted);
    }

    /// Phases of one policy are written in the order in which they were decided: a late write
    /// would make readers, and the next leader, take an old phase for the current one.
    fn write_phase(&mut self, id: assent_core::rollout::PolicyId, write: PhaseWrite) {
        if !self.phases.push(&id, write) {
            return;
        }
        let (context, phases) = (self.context.clone(), self.phases.clone());
        let outcomes = self.outcomes.clone();
        self.tasks.spawn(async move {
            while let Some(write) = phases.next(&id) {
                if let Some(outcome) = phases::perform(&context, &id, write).await {
                    // The receiver is gone only when this process no longer leads.
                    let _ = outcomes.send(outcome).await;
                }
            }
        });
    }

    fn spawn<F>(&mut self, task: impl FnOnce(Context) -> F)
    where
        F: Future<Output = Option<Outcome<Cluster>>> + Send + 'static,
    {
        let task = task(self.context.clone());
        let outcomes = self.outcomes.clone();
        self.tasks.spawn(async move {
            if let Some(outcome) = task.await {
                // The receiver is gone only when this process no longer leads.
                let _ = outcomes.send(outcome).await;
            }
        });
        while self.tasks.try_join_next().is_some() {}
    }
}

async fn store_revision(
    context: Context,
    store: StoreRevision<Cluster>,
) -> Option<Outcome<Cluster>> {
    let StoreRevision {
        id,
        policy,
        spec,
        route,
    } = store;
    failpoint("revision.before");
    // The API server checks selectors and match conditions; its message belongs to the policy
    // before anything of it is distributed.
    let stored = match routes::dry_run(&context, &route).await {
        Ok(()) => {
            let (key, revision) = (&id.key, &policy.revision);
            revisions::store(&context, key, revision, spec, Existing::Keep).await
        }
        Err(failure) => Err(failure),
    };
    failpoint("revision.after");
    let stored = stored.and_then(|object| {
        let object = context.converter.object(Kind::Revisions, object);
        object.ok_or_else(|| Failure::temporary("the stored revision cannot be read"))
    });
    Some(match stored {
        Ok(object) => Outcome::Stored(id, policy, Box::new(object)),
        Err(failure) => Outcome::NotStored(id, policy.generation, failure),
    })
}

/// A failure is reported after a delay, and the controller decides again.
async fn restore_revision(context: Context, restore: RestoreRevision) -> Option<Outcome<Cluster>> {
    let RestoreRevision { id, revision, spec } = restore;
    let spec = Arc::unwrap_or_clone(spec);
    let stored = match (context.is_leader)() {
        true => revisions::store(&context, &id.key, &revision, spec, Existing::Replace).await,
        false => Err(Failure::temporary("this process does not lead")),
    };
    let object = match stored {
        Ok(object) => context.converter.object(Kind::Revisions, object),
        Err(failure) => {
            warn!(%revision, "failed to store a revision again; retrying: {}", failure.refusal.message);
            tokio::time::sleep(RETRY_DELAY).await;
            None
        }
    };
    Some(Outcome::Restored(id, revision, object.map(Box::new)))
}

/// Repeats something until it succeeds: what must not be forgotten and cannot be refused for
/// good. A process that no longer leads leaves it to the next leader.
async fn until_done<T, E, Fut>(context: &Context, what: &str, task: impl Fn() -> Fut) -> T
where
    E: std::fmt::Display,
    Fut: Future<Output = Result<T, E>>,
{
    let mut delay = FIRST_RETRY;
    loop {
        if !(context.is_leader)() {
            std::future::pending::<()>().await;
        }
        match task().await {
            Ok(done) => return done,
            Err(error) => warn!("failed to {what}; retrying: {error}"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_RETRY);
    }
}

async fn list_pods(
    context: &Context,
    server: &str,
) -> Result<Vec<Object<DynamicObject>>, kube::Error> {
    let api = watch::object_api::<Pod>(&context.client, &context.namespace);
    let params = ListParams::default().labels(&format!("{}={server}", names::SERVER_LABEL));
    let pods = api.list(&params).await?.items.into_iter();
    Ok(pods
        .filter_map(|pod| context.converter.object(Kind::Pods, pod))
        .collect())
}

/// Removes everything that was made for a PolicyServer, then its finalizer.
async fn delete_server(context: &Context, meta: &Meta) {
    until_done(context, "delete the objects of a PolicyServer", || async {
        let deleted =
            workload::delete(&context.client, &context.namespace, &meta.name, &meta.uid).await;
        match deleted.map_err(|e| e.to_string())? {
            workload::Outcome::Done => Ok(()),
            workload::Outcome::Waiting(what) => Err(what),
        }
    })
    .await;
    until_done(context, "remove the finalizer of a PolicyServer", || {
        objects::set_finalizer(&context.client, Kind::Servers, meta, false)
    })
    .await;
}

/// Writes the earlier spec. If there is none, only the annotation that asked is removed, and
/// the reason is the outcome.
async fn roll_back(
    context: &Context,
    key: &PolicyKey,
    meta: &Meta,
    target: Result<RollbackTarget, String>,
) -> Result<(i64, Box<Object<DynamicObject>>), String> {
    let kind = watch::policy_kind(key);
    let target = match target {
        Ok(target) => target,
        Err(why) => {
            let written = objects::roll_back(&context.client, kind, meta, None).await;
            if let Err(error) = written {
                warn!(policy = %key, "failed to remove the rollback annotation: {error}");
            }
            return Err(why);
        }
    };
    let mut spec = target.spec;
    // Whatever the tag names now, the digest in this URL is the revision's module. A text is in the spec itself.
    if !spec.contains_key("source") {
        spec.insert("module".into(), target.module_url.into());
    }
    let spec = Value::Object(spec);
    let written = objects::roll_back(&context.client, kind, meta, Some(&spec)).await;
    let written = written.map_err(|e| e.to_string())?;
    let object = context.converter.object(kind, written);
    let object = object.ok_or("the policy cannot be read after the rollback")?;
    Ok((target.generation, Box::new(object)))
}

async fn delete_pod(context: &Context, meta: &Meta) {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &meta.namespace);
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(meta.uid.clone()),
        resource_version: None,
    });
    match api.delete(&meta.name, &params).await {
        Ok(_) => info!(pod = %meta.name, "deleted the pod: its evaluator is missing or outdated"),
        Err(error) => warn!(pod = %meta.name, "failed to delete the pod: {error}"),
    }
}

fn flip_error(error: &webhook::Error) -> FlipError {
    let message = error.to_string();
    match error {
        webhook::Error::Conflict | webhook::Error::Exists | webhook::Error::Gone => {
            FlipError::Conflict(message)
        }
        webhook::Error::Invalid(_) => FlipError::Invalid(message),
        webhook::Error::Other(_) => FlipError::Other(message),
    }
}
