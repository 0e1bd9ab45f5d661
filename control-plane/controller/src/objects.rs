//! A synchronous mirror of the objects that decisions depend on, indexed by policy, server and uid.
//!
//! Each change reports which decisions it [affects](Affected), so that work is proportional to the
//! change. One malformed object affects only itself: it is kept with its error message.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use assent_core::{Digest, PolicyKey};

pub use entries::{
    Meta, NamespaceObject, PodObject, PolicyObject, Problem, ProblemScope, RevisionObject,
    RouteObject, ServerObject, SetObject,
};

use grouped::{Grouped, HasMeta};
use seniority::Seniority;

mod entries;
mod grouped;
mod seniority;
#[cfg(test)]
mod tests;

/// Kinds of objects in the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `ClusterAdmissionPolicy`.
    ClusterPolicies,
    /// `AdmissionPolicy`.
    Policies,
    /// `PolicyServer`.
    Servers,
    /// `PolicyRevision`.
    Revisions,
    /// Routes of policies that only validate: `ValidatingWebhookConfiguration` in a cluster.
    Validating,
    /// Routes of policies that may mutate: `MutatingWebhookConfiguration` in a cluster.
    Mutating,
    /// Pods that ask for an evaluator.
    Pods,
    /// StatefulSets of PolicyServers.
    Sets,
    /// Services of PolicyServers.
    Services,
    /// Namespaces, for their labels.
    Namespaces,
}

/// One object.
#[derive(Clone, Debug)]
pub enum Object<E> {
    /// A policy of either kind.
    Policy(Box<PolicyObject>),
    /// A PolicyServer.
    Server(Box<ServerObject>),
    /// A revision.
    Revision(Box<RevisionObject>),
    /// A route.
    Route(Box<RouteObject<E>>),
    /// A pod.
    Pod(Box<PodObject>),
    /// A StatefulSet.
    Set(Box<SetObject>),
    /// A Service and its PolicyServer: only that it changed matters.
    Service(Box<Meta>, String),
    /// A namespace.
    Namespace(Box<NamespaceObject>),
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; empty if any object of that name is meant.
    pub uid: String,
}

/// What happened to objects.
#[derive(Clone, Debug)]
pub enum Change<E> {
    /// An object was created or changed.
    Applied(Object<E>),
    /// An object is gone.
    Deleted(ObjectRef),
    /// Every object of a kind was listed: what is not among them is gone.
    Listed(Kind, Vec<Object<E>>),
}

/// A decision that a change affects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affected {
    /// The policy itself.
    Policy(PolicyKey),
    /// Its routes.
    Route(PolicyKey),
    /// One of its revisions.
    Revision(PolicyKey),
    /// The PolicyServer itself.
    Server(String),
    /// Something that was made for it.
    Workload(String),
    /// Its pods.
    Pods(String),
    /// What the policies of a namespace may do.
    Namespace(String),
}

/// Namespace and name; the namespace is empty if there is none.
type Name = (String, String);

/// One policy object: its key and its uid.
type Owner = (PolicyKey, String);

/// How many deleted objects are remembered. The response to a write is late by seconds, and far
/// fewer objects are deleted in that time.
const MAX_DELETED: usize = 4_096;

/// Uids of objects that were deleted recently, in the order of their deletion.
#[derive(Debug, Default)]
struct Deleted {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

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
            Kind::ClusterPolicies | Kind::Policies => {
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

    /// Whether every kind of `kinds` was listed.
    pub fn is_listed(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyObject> {
        self.policies.values()
    }

    /// One policy.
    pub fn policy(&self, key: &PolicyKey) -> Option<&PolicyObject> {
        self.policies.get(key)
    }

    /// The policies of a PolicyServer.
    pub fn policies_of<'a>(&'a self, server: &str) -> impl Iterator<Item = &'a PolicyKey> + 'a {
        self.policies_by_server.get(server).into_iter().flatten()
    }

    /// The policies of a namespace that are not being deleted, oldest first.
    pub fn policies_in<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a PolicyKey> + 'a {
        self.seniority.of(namespace)
    }

    /// How many policies of a namespace are not being deleted.
    pub fn count_policies_in(&self, namespace: &str) -> usize {
        self.seniority.count(namespace)
    }

    /// Labels of a namespace; `None` if it is not known.
    pub fn namespace_labels(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace).map(|found| &found.labels)
    }

    /// Labels of all namespaces.
    pub fn all_namespace_labels(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let all = self.namespaces.iter();
        all.map(|(name, found)| (name.clone(), found.labels.clone()))
            .collect()
    }

    /// All PolicyServers.
    pub fn servers(&self) -> impl Iterator<Item = &ServerObject> {
        self.servers.values()
    }

    /// One PolicyServer.
    pub fn server(&self, name: &str) -> Option<&ServerObject> {
        self.servers.get(name)
    }

    /// Revisions of one policy object.
    pub fn revisions<'a>(
        &'a self,
        key: &PolicyKey,
        uid: &str,
    ) -> impl Iterator<Item = &'a RevisionObject> + 'a {
        self.revisions.group(&(key.clone(), uid.to_owned()))
    }

    /// Revisions of every policy object that had this name.
    pub fn revisions_of_key<'a>(
        &'a self,
        key: &PolicyKey,
    ) -> impl Iterator<Item = &'a RevisionObject> + use<'a, E> {
        let first = (key.clone(), String::new());
        let own = self.revisions.groups_from(first);
        let key = key.clone();
        own.take_while(move |((of, _), _)| *of == key)
            .map(|(_, object)| object)
    }

    /// How many revisions belong to no policy: they are forged or damaged, and are ignored.
    pub fn foreign_revisions(&self) -> usize {
        self.foreign_revisions.len()
    }

    /// All revisions that belong to a policy.
    pub fn all_revisions(&self) -> impl Iterator<Item = &RevisionObject> {
        self.revisions.values()
    }

    /// Every module that a revision names.
    pub fn named_modules(&self) -> HashSet<Digest> {
        let specs = self.all_revisions().filter_map(|r| r.spec.as_ref());
        specs
            .filter_map(|spec| spec.module_digest.parse().ok())
            .collect()
    }

    /// Routes of a policy: none, one, or two while it moves between kinds.
    pub fn routes<'a>(&'a self, key: &PolicyKey) -> impl Iterator<Item = &'a RouteObject<E>> + 'a {
        self.routes.group(key)
    }

    /// All routes.
    pub fn all_routes(&self) -> impl Iterator<Item = &RouteObject<E>> {
        self.routes.values()
    }

    /// Pods that ask for an evaluator of this PolicyServer.
    pub fn pods<'a>(&'a self, server: &str) -> impl Iterator<Item = &'a PodObject> + 'a {
        self.pods.group(server)
    }

    /// The StatefulSet of a PolicyServer. If others carry its label too, the one that the
    /// PolicyServer owns.
    pub fn set(&self, server: &str) -> Option<&SetObject> {
        let uid = self.server(server).map(|s| s.meta.uid.as_str());
        let is_owned = |set: &&SetObject| set.owner.is_some() && set.owner.as_deref() == uid;
        let mut all = self.sets.group(server);
        let owned = self.sets.group(server).find(is_owned);
        owned.or_else(|| all.next())
    }

    /// The StatefulSets of all PolicyServers.
    pub fn sets(&self) -> impl Iterator<Item = &SetObject> {
        self.sets.values()
    }

    /// Pods of the PolicyServer's own StatefulSet.
    pub fn members<'a>(&'a self, server: &str) -> impl Iterator<Item = &'a PodObject> + 'a {
        let set = self.set(server).map(|s| s.meta.uid.clone());
        self.pods(server)
            .filter(move |p| set.is_some() && p.owner == set)
    }

    /// A pod of the server's StatefulSet whose evaluator is not the one that its template asks
    /// for: a control plane of another version injected it, and the StatefulSet takes it for
    /// up to date. `None` while another of the pods is not ready: one is replaced at a time.
    pub fn outdated_pod<'a>(&'a self, server: &'a str) -> Option<&'a PodObject> {
        let set = self.set(server)?;
        let (hash, template) = (set.hash.as_ref()?, set.template.as_ref()?);
        let outdated = |pod: &&PodObject| {
            pod.injected
                && !pod.meta.deleting
                && pod.template.as_ref() == Some(template)
                && pod.hash.as_ref() != Some(hash)
        };
        let found = self.members(server).find(outdated)?;
        let mut others = self
            .members(server)
            .filter(|p| p.meta.uid != found.meta.uid);
        others.all(|p| p.ready && !p.meta.deleting).then_some(found)
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
            Kind::ClusterPolicies => {
                let keys = self.policies.keys().filter(|k| k.namespace().is_none());
                keys.map(|k| (String::new(), k.name().to_owned())).collect()
            }
            Kind::Policies => {
                let keys = self.policies.keys();
                let own = keys.filter_map(|k| Some((k.namespace()?.to_owned(), k.name().into())));
                own.collect()
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

// === impl Deleted ===

impl Deleted {
    /// Where objects have no versions, an object may be created again with the same uid.
    fn contains(&self, meta: &Meta) -> bool {
        meta.resource_version.parse::<u64>().is_ok() && self.uids.contains(&meta.uid)
    }

    fn remember(&mut self, uid: &str) {
        if uid.is_empty() || !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MAX_DELETED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    fn forget(&mut self, uid: &str) {
        if self.uids.remove(uid) {
            self.order.retain(|other| other != uid);
        }
    }
}

// === impl Object ===

impl<E> Object<E> {
    /// Its metadata.
    pub fn meta(&self) -> &Meta {
        match self {
            Object::Policy(object) => &object.meta,
            Object::Server(object) => &object.meta,
            Object::Revision(object) => &object.meta,
            Object::Route(object) => &object.meta,
            Object::Pod(object) => &object.meta,
            Object::Set(object) => &object.meta,
            Object::Service(meta, _) => meta,
            Object::Namespace(object) => &object.meta,
        }
    }

    fn full_name(&self) -> Name {
        self.meta().full_name()
    }
}

/// The key of a policy object.
pub fn policy_key(kind: Kind, namespace: &str, name: &str) -> Option<PolicyKey> {
    match kind {
        Kind::Policies => PolicyKey::parse(&format!("namespaced/{namespace}/{name}")),
        _ => PolicyKey::parse(&format!("cluster/{name}")),
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
