//! A synchronous mirror of the objects that decisions depend on, indexed by policy, server and uid.
//!
//! Each change reports which decisions it [affects](Affected), so that work is proportional to the
//! change. One malformed object affects only itself: it is kept with its error message.

use std::collections::{BTreeMap, BTreeSet};

use assent_core::PolicyKey;

pub use change::{Affected, Change, Kind, Object, ObjectRef, policy_key};
pub use entries::{
    Meta, NamespaceObject, PodObject, PolicyObject, Problem, ProblemScope, RevisionObject,
    RouteObject, ServerObject, SetObject,
};

use change::Name;
use deleted::Deleted;
use grouped::{Grouped, HasMeta};
use seniority::Seniority;

mod change;
mod deleted;
mod entries;
mod grouped;
mod query;
mod seniority;
#[cfg(test)]
mod tests;

/// One policy object: its key and its uid.
type Owner = (PolicyKey, String);

/// The mirror.
#[derive(Debug)]
pub struct Objects<E> {
    policies: BTreeMap<PolicyKey, PolicyObject>,
    servers: BTreeMap<String, ServerObject>,
    /// Revisions by the policy that owns them; those that belong to no policy are left out.
    revisions: Grouped<Owner, Name, RevisionObject>,
    /// Revisions that belong to no policy, whatever they claim.
    foreign_revisions: BTreeSet<Name>,
    routes: Grouped<PolicyKey, (Kind, String), RouteObject<E>>,
    pods: Grouped<String, Name, PodObject>,
    sets: Grouped<String, Name, SetObject>,
    services: Grouped<String, Name, Meta>,
    policies_by_server: BTreeMap<String, BTreeSet<PolicyKey>>,
    seniority: Seniority,
    namespaces: BTreeMap<String, NamespaceObject>,
    deleted: Deleted,
    listed: BTreeSet<Kind>,
}

// === impl Objects ===

impl<E> Default for Objects<E> {
    fn default() -> Self {
        Self {
            policies: BTreeMap::new(),
            servers: BTreeMap::new(),
            revisions: Grouped::default(),
            foreign_revisions: BTreeSet::new(),
            routes: Grouped::default(),
            pods: Grouped::default(),
            sets: Grouped::default(),
            services: Grouped::default(),
            policies_by_server: BTreeMap::new(),
            seniority: Seniority::default(),
            namespaces: BTreeMap::new(),
            deleted: Deleted::default(),
            listed: BTreeSet::new(),
        }
    }
}

impl<E> Objects<E> {
    /// Records a change that a watch reported, and returns what it affects.
    pub fn apply(&mut self, change: Change<E>) -> Vec<Affected> {
        match change {
            Change::Applied(object) => {
                self.deleted.forget(&object.meta().uid);
                self.insert(object)
            }
            Change::Deleted(object) => {
                self.deleted.remember(&object.uid);
                self.remove(&object)
            }
            Change::Listed(kind, objects) => self.reset(kind, objects),
        }
    }

    /// Records an object that a read or a write returned. A state older than the known one is
    /// ignored: a watch may lag behind. So is an object whose deletion a watch has reported:
    /// the response may be late, and no watch would ever remove the object again.
    pub fn insert(&mut self, object: Object<E>) -> Vec<Affected> {
        if self.deleted.contains(object.meta()) {
            return Vec::new();
        }
        match object {
            Object::Policy(policy) => self.insert_policy(*policy),
            Object::Server(server) => {
                let name = server.meta.name.clone();
                match keep(&mut self.servers, name.clone(), *server) {
                    true => vec![Affected::Server(name)],
                    false => Vec::new(),
                }
            }
            Object::Revision(revision) => self.insert_revision(*revision),
            Object::Route(route) => {
                let (key, name) = (route.key.clone(), (route.kind, route.meta.name.clone()));
                let changed = self.routes.insert(key, name, *route);
                changed.into_iter().map(Affected::Route).collect()
            }
            Object::Pod(pod) => {
                let (server, name) = (pod.server.clone(), pod.meta.full_name());
                let changed = self.pods.insert(server, name, *pod);
                changed.into_iter().map(Affected::Pods).collect()
            }
            Object::Set(set) => {
                let (server, name) = (set.server.clone(), set.meta.full_name());
                let changed = self.sets.insert(server, name, *set);
                changed.into_iter().flat_map(set_changed).collect()
            }
            Object::Service(meta, server) => {
                let changed = self.services.insert(server, meta.full_name(), *meta);
                changed.into_iter().map(Affected::Workload).collect()
            }
            Object::Namespace(namespace) => self.insert_namespace(*namespace),
        }
    }

    /// Removes an object. Another object of the same name, created later, stays.
    pub fn remove(&mut self, object: &ObjectRef) -> Vec<Affected> {
        let ObjectRef {
            kind,
            namespace,
            name,
            uid,
        } = object;
        let full = (namespace.clone(), name.clone());
        let affected = match kind {
            Kind::ClusterPolicies
            | Kind::Policies
            | Kind::ClusterRequestPolicies
            | Kind::RequestPolicies => {
                let key = policy_key(*kind, namespace, name);
                key.and_then(|key| self.remove_policy(key, uid))
            }
            Kind::Servers => {
                let gone = take(&mut self.servers, name, uid);
                gone.map(|_| Affected::Server(name.clone()))
            }
            Kind::Revisions => {
                self.foreign_revisions.remove(&full);
                let owner = self.revisions.remove(&full, uid);
                owner.map(|(key, _)| Affected::Revision(key))
            }
            Kind::Validating | Kind::Mutating => {
                let key = self.routes.remove(&(*kind, name.clone()), uid);
                key.map(Affected::Route)
            }
            Kind::Pods => self.pods.remove(&full, uid).map(Affected::Pods),
            Kind::Sets => {
                let server = self.sets.remove(&full, uid);
                return server.into_iter().flat_map(set_changed).collect();
            }
            Kind::Services => self.services.remove(&full, uid).map(Affected::Workload),
            Kind::Namespaces => {
                let gone = take(&mut self.namespaces, name, uid);
                gone.map(|_| Affected::Namespace(name.clone()))
            }
        };
        affected.into_iter().collect()
    }

    fn insert_policy(&mut self, policy: PolicyObject) -> Vec<Affected> {
        let (key, server) = (policy.key.clone(), policy.server.clone());
        let known = self.policies.get(&key);
        let before = known.map(|p| p.server.clone());
        let (was, is) = (known.map(|p| p.meta.clone()), policy.meta.clone());
        if !keep(&mut self.policies, key.clone(), policy) {
            return Vec::new();
        }
        self.seniority.replace(&key, was.as_ref(), Some(&is));
        if let Some(before) = before.filter(|before| *before != server) {
            self.unlist_policy(&before, &key);
        }
        let own = self.policies_by_server.entry(server).or_default();
        own.insert(key.clone());
        vec![Affected::Policy(key)]
    }

    fn remove_policy(&mut self, key: PolicyKey, uid: &str) -> Option<Affected> {
        let gone = take(&mut self.policies, &key, uid)?;
        self.unlist_policy(&gone.server, &key);
        self.seniority.replace(&key, Some(&gone.meta), None);
        Some(Affected::Policy(key))
    }

    fn unlist_policy(&mut self, server: &str, key: &PolicyKey) {
        let Some(own) = self.policies_by_server.get_mut(server) else {
            return;
        };
        own.remove(key);
        if own.is_empty() {
            self.policies_by_server.remove(server);
        }
    }

    /// Only its labels matter.
    fn insert_namespace(&mut self, namespace: NamespaceObject) -> Vec<Affected> {
        let name = namespace.meta.name.clone();
        let known = self.namespaces.get(&name);
        let same = known.is_some_and(|known| known.labels == namespace.labels);
        match keep(&mut self.namespaces, name.clone(), namespace) && !same {
            true => vec![Affected::Namespace(name)],
            false => Vec::new(),
        }
    }

    fn insert_revision(&mut self, revision: RevisionObject) -> Vec<Affected> {
        let name = revision.meta.full_name();
        let changed = match revision.key.clone() {
            Some(key) => {
                self.foreign_revisions.remove(&name);
                let owner = (key, revision.policy_uid.clone());
                self.revisions.insert(owner, name, revision)
            }
            // Whatever had this name before is gone.
            None => {
                self.foreign_revisions.insert(name.clone());
                self.revisions.remove(&name, "").into_iter().collect()
            }
        };
        let keys = changed.into_iter().map(|(key, _)| key);
        keys.map(Affected::Revision).collect()
    }

    fn reset(&mut self, kind: Kind, objects: Vec<Object<E>>) -> Vec<Affected> {
        if kind == Kind::Revisions {
            self.foreign_revisions.clear();
        }
        let listed: BTreeSet<Name> = objects.iter().map(Object::full_name).collect();
        let known = self.names(kind).into_iter();
        let gone: Vec<Name> = known.filter(|name| !listed.contains(name)).collect();
        let gone = gone.into_iter().flat_map(|(namespace, name)| {
            self.remove(&ObjectRef {
                kind,
                namespace,
                name,
                uid: String::new(),
            })
        });
        let mut affected: Vec<Affected> = gone.collect();
        for object in objects {
            affected.extend(self.apply(Change::Applied(object)));
        }
        self.listed.insert(kind);
        affected
    }

    fn names(&self, kind: Kind) -> Vec<Name> {
        let without_namespace = |name: &String| (String::new(), name.clone());
        match kind {
            Kind::ClusterPolicies
            | Kind::Policies
            | Kind::ClusterRequestPolicies
            | Kind::RequestPolicies => {
                let own = self.policies.keys().filter(|k| Kind::of(k) == kind);
                let name =
                    |k: &PolicyKey| (k.namespace().unwrap_or_default().into(), k.name().into());
                own.map(name).collect()
            }
            Kind::Servers => self.servers.keys().map(without_namespace).collect(),
            Kind::Revisions => self.revisions.names().cloned().collect(),
            Kind::Validating | Kind::Mutating => {
                let own = self.routes.names().filter(|(k, _)| *k == kind);
                own.map(|(_, name)| without_namespace(name)).collect()
            }
            Kind::Pods => self.pods.names().cloned().collect(),
            Kind::Sets => self.sets.names().cloned().collect(),
            Kind::Services => self.services.names().cloned().collect(),
            Kind::Namespaces => self.namespaces.keys().map(without_namespace).collect(),
        }
    }
}

/// What a change to a StatefulSet affects: which pods are the server's own depends on it.
fn set_changed(server: String) -> [Affected; 2] {
    [Affected::Workload(server.clone()), Affected::Pods(server)]
}

/// Keeps the newer of two states; false if that is the known one.
fn keep<K: Ord, V: HasMeta>(map: &mut BTreeMap<K, V>, key: K, new: V) -> bool {
    let known = map.get(&key).map(HasMeta::meta);
    if known.is_some_and(|known| known.supersedes(new.meta())) {
        return false;
    }
    map.insert(key, new);
    true
}

/// Removes an entry, unless it is another object of the same name.
fn take<K: Ord, V: HasMeta>(map: &mut BTreeMap<K, V>, key: &K, uid: &str) -> Option<V> {
    let known = map.get(key)?;
    match uid.is_empty() || known.meta().uid == uid {
        true => map.remove(key),
        false => None,
    }
}
