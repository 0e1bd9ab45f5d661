//! What the mirror knows.

use std::collections::{BTreeMap, HashSet};

use assent_core::{Digest, PolicyKey};

use super::{
    Kind, Objects, PodObject, PolicyObject, RevisionObject, RouteObject, ServerObject, SetObject,
};

// === impl Objects ===

impl<E> Objects<E> {
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
}
