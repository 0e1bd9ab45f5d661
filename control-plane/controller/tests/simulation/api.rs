//! An API server: versions, conditional writes, finalizers, owners, and a log that watches read.

use std::collections::BTreeMap;

use assent_controller::{Change, Kind, Meta, Object, objects::ObjectRef};

use crate::backend::Webhook;

/// The control plane's namespace.
pub(crate) const NAMESPACE: &str = "assent-system";

/// Everything that is stored.
#[derive(Default)]
pub(crate) struct Api {
    objects: BTreeMap<(Kind, String), Object<Webhook>>,
    version: u64,
    created: u64,
    /// What watches report, in order.
    pub(crate) log: Vec<(Kind, Change<Webhook>)>,
}

/// Why a write was not performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    Exists,
    Conflict,
    Gone,
}

// === impl Api ===

impl Api {
    pub(crate) fn get(&self, kind: Kind, path: &str) -> Option<&Object<Webhook>> {
        self.objects.get(&(kind, path.to_owned()))
    }

    pub(crate) fn list(&self, kind: Kind) -> impl Iterator<Item = &Object<Webhook>> {
        let all = self.objects.iter();
        all.filter(move |((k, _), _)| *k == kind).map(|(_, o)| o)
    }

    /// A uid that nothing had before.
    pub(crate) fn uid(&mut self) -> String {
        self.created += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", self.created, self.created)
    }

    pub(crate) fn create(
        &mut self,
        kind: Kind,
        mut object: Object<Webhook>,
    ) -> Result<Object<Webhook>, Error> {
        let path = path_of(object.meta());
        if self.get(kind, &path).is_some() {
            return Err(Error::Exists);
        }
        let uid = self.uid();
        meta_mut(&mut object).uid = uid;
        Ok(self.put(kind, path, object))
    }

    /// Changes an object; with `version`, only if it still has that one.
    pub(crate) fn update(
        &mut self,
        kind: Kind,
        path: &str,
        version: Option<&str>,
        edit: impl FnOnce(&mut Object<Webhook>),
    ) -> Result<Object<Webhook>, Error> {
        let known = self.get(kind, path).ok_or(Error::Gone)?;
        if version.is_some_and(|v| v != known.meta().resource_version) {
            return Err(Error::Conflict);
        }
        let mut object = known.clone();
        edit(&mut object);
        // What waited for its last finalizer is gone.
        let meta = object.meta();
        if meta.deleting && !meta.has_finalizer && kind != Kind::Pods {
            self.remove(kind, path);
            return Ok(object);
        }
        Ok(self.put(kind, path.to_owned(), object))
    }

    /// Deletes an object, or marks it while a finalizer keeps it.
    pub(crate) fn delete(
        &mut self,
        kind: Kind,
        path: &str,
        uid: Option<&str>,
    ) -> Result<(), Error> {
        let known = self.get(kind, path).ok_or(Error::Gone)?.meta().clone();
        if uid.is_some_and(|uid| uid != known.uid) {
            return Err(Error::Conflict);
        }
        if !known.has_finalizer {
            self.remove(kind, path);
        } else if !known.deleting {
            self.update(kind, path, None, |object| meta_mut(object).deleting = true)?;
        }
        Ok(())
    }

    /// Removes an object whatever holds it, and collects what it owned.
    pub(crate) fn remove(&mut self, kind: Kind, path: &str) {
        let Some(object) = self.objects.remove(&(kind, path.to_owned())) else {
            return;
        };
        self.version += 1;
        let meta = object.meta().clone();
        let reference = ObjectRef {
            kind,
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid.clone(),
        };
        self.log.push((kind, Change::Deleted(reference)));
        let owned = self.list(Kind::Revisions).filter(|o| match o {
            Object::Revision(r) => r.policy_uid == meta.uid,
            _ => false,
        });
        let owned: Vec<String> = owned.map(|o| path_of(o.meta())).collect();
        for path in owned {
            let _ = self.delete(Kind::Revisions, &path, None);
        }
    }

    /// Every webhook configuration.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &crate::backend::Route> {
        let all = self.list(Kind::Validating).chain(self.list(Kind::Mutating));
        all.filter_map(|object| match object {
            Object::Route(route) => Some(route.as_ref()),
            _ => None,
        })
    }

    fn put(&mut self, kind: Kind, path: String, mut object: Object<Webhook>) -> Object<Webhook> {
        self.version += 1;
        meta_mut(&mut object).resource_version = self.version.to_string();
        self.objects.insert((kind, path), object.clone());
        self.log.push((kind, Change::Applied(object.clone())));
        object
    }
}

/// `namespace/name`, or the name alone.
pub(crate) fn path_of(meta: &Meta) -> String {
    match meta.namespace.as_str() {
        "" => meta.name.clone(),
        namespace => format!("{namespace}/{}", meta.name),
    }
}

pub(crate) fn meta_mut(object: &mut Object<Webhook>) -> &mut Meta {
    match object {
        Object::Policy(object) => &mut object.meta,
        Object::Server(object) => &mut object.meta,
        Object::Revision(object) => &mut object.meta,
        Object::Route(object) => &mut object.meta,
        Object::Pod(object) => &mut object.meta,
        Object::Set(object) => &mut object.meta,
        Object::Service(meta, _) => meta,
        Object::Namespace(object) => &mut object.meta,
    }
}
