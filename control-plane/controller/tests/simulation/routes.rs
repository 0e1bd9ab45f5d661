//! Webhook configurations: written step by step, each step conditional on what the leader knows, and removed.

use assent_controller::{
    Change, Kind, Meta, Object, Outcome,
    action::FlipError,
    objects::{ObjectRef, RouteObject},
};
use assent_core::RevisionId;

use crate::{
    api::{Error, meta_mut},
    backend::{Configuration, Route, Webhook, webhook_name},
    jobs::{Job, Landed, Whose},
    world::World,
};

/// One write on the way to the wanted configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create(Kind),
    Update(Kind),
    Delete(Kind),
}

// === impl Step ===

impl Step {
    /// New configurations are created before an old one is deleted.
    pub(crate) fn plan(existing: &[Route], desired: &[Configuration]) -> Vec<Step> {
        let exists = |kind| existing.iter().any(|r| r.kind == kind);
        let wanted = desired.iter().map(|d| match exists(d.kind) {
            true => Step::Update(d.kind),
            false => Step::Create(d.kind),
        });
        let others = [Kind::Validating, Kind::Mutating].into_iter();
        let others =
            others.filter(|kind| exists(*kind) && !desired.iter().any(|d| d.kind == *kind));
        let mut steps: Vec<Step> = wanted.chain(others.map(Step::Delete)).collect();
        steps.reverse();
        steps
    }
}

// === impl World ===

impl World {
    pub(crate) fn do_write(&mut self, epoch: u64, job: &Job) -> Result<Landed, String> {
        let Job::Write {
            id,
            flip,
            desired,
            existing,
            steps,
            changes,
        } = job
        else {
            unreachable!("only webhook configurations are written");
        };
        let (mut steps, mut changes) = (steps.clone(), changes.clone());
        let done = |changes| match flip {
            Some(to) => Outcome::Flipped(id.clone(), to.clone(), changes),
            None => Outcome::Repaired(id.clone(), changes),
        };
        let Some(step) = steps.pop() else {
            return Ok(Landed::Done(Some(done(changes))));
        };
        let creates = matches!(step, Step::Create(_))
            || steps.iter().any(|step| matches!(step, Step::Create(_)));
        let written = match step {
            // Before the first write, a fresh read of what the leader does not know.
            _ if changes.is_empty() && creates && self.has_unknown_route(desired, existing) => {
                Err(Error::Conflict)
            }
            Step::Create(kind) | Step::Update(kind) => {
                let wanted = desired.iter().find(|d| d.kind == kind).unwrap();
                let known = existing.iter().find(|r| r.kind == kind);
                self.write_route(epoch, wanted, known, flip.as_ref())?
                    .map(Change::Applied)
            }
            Step::Delete(kind) => {
                let route = existing.iter().find(|r| r.kind == kind).unwrap();
                self.remove_route(route);
                Ok(Change::Deleted(reference(route)))
            }
        };
        match written {
            Ok(change) => changes.push(change),
            Err(error) => {
                self.history.seen.conflicts += 1;
                self.note(|| format!("    not written: {error:?}"));
                return Ok(Landed::Failed(match flip {
                    Some(to) => Outcome::FlipFailed(
                        id.clone(),
                        to.clone(),
                        FlipError::Conflict(format!("{error:?}")),
                    ),
                    None => Outcome::Repaired(id.clone(), Vec::new()),
                }));
            }
        }
        if steps.is_empty() {
            return Ok(Landed::Done(Some(done(changes))));
        }
        let (id, flip, desired, existing) =
            (id.clone(), flip.clone(), desired.clone(), existing.clone());
        Ok(Landed::Next(Job::Write {
            id,
            flip,
            desired,
            existing,
            steps,
            changes,
        }))
    }

    /// Whether there is a configuration that a watch would report, and has not.
    fn has_unknown_route(&self, desired: &[Configuration], existing: &[Route]) -> bool {
        let Some(desired) = desired.first() else {
            return false;
        };
        let name = webhook_name(&desired.key);
        [Kind::Validating, Kind::Mutating].into_iter().any(|kind| {
            let known = existing.iter().any(|route| route.kind == kind);
            let object = self.api.get(kind, &name);
            !known && matches!(object, Some(Object::Route(route)) if route.existing.labelled)
        })
    }

    fn write_route(
        &mut self,
        epoch: u64,
        wanted: &Configuration,
        known: Option<&Route>,
        flip: Option<&RevisionId>,
    ) -> Result<Result<Object<Webhook>, Error>, String> {
        let name = webhook_name(&wanted.key);
        let before = self.api.get(wanted.kind, &name).cloned();
        let written = match (known, &before) {
            (Some(known), _) => {
                let version = Some(known.meta.resource_version.as_str());
                self.api
                    .update(wanted.kind, &name, version, |o| wanted.write_into(o))
            }
            (None, None) => self.api.create(wanted.kind, wanted.object()),
            // Somebody removed its labels, so that it is taken back.
            (None, Some(Object::Route(route))) if !route.existing.labelled => {
                self.api
                    .update(wanted.kind, &name, None, |o| wanted.write_into(o))
            }
            (None, Some(_)) => Err(Error::Exists),
        };
        if written.is_ok() {
            self.note(|| format!("    {:?} {name} names {}", wanted.kind, wanted.revision));
            self.check_written(epoch, wanted, before.as_ref(), flip)?;
        }
        Ok(written)
    }

    fn remove_route(&mut self, route: &Route) {
        let gone = self
            .api
            .delete(route.kind, &route.meta.name, Some(&route.meta.uid));
        if gone.is_ok() {
            self.note(|| format!("    {:?} {} is removed", route.kind, route.meta.name));
            self.history.left(self.now, route);
        }
    }

    pub(crate) fn do_remove(&mut self, routes: &[Route], next: usize, whose: &Whose) -> Landed {
        if let Some(route) = routes.get(next) {
            self.remove_route(route);
        }
        if next + 1 < routes.len() {
            let (routes, next, whose) = (routes.to_vec(), next + 1, whose.clone());
            return Landed::Next(Job::Remove {
                routes,
                next,
                whose,
            });
        }
        let gone: Vec<ObjectRef> = routes.iter().map(reference).collect();
        Landed::Done(Some(match whose {
            Whose::Policy(id) => Outcome::RoutesRemoved(id.clone(), gone),
            Whose::Server(server) => Outcome::ServerRoutesRemoved(server.clone(), gone),
            Whose::Nobody => Outcome::OrphansRemoved(gone),
        }))
    }
}

// === impl Configuration ===

impl Configuration {
    fn object(&self) -> Object<Webhook> {
        Object::Route(Box::new(RouteObject {
            meta: Meta {
                name: webhook_name(&self.key),
                ..Meta::default()
            },
            kind: self.kind,
            key: self.key.clone(),
            uid: Some(self.uid.clone()),
            revision: Some(self.revision.clone()),
            resolved: Some(self.resolved.clone()),
            confirms: self.confirms,
            existing: self.webhook.clone(),
        }))
    }

    fn write_into(&self, object: &mut Object<Webhook>) {
        let meta = object.meta().clone();
        *object = self.object();
        *meta_mut(object) = meta;
    }
}

fn reference(route: &Route) -> ObjectRef {
    ObjectRef {
        kind: route.kind,
        namespace: String::new(),
        name: route.meta.name.clone(),
        uid: route.meta.uid.clone(),
    }
}
