//! Webhook configurations: tried, written step by step, removed.

use assent_controller::{
    Change, Failure, Object,
    action::RouteUpdate,
    objects::{ObjectRef, RouteObject},
};
use kube::{api::ObjectMeta, core::DynamicObject};

use super::{Context, until_done};
use crate::{
    backend::Cluster,
    convert::{self, route_kind, webhook_kind},
    failpoint::failpoint,
    webhook::{self, Desired, Step},
};

type Route = RouteObject<DynamicObject>;

/// Whether the API server would accept the configurations. It checks selectors and CEL.
pub(super) async fn dry_run(context: &Context, desired: &[Desired]) -> Result<(), Failure> {
    let writer = webhook::Writer::new(context.client.clone());
    for one in desired {
        match writer.dry_run(one).await {
            Ok(()) | Err(webhook::Error::Exists) => {}
            Err(error @ webhook::Error::Invalid(_)) => {
                return Err(Failure::invalid(error.to_string()));
            }
            Err(error) => return Err(Failure::temporary(error.to_string())),
        }
    }
    Ok(())
}

/// Writes configurations step by step; each write is conditional on the known state.
pub(super) async fn write(
    context: &Context,
    update: &RouteUpdate<Cluster>,
) -> Result<Vec<Change<DynamicObject>>, webhook::Error> {
    let writer = webhook::Writer::new(context.client.clone());
    let desired = |kind| update.desired.iter().find(|d| d.kind() == kind);
    let existing = |kind| {
        update
            .existing
            .iter()
            .find(|r| webhook_kind(r.kind) == kind)
    };
    let kinds: Vec<webhook::Kind> = update
        .existing
        .iter()
        .map(|r| webhook_kind(r.kind))
        .collect();
    let mut changes = Vec::new();
    let wanted: Vec<webhook::Kind> = update.desired.iter().map(Desired::kind).collect();
    let steps = webhook::steps(&kinds, &wanted);
    let creates = steps.iter().any(|step| matches!(step, Step::Create(_)));
    if creates && (context.is_leader)() {
        let unknown = webhook::Kind::ALL.into_iter();
        let unknown = unknown.filter(|kind| !kinds.contains(kind));
        check_unknown(&writer, unknown, &update.desired).await?;
    }
    for step in steps {
        // A paused leader must not write when it wakes; the resource version would stop it too.
        if !(context.is_leader)() {
            return Err(webhook::Error::Conflict);
        }
        match step {
            Step::Create(kind) => {
                let Some(desired) = desired(kind) else {
                    continue;
                };
                let metadata = match writer.create(desired).await {
                    Err(webhook::Error::Exists) => adopt(&writer, desired).await?,
                    written => written?,
                };
                changes.extend(written(kind, desired, metadata));
            }
            Step::Update(kind) => {
                let Some((route, desired)) = existing(kind).zip(desired(kind)) else {
                    continue;
                };
                let metadata = writer.update(&route.existing.metadata, desired).await?;
                changes.extend(written(kind, desired, metadata));
            }
            Step::Delete(kind) => {
                failpoint("flip.between");
                let Some(route) = existing(kind) else {
                    continue;
                };
                remove(&writer, route).await?;
                changes.push(Change::Deleted(reference(route)));
            }
        }
    }
    Ok(changes)
}

/// Takes back a configuration that somebody edited so that the mirror does not know it any more: without its
/// annotation a shortened name names no policy. Any other was written by another leader: that is a conflict.
async fn adopt(writer: &webhook::Writer, desired: &Desired) -> Result<ObjectMeta, webhook::Error> {
    let existing = writer.get(desired.kind(), desired.name()).await?;
    match is_watched(&existing, desired) {
        true => Err(webhook::Error::Exists),
        false => writer.update(&existing.metadata, desired).await,
    }
}

/// A conflict if there is a configuration that the watch has not reported yet. A change between validating and mutating
/// creates a configuration, and if the response is lost, only a read can tell: a repair would go back to the revision
/// before it.
async fn check_unknown(
    writer: &webhook::Writer,
    kinds: impl Iterator<Item = webhook::Kind>,
    desired: &[Desired],
) -> Result<(), webhook::Error> {
    let Some(desired) = desired.first() else {
        return Ok(());
    };
    for kind in kinds {
        match writer.get(kind, desired.name()).await {
            Ok(existing) if is_watched(&existing, desired) => return Err(webhook::Error::Conflict),
            Ok(_) | Err(webhook::Error::Gone) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the watch reports this configuration as one of Assent's.
fn is_watched(existing: &DynamicObject, desired: &Desired) -> bool {
    let labels = existing.metadata.labels.clone().unwrap_or_default();
    let mut ours = desired.metadata().labels.iter().flatten();
    ours.all(|(key, value)| labels.get(key) == Some(value)) && webhook::read(existing).is_some()
}

/// Removes configurations, however often that takes, and returns what is gone.
pub(super) async fn remove_all(context: &Context, existing: &[Route]) -> Vec<ObjectRef> {
    let writer = webhook::Writer::new(context.client.clone());
    for route in existing {
        until_done(context, "remove a webhook configuration", || {
            remove(&writer, route)
        })
        .await;
    }
    existing.iter().map(reference).collect()
}

async fn remove(writer: &webhook::Writer, route: &Route) -> Result<(), webhook::Error> {
    let kind = webhook_kind(route.kind);
    match writer.delete(kind, &route.meta.name, &route.meta.uid).await {
        // Another object has the name now: the one to remove is gone.
        Ok(()) | Err(webhook::Error::Gone | webhook::Error::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

fn reference(route: &Route) -> ObjectRef {
    convert::reference(route.kind, &route.existing)
}

/// The configuration as it is after a write, before a watch reports it.
fn written(
    kind: webhook::Kind,
    desired: &Desired,
    metadata: ObjectMeta,
) -> Option<Change<DynamicObject>> {
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
        metadata,
        data,
    };
    let route = convert::route(route_kind(kind), object)?;
    Some(Change::Applied(Object::Route(Box::new(route))))
}
