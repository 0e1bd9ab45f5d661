//! What the machine asks for, done. Each deed is a task of its own that ends with one
//! [`Done`]; nothing here decides.

use std::{sync::Arc, time::Duration};

use assent_k8s::{index, lease::Standing, names, objects, webhook, workload};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Preconditions},
    core::DynamicObject,
};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, info, warn};

use super::{
    deed::{Deed, Done},
    failpoint::failpoint,
    sources::SecretSources,
};
use crate::vetting::{DeclaredSources, Vetting};

mod revisions;
#[cfg(test)]
mod tests;
mod webhooks;

/// How long a deed that failed rests before it is asked for again.
const REST: Duration = Duration::from_secs(2);

/// The longest rest of a deed that must be done some time.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The hands of one leader's term; dropped, whatever was under way is cut off.
pub(super) struct Deeds {
    context: Context,
    vetting: Vetting,
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

// === impl Deeds ===

impl Deeds {
    pub(super) fn new(
        context: Context,
        vetting: Vetting,
        done: mpsc::UnboundedSender<Done>,
    ) -> Self {
        Self {
            context,
            vetting,
            done,
            tasks: JoinSet::new(),
        }
    }

    /// Begins it; what becomes of it is told later.
    pub(super) fn perform(&mut self, deed: Deed) {
        let (context, vetting) = (self.context.clone(), self.vetting.clone());
        let done = self.done.clone();
        self.tasks.spawn(async move {
            // The receiver is gone only when the term is over.
            let _ = done.send(perform(context, vetting, deed).await);
        });
        while self.tasks.try_join_next().is_some() {}
    }
}

async fn perform(context: Context, vetting: Vetting, deed: Deed) -> Done {
    match deed {
        Deed::Vet(job, references, cancelled) => {
            let sources = SecretSources::new(&context.client, &context.namespace, references);
            let sources = Arc::new(sources);
            vetting.start(*job, DeclaredSources::Elsewhere(sources), cancelled);
            Done::Nothing
        }
        Deed::Fetch(fetch) => {
            fetch
                .run(&context.client, &context.namespace, vetting.store())
                .await;
            Done::Nothing
        }
        Deed::Store {
            id,
            policy,
            object,
            webhook,
        } => {
            failpoint("revision.before");
            let stored = match webhooks::dry_run(&context, &webhook).await {
                Ok(()) => revisions::store(&context, &object).await,
                Err(failed) => Err(failed),
            };
            failpoint("revision.after");
            match stored {
                Ok(object) => Done::Stored(id, policy, Box::new(object)),
                Err(failed) => Done::NotStored(id, policy.generation, failed),
            }
        }
        Deed::ReadPods { id, to, server } => match list_pods(&context, &server).await {
            Ok(pods) => Done::Pods(id, to, pods),
            Err(error) => {
                warn!(%server, "failed to read the pods before a flip: {error}");
                tokio::time::sleep(REST).await;
                let error = webhook::Error::Other(Box::new(error));
                Done::FlipFailed(id, to.revision.clone(), error)
            }
        },
        Deed::Flip(id, to, pointing) => {
            failpoint("flip.before");
            let pointed = webhooks::point(&context, &pointing).await;
            failpoint("flip.after");
            match pointed {
                Ok(pointed) => Done::Flipped(id, to, pointed),
                Err(error) => {
                    tokio::time::sleep(REST).await;
                    Done::FlipFailed(id, to, error)
                }
            }
        }
        Deed::Repair(key, pointing) => match webhooks::point(&context, &pointing).await {
            Ok(pointed) => Done::Repaired(key, pointed),
            Err(error) => {
                warn!(policy = %key, "failed to repair the webhook configuration: {error}");
                tokio::time::sleep(REST).await;
                Done::Repaired(key, Vec::new())
            }
        },
        Deed::Unroute(id, present) => {
            failpoint("unroute.before");
            webhooks::remove_all(&context, &present).await;
            failpoint("unroute.after");
            Done::Unrouted(id)
        }
        Deed::UnrouteServer(server, present) => {
            webhooks::remove_all(&context, &present).await;
            Done::ServerUnrouted(server)
        }
        Deed::RemoveOrphans(present) => {
            webhooks::remove_all(&context, &present).await;
            Done::Nothing
        }
        Deed::Retire { id, revision, keep } => {
            failpoint("retire.before");
            let (namespace, name) = revisions::name(&context, &id.key, &revision);
            forever(&context, "retire a revision", || async {
                match keep {
                    true => revisions::set_phase(&context, &namespace, &name, "History").await,
                    false => revisions::delete(&context, &namespace, &name).await,
                }
            })
            .await;
            failpoint("retire.after");
            Done::Retired(id, revision)
        }
        Deed::SetPhase(key, revision, phase) => {
            let (namespace, name) = revisions::name(&context, &key, &revision);
            if let Err(error) = revisions::set_phase(&context, &namespace, &name, phase).await {
                debug!(revision = %name, "failed to store a phase: {error}");
            }
            Done::Nothing
        }
        Deed::DropRevisions(names) => {
            for (namespace, name) in &names {
                if let Err(error) = revisions::delete(&context, namespace, name).await {
                    debug!(revision = %name, "failed to remove old history: {error}");
                }
            }
            Done::Dropped(names)
        }
        Deed::Hold(kind, meta, held) => {
            failpoint("finalizer.before");
            forever(&context, "change a finalizer", || {
                objects::set_finalizer(&context.client, kind, &meta, held)
            })
            .await;
            Done::Nothing
        }
        Deed::RollBack {
            kind,
            meta,
            key,
            target,
        } => {
            let result = roll_back(&context, kind, &meta, target).await;
            Done::RolledBack(key, result)
        }
        Deed::DeletePod(meta) => {
            delete_pod(&context, &meta).await;
            Done::Nothing
        }
        Deed::ApplyServer(server, objects) => {
            let result = match workload::apply(&context.client, &objects).await {
                Ok(workload::Outcome::Done) => Ok(()),
                Ok(workload::Outcome::Waiting(what)) => Err(what),
                Err(error) => Err(error.to_string()),
            };
            Done::ServerApplied(server, result)
        }
        Deed::EndServer(meta) => {
            forever(&context, "remove what was made for a policy server", || {
                remove_workload(&context, &meta)
            })
            .await;
            forever(&context, "release a policy server", || {
                objects::set_finalizer(&context.client, index::Kind::Servers, &meta, false)
            })
            .await;
            Done::Nothing
        }
    }
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

async fn list_pods(context: &Context, server: &str) -> Result<Vec<DynamicObject>, kube::Error> {
    let api = assent_k8s::watch::object_api::<Pod>(&context.client, &context.namespace);
    let params = ListParams::default().labels(&format!("{}={server}", names::SERVER_LABEL));
    Ok(api.list(&params).await?.items)
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

async fn roll_back(
    context: &Context,
    kind: index::Kind,
    meta: &index::Meta,
    target: Result<(i64, Value), String>,
) -> Result<(i64, Box<DynamicObject>), String> {
    let (from, spec) = match target {
        Ok(target) => target,
        Err(why) => {
            let written = objects::roll_back(&context.client, kind, meta, None).await;
            if let Err(error) = written {
                warn!(policy = %meta.name, "failed to remove the rollback annotation: {error}");
            }
            return Err(why);
        }
    };
    let written = objects::roll_back(&context.client, kind, meta, Some(spec)).await;
    let object = written.map_err(|e| e.to_string())?;
    Ok((from, Box::new(object)))
}

async fn delete_pod(context: &Context, meta: &index::Meta) {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &meta.namespace);
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(meta.uid.clone()),
        resource_version: None,
    });
    match api.delete(&meta.name, &params).await {
        Ok(_) => info!(pod = %meta.name, "had no evaluator, or not its own, and was deleted"),
        Err(error) => warn!(pod = %meta.name, "failed to delete it: {error}"),
    }
}
