//! What the cluster says, as last seen: a synchronous mirror of the objects that matter.
//!
//! [`Index::apply`], [`Index::delete`] and [`Index::reset`] say what they touched; nothing
//! here reads or writes a cluster. One bad object affects only itself: it is kept with what is
//! wrong with it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use assent_api::parse;
use assent_core::{Digest, PolicyKey};
use kube::core::DynamicObject;

pub use entries::{
    Meta, PodEntry, PolicyEntry, RevisionEntry, ServerEntry, SetEntry, WebhookEntry,
};

use crate::watch::{Change, What};

mod entries;
#[cfg(test)]
mod tests;

/// What is mirrored.
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
    /// `ValidatingWebhookConfiguration`s of ours.
    Validating,
    /// `MutatingWebhookConfiguration`s of ours.
    Mutating,
    /// Pods that ask for an evaluator.
    Pods,
    /// StatefulSets of ours.
    Sets,
    /// Services of ours: only that something happened to one matters.
    Services,
}

/// Which decisions a change may concern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Touched {
    /// The policy object itself.
    Policy(PolicyKey),
    /// Its webhook configuration.
    Webhook(PolicyKey),
    /// One of its revisions.
    Revision(PolicyKey),
    /// The PolicyServer itself.
    Server(String),
    /// Something that was made for it.
    Workload(String),
    /// Its pods.
    Pods(String),
}

/// Names an object of one kind; the namespace is empty where there is none.
type Name = (String, String);

/// The mirror.
#[derive(Debug, Default)]
pub struct Index {
    options: parse::Options,
    policies: BTreeMap<PolicyKey, PolicyEntry>,
    servers: BTreeMap<String, ServerEntry>,
    revisions: BTreeMap<Name, RevisionEntry>,
    webhooks: BTreeMap<(Kind, String), WebhookEntry>,
    pods: BTreeMap<Name, PodEntry>,
    sets: BTreeMap<String, SetEntry>,
    services: BTreeMap<Name, String>,
    synced: BTreeSet<Kind>,
}

// === impl Index ===

impl Index {
    /// Nothing is known yet; `options` say how policies are read.
    pub fn new(options: parse::Options) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// An object is there, or has changed. An older state than the one known is ignored: a
    /// watch may trail behind what our own writes answered.
    pub fn apply(&mut self, kind: Kind, object: DynamicObject) -> Vec<Touched> {
        let mut touched = Vec::new();
        let name = name_of(&object);
        match kind {
            Kind::ClusterPolicies | Kind::Policies => {
                let entry = PolicyEntry::read(kind, object, &self.options);
                let Some(entry) = entry else { return touched };
                let key = entry.key.clone();
                if keep(&mut self.policies, key.clone(), entry, |e| &e.meta) {
                    touched.push(Touched::Policy(key));
                }
            }
            Kind::Servers => {
                let entry = ServerEntry::read(object);
                if keep(&mut self.servers, name.1.clone(), entry, |e| &e.meta) {
                    touched.push(Touched::Server(name.1));
                }
            }
            Kind::Revisions => {
                let entry = RevisionEntry::read(object, &self.options);
                let key = entry.key.clone();
                if keep(&mut self.revisions, name, entry, |e| &e.meta) {
                    touched.extend(key.map(Touched::Revision));
                }
            }
            Kind::Validating | Kind::Mutating => {
                let Some(entry) = WebhookEntry::read(kind, object) else {
                    return touched;
                };
                let key = entry.key.clone();
                if keep(&mut self.webhooks, (kind, name.1), entry, |e| &e.meta) {
                    touched.push(Touched::Webhook(key));
                }
            }
            Kind::Pods => {
                let Some(entry) = PodEntry::read(object) else {
                    return touched;
                };
                let server = entry.server.clone();
                if keep(&mut self.pods, name, entry, |e| &e.meta) {
                    touched.push(Touched::Pods(server));
                }
            }
            Kind::Sets => {
                let Some(entry) = SetEntry::read(object) else {
                    return touched;
                };
                let server = entry.server.clone();
                if keep(&mut self.sets, server.clone(), entry, |e| &e.meta) {
                    touched.push(Touched::Workload(server.clone()));
                    touched.push(Touched::Pods(server));
                }
            }
            Kind::Services => {
                if let Some(server) = entries::server_of(&object) {
                    self.services.insert(name, server.clone());
                    touched.push(Touched::Workload(server));
                }
            }
        }
        touched
    }

    /// Takes in what a watch tells.
    pub fn take(&mut self, change: Change) -> Vec<Touched> {
        let Change { kind, what } = change;
        match what {
            What::Applied(object) => self.apply(kind, *object),
            What::Deleted(object) => self.delete(kind, &object),
            What::Listed(objects) => self.reset(kind, objects),
        }
    }

    /// An object is gone. One of the same name that was made later stays.
    pub fn delete(&mut self, kind: Kind, object: &DynamicObject) -> Vec<Touched> {
        let name = name_of(object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        self.remove(kind, &name, Some(&uid)).into_iter().collect()
    }

    /// Everything of a kind was listed afresh: what is not among it is gone.
    pub fn reset(&mut self, kind: Kind, objects: Vec<DynamicObject>) -> Vec<Touched> {
        let listed: BTreeSet<Name> = objects.iter().map(name_of).collect();
        let gone: Vec<Name> = self
            .names(kind)
            .into_iter()
            .filter(|name| !listed.contains(name))
            .collect();
        let gone = gone.iter().filter_map(|name| self.remove(kind, name, None));
        let mut touched: Vec<Touched> = gone.collect();
        for object in objects {
            touched.extend(self.apply(kind, object));
        }
        self.synced.insert(kind);
        touched
    }

    /// Whether every kind of `kinds` was listed once.
    pub fn is_synced(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.synced.contains(kind))
    }

    /// All policies.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyEntry> {
        self.policies.values()
    }

    /// One policy.
    pub fn policy(&self, key: &PolicyKey) -> Option<&PolicyEntry> {
        self.policies.get(key)
    }

    /// All PolicyServers.
    pub fn servers(&self) -> impl Iterator<Item = &ServerEntry> {
        self.servers.values()
    }

    /// One PolicyServer.
    pub fn server(&self, name: &str) -> Option<&ServerEntry> {
        self.servers.get(name)
    }

    /// Revisions of one life of a policy.
    pub fn revisions<'a>(
        &'a self,
        key: &'a PolicyKey,
        uid: &'a str,
    ) -> impl Iterator<Item = &'a RevisionEntry> {
        let own = move |r: &&RevisionEntry| r.key.as_ref() == Some(key) && r.policy_uid == uid;
        self.revisions.values().filter(own)
    }

    /// All revisions.
    pub fn all_revisions(&self) -> impl Iterator<Item = &RevisionEntry> {
        self.revisions.values()
    }

    /// Every module that a revision names.
    pub fn named_modules(&self) -> HashSet<Digest> {
        let objects = self.all_revisions().filter_map(|r| r.object.as_ref());
        objects
            .filter_map(|object| object.spec.module_digest.parse().ok())
            .collect()
    }

    /// Webhook configurations of a policy: none, one, or two while it moves between kinds.
    pub fn webhooks<'a>(
        &'a self,
        key: &'a PolicyKey,
    ) -> impl Iterator<Item = &'a WebhookEntry> + 'a {
        self.webhooks.values().filter(move |w| w.key == *key)
    }

    /// All webhook configurations of policies.
    pub fn all_webhooks(&self) -> impl Iterator<Item = &WebhookEntry> {
        self.webhooks.values()
    }

    /// Pods that ask for an evaluator of this PolicyServer.
    pub fn pods<'a>(&'a self, server: &'a str) -> impl Iterator<Item = &'a PodEntry> + 'a {
        self.pods.values().filter(move |p| p.server == server)
    }

    /// One pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodEntry> {
        self.pods.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The StatefulSet of a PolicyServer.
    pub fn set(&self, server: &str) -> Option<&SetEntry> {
        self.sets.get(server)
    }

    /// Pods of the server's own StatefulSet.
    pub fn members<'a>(&'a self, server: &'a str) -> impl Iterator<Item = &'a PodEntry> + 'a {
        let set = self.set(server).map(|s| s.meta.uid.as_str());
        self.pods(server)
            .filter(move |p| set.is_some() && p.owner.as_deref() == set)
    }

    /// A pod of the server's own that has another evaluator than its template asks for: a control
    /// plane of another version has filled it in, and its StatefulSet takes it for new. None
    /// while another of the pods is not ready: one goes at a time.
    pub fn misfit<'a>(&'a self, server: &'a str) -> Option<&'a PodEntry> {
        let set = self.set(server)?;
        let (hash, template) = (set.hash.as_ref()?, set.template.as_ref()?);
        let misfits = |pod: &&PodEntry| {
            pod.injected
                && !pod.meta.deleting
                && pod.template.as_ref() == Some(template)
                && pod.hash.as_ref() != Some(hash)
        };
        let found = self.members(server).find(misfits)?;
        let mut others = self
            .members(server)
            .filter(|p| p.meta.uid != found.meta.uid);
        let stand = others.all(|p| p.ready && !p.meta.deleting);
        stand.then_some(found)
    }

    fn remove(&mut self, kind: Kind, name: &Name, uid: Option<&str>) -> Option<Touched> {
        match kind {
            Kind::ClusterPolicies | Kind::Policies => {
                let key = match kind {
                    Kind::Policies => PolicyKey::namespaced(&name.0, &name.1),
                    _ => PolicyKey::cluster(&name.1),
                };
                take(&mut self.policies, &key, uid, |e| &e.meta)?;
                Some(Touched::Policy(key))
            }
            Kind::Servers => {
                take(&mut self.servers, &name.1, uid, |e| &e.meta)?;
                Some(Touched::Server(name.1.clone()))
            }
            Kind::Revisions => {
                let entry = take(&mut self.revisions, name, uid, |e| &e.meta)?;
                entry.key.map(Touched::Revision)
            }
            Kind::Validating | Kind::Mutating => {
                let name = (kind, name.1.clone());
                let entry = take(&mut self.webhooks, &name, uid, |e| &e.meta)?;
                Some(Touched::Webhook(entry.key))
            }
            Kind::Pods => {
                let entry = take(&mut self.pods, name, uid, |e| &e.meta)?;
                Some(Touched::Pods(entry.server))
            }
            Kind::Sets => {
                let mut sets = self.sets.iter();
                let own = sets.find(|(_, s)| s.meta.name == name.1).map(|(n, _)| n);
                let server = own?.clone();
                take(&mut self.sets, &server, uid, |e| &e.meta)?;
                Some(Touched::Workload(server))
            }
            Kind::Services => self.services.remove(name).map(Touched::Workload),
        }
    }

    fn names(&self, kind: Kind) -> Vec<Name> {
        let flat = |name: &String| (String::new(), name.clone());
        match kind {
            Kind::ClusterPolicies => {
                let keys = self.policies.keys().filter(|k| k.namespace().is_none());
                keys.map(|k| flat(&k.name().to_owned())).collect()
            }
            Kind::Policies => {
                let keys = self.policies.keys();
                let own = keys.filter_map(|k| Some((k.namespace()?.to_owned(), k.name().into())));
                own.collect()
            }
            Kind::Servers => self.servers.keys().map(flat).collect(),
            Kind::Revisions => self.revisions.keys().cloned().collect(),
            Kind::Validating | Kind::Mutating => {
                let own = self.webhooks.keys().filter(|(k, _)| *k == kind);
                own.map(|(_, name)| flat(name)).collect()
            }
            Kind::Pods => self.pods.keys().cloned().collect(),
            Kind::Sets => {
                let sets = self.sets.values();
                sets.map(|s| (s.meta.namespace.clone(), s.meta.name.clone()))
                    .collect()
            }
            Kind::Services => self.services.keys().cloned().collect(),
        }
    }
}

// === impl Touched ===

impl Touched {
    /// The policy that it concerns.
    pub fn policy(&self) -> Option<&PolicyKey> {
        match self {
            Touched::Policy(key) | Touched::Webhook(key) | Touched::Revision(key) => Some(key),
            Touched::Server(_) | Touched::Workload(_) | Touched::Pods(_) => None,
        }
    }
}

fn name_of(object: &DynamicObject) -> Name {
    let metadata = &object.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Keeps the newer of two states; false where that is the one known.
fn keep<K: Ord, E>(map: &mut BTreeMap<K, E>, key: K, entry: E, meta: impl Fn(&E) -> &Meta) -> bool {
    let known = map.get(&key).map(&meta);
    if known.is_some_and(|known| known.supersedes(meta(&entry))) {
        return false;
    }
    map.insert(key, entry);
    true
}

/// Takes out an entry, unless it is another life of the name.
fn take<K: Ord, E>(
    map: &mut BTreeMap<K, E>,
    key: &K,
    uid: Option<&str>,
    meta: impl Fn(&E) -> &Meta,
) -> Option<E> {
    let same = |e: &E| uid.is_none_or(|uid| uid.is_empty() || meta(e).uid == uid);
    map.get(key).filter(|e| same(e))?;
    map.remove(key)
}
