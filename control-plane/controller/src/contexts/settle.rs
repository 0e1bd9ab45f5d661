//! Decides which kinds and collections are followed, and which PolicyServers get them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_context::{CollectionId, CollectionSpec};
use assent_core::Millis;

use super::{
    Assignment, CollectionState, ContextChanges, Contexts, Entry, FollowedCollection, KindRef,
    LINGER, Need,
};

// === impl Contexts ===

impl Contexts {
    /// Decides what is followed and who gets it.
    pub(crate) fn settle(&mut self, now: Millis) -> ContextChanges {
        let due = self.deadline().is_some_and(|at| at <= now);
        if !std::mem::take(&mut self.changed) && !due {
            return ContextChanges::default();
        }
        self.collect_kinds();
        self.collect_collections(now);
        let kinds: Vec<KindRef> = self.kinds.keys().cloned().collect();
        let followed = self.to_follow();
        let assigned = self.to_assign();
        let mut changes = ContextChanges::default();
        if self.followed_kinds != kinds {
            self.followed_kinds.clone_from(&kinds);
            changes.kinds = Some(kinds);
        }
        if self.followed != followed {
            self.followed.clone_from(&followed);
            changes.collections = Some(followed);
        }
        let news = assigned
            .values()
            .filter(|a| self.assigned.get(&a.server) != Some(*a));
        changes.assignments = news.cloned().collect();
        self.assigned = assigned;
        changes
    }

    fn collect_kinds(&mut self) {
        let declared = self.needs.values().flat_map(Need::declarations);
        let declared: BTreeSet<KindRef> = declared.map(KindRef::of).collect();
        self.kinds.retain(|kind, _| declared.contains(kind));
        self.resolved.retain(|kind, _| declared.contains(kind));
        for kind in declared {
            self.kinds.entry(kind).or_default();
        }
    }

    fn collect_collections(&mut self, now: Millis) {
        let needed = self.needs.values().flat_map(Need::resources);
        let needed = needed.filter_map(|resource| self.spec(resource));
        let needed: BTreeMap<CollectionId, Arc<CollectionSpec>> =
            needed.map(|spec| (spec.id(), spec)).collect();
        for (id, entry) in &mut self.collections {
            match needed.contains_key(id) {
                true => entry.idle_since = None,
                false => drop(entry.idle_since.get_or_insert(now)),
            }
        }
        self.collections.retain(|_, entry| {
            let given_up =
                entry.report.as_ref().map(|r| r.state) == Some(CollectionState::TooLarge);
            let stays = |since: Millis| now < since + LINGER && !given_up;
            entry.idle_since.is_none_or(stays)
        });
        for (id, spec) in needed {
            self.collections.entry(id).or_insert(Entry {
                spec,
                report: None,
                idle_since: None,
            });
        }
    }

    /// Every collection, with a limit unless a server has it already.
    fn to_follow(&self) -> Vec<FollowedCollection> {
        let mut served = BTreeSet::new();
        let mut limits: BTreeMap<CollectionId, u64> = BTreeMap::new();
        for need in self.needs.values() {
            let specs = need.served.iter().filter_map(|r| self.spec(r));
            served.extend(specs.map(|spec| spec.id()));
            let limit = self.limits(&need.server).memory_bytes;
            for spec in need.prepared.iter().filter_map(|r| self.spec(r)) {
                let highest = limits.entry(spec.id()).or_default();
                *highest = limit.max(*highest);
            }
        }
        let followed = self.collections.iter().map(|(id, entry)| {
            let limit = limits.get(id).filter(|_| !served.contains(id));
            FollowedCollection {
                spec: entry.spec.clone(),
                limit: limit.copied(),
            }
        });
        followed.collect()
    }

    fn to_assign(&self) -> BTreeMap<String, Assignment> {
        let mut all: BTreeMap<String, Assignment> = BTreeMap::new();
        for server in self.limits.keys() {
            all.insert(server.clone(), self.assignment(server));
        }
        for need in self.needs.values() {
            let Some(assignment) = all.get_mut(&need.server) else {
                continue;
            };
            for resource in &need.served {
                match self.spec(resource) {
                    Some(spec) => assignment.collections.push(spec),
                    None => assignment.complete = false,
                }
            }
        }
        for (server, assignment) in &mut all {
            // What nobody needs any more lingers.
            let before = self.assigned.get(server).into_iter();
            let before = before.flat_map(|a| &a.collections);
            let lingering = before.filter(|spec| self.is_idle(&spec.id())).cloned();
            assignment.collections.extend(lingering.collect::<Vec<_>>());
            assignment.collections.sort_by_key(|spec| spec.id());
            assignment.collections.dedup_by_key(|spec| spec.id());
        }
        all
    }

    fn is_idle(&self, id: &CollectionId) -> bool {
        let entry = self.collections.get(id);
        entry.is_some_and(|entry| entry.idle_since.is_some())
    }

    fn assignment(&self, server: &str) -> Assignment {
        Assignment {
            server: server.to_owned(),
            collections: Vec::new(),
            complete: true,
            limits: self.limits(server),
        }
    }
}
