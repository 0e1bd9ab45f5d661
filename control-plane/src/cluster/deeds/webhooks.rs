//! Webhook configurations: asked about, written step by step, removed.

use assent_k8s::{
    index,
    webhook::{self, Desired, Step},
};
use kube::{ResourceExt as _, api::ObjectMeta, core::DynamicObject};

use super::{Context, forever};
use crate::{
    cluster::{
        deed::{Pointed, Pointing, Present},
        failpoint::failpoint,
    },
    vetting::Failed,
};

/// Whether the API server would take the webhook: it checks selectors and conditions in CEL,
/// and its words belong to the policy before anything of it is distributed.
pub(super) async fn dry_run(context: &Context, webhook: &Desired) -> Result<(), Failed> {
    let writer = webhook::Writer::new(context.client.clone());
    match writer.dry_run(webhook).await {
        Ok(()) | Err(webhook::Error::Exists) => Ok(()),
        Err(error @ webhook::Error::Invalid(_)) => Err(Failed::invalid(error.to_string())),
        Err(error) => Err(Failed::later(error.to_string())),
    }
}

/// Writes webhook configurations step by step; each write is conditional on what was seen.
pub(super) async fn point(
    context: &Context,
    pointing: &Pointing,
) -> Result<Vec<Pointed>, webhook::Error> {
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
                remove(&writer, kind, actual).await?;
                pointed.push(Pointed::Gone(index_kind(kind), Box::new(actual.clone())));
            }
        }
    }
    Ok(pointed)
}

async fn remove(
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

/// Removes them, however often that takes.
pub(super) async fn remove_all(context: &Context, present: &[Present]) {
    let writer = webhook::Writer::new(context.client.clone());
    for (kind, actual) in present {
        forever(context, "remove a webhook configuration", || {
            remove(&writer, *kind, actual)
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

/// The same kind in the mirror.
pub(super) fn index_kind(kind: webhook::Kind) -> index::Kind {
    match kind {
        webhook::Kind::Validating => index::Kind::Validating,
        webhook::Kind::Mutating => index::Kind::Mutating,
    }
}
