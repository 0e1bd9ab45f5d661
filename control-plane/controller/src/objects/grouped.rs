//! Objects by what they belong to (a policy, a PolicyServer), and by name.

use std::{borrow::Borrow, collections::BTreeMap};

use super::Meta;

/// What has metadata.
pub(super) trait HasMeta {
    fn meta(&self) -> &Meta;
}

/// Objects in groups. Each name is in one group.
#[derive(Debug)]
pub(super) struct Grouped<G, N, V> {
    groups: BTreeMap<G, BTreeMap<N, V>>,
    group_of: BTreeMap<N, G>,
}

// === impl Grouped ===

impl<G, N, V> Default for Grouped<G, N, V> {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            group_of: BTreeMap::new(),
        }
    }
}

impl<G: Ord + Clone, N: Ord + Clone, V: HasMeta> Grouped<G, N, V> {
    /// Inserts an object and returns the groups that changed: none if a newer state of it is
    /// known, two if it was in another group.
    pub(super) fn insert(&mut self, group: G, name: N, object: V) -> Vec<G> {
        let known = self.get(&name).map(HasMeta::meta);
        if known.is_some_and(|known| known.supersedes(object.meta())) {
            return Vec::new();
        }
        let mut changed = Vec::new();
        if self.group_of.get(&name).is_some_and(|g| *g != group) {
            changed.extend(self.remove(&name, ""));
        }
        let own = self.groups.entry(group.clone()).or_default();
        own.insert(name.clone(), object);
        self.group_of.insert(name, group.clone());
        changed.push(group);
        changed
    }

    /// Removes an object, unless it is another one of the same name; returns its group. An
    /// empty uid means any object of that name.
    pub(super) fn remove(&mut self, name: &N, uid: &str) -> Option<G> {
        let known = self.get(name)?;
        if !uid.is_empty() && known.meta().uid != uid {
            return None;
        }
        let group = self.group_of.remove(name)?;
        let own = self.groups.get_mut(&group)?;
        own.remove(name);
        if own.is_empty() {
            self.groups.remove(&group);
        }
        Some(group)
    }

    /// The objects of one group.
    pub(super) fn group<'a, Q>(
        &'a self,
        group: &Q,
    ) -> impl Iterator<Item = &'a V> + use<'a, G, N, V, Q>
    where
        G: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let own = self.groups.get(group).into_iter();
        own.flat_map(BTreeMap::values)
    }

    /// The objects of all groups from `first` on, in the order of the groups.
    pub(super) fn groups_from(&self, first: G) -> impl Iterator<Item = (&G, &V)> {
        let groups = self.groups.range(first..);
        groups.flat_map(|(group, own)| own.values().map(move |object| (group, object)))
    }

    /// All objects.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.groups.values().flat_map(BTreeMap::values)
    }

    /// The names of all objects.
    pub(super) fn names(&self) -> impl Iterator<Item = &N> {
        self.group_of.keys()
    }

    fn get(&self, name: &N) -> Option<&V> {
        self.groups.get(self.group_of.get(name)?)?.get(name)
    }
}
