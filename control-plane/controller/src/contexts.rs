//! Which collections of Kubernetes objects exist, and which PolicyServers get them.
//!
//! A collection exists while a revision that is served names it, or while a policy that may
//! become a revision waits for it. Whoever runs the controller follows the kinds and collections
//! that it asks for and reports what became of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use assent_api::parse::ContextLimits;
use assent_context::{CollectionId, CollectionSpec};
use assent_core::{Millis, policy::ContextResource, rollout::PolicyId};

mod largest;
mod messages;
mod refusals;
mod settle;
#[cfg(test)]
mod tests;
mod warm;

pub use largest::largest_fields;
pub(crate) use messages::ContextChanges;
pub use messages::{
    Assignment, CollectionReport, CollectionState, ContextEvent, FollowedCollection, KindRef,
    KindState,
};
pub(crate) use refusals::{
    cluster_scoped, kind_absent, kind_forbidden, kind_not_allowed, namespaces_of_cluster_kind,
    no_context, not_granted, not_readable, too_large,
};
pub use warm::WarmContexts;

/// How long a collection stays after its last revision has left: evaluators learn from another
/// stream that the revision is gone, and a policy that is edited back finds its objects again.
const LINGER: Duration = Duration::from_secs(30);

/// What a policy needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) server: String,
    /// What revisions declare that evaluators must hold.
    pub(crate) served: BTreeSet<ContextResource>,
    /// What a generation declares that may become a revision.
    pub(crate) prepared: BTreeSet<ContextResource>,
    /// What the newest generation declares. Its kinds are followed even if it was refused, so that
    /// it is considered again when one of them appears.
    pub(crate) declared: BTreeSet<ContextResource>,
}

/// All kinds and collections that policies need.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    needs: BTreeMap<PolicyId, Need>,
    /// Declared kinds, and what is known of them.
    kinds: BTreeMap<KindRef, Option<KindState>>,
    /// Plural name and scope of kinds that were served before.
    resolved: BTreeMap<KindRef, (String, bool)>,
    collections: BTreeMap<CollectionId, Entry>,
    limits: BTreeMap<String, ContextLimits>,
    /// What was asked for last.
    followed_kinds: Vec<KindRef>,
    followed: Vec<FollowedCollection>,
    assigned: BTreeMap<String, Assignment>,
    /// Something may have changed since the last settling.
    changed: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    spec: Arc<CollectionSpec>,
    report: Option<CollectionReport>,
    /// Nobody needs it since then.
    idle_since: Option<Millis>,
}

// === impl Contexts ===

impl Contexts {
    /// Replaces what a policy needs; nothing if it is gone.
    pub(crate) fn set_need(&mut self, id: &PolicyId, need: Option<Need>) {
        let need = need.filter(|need| need.declarations().next().is_some());
        let before = match need.clone() {
            Some(need) => self.needs.insert(id.clone(), need),
            None => self.needs.remove(id),
        };
        self.changed |= before != need;
    }

    /// The policies of this name that need something.
    pub(crate) fn ids_of(&self, key: &assent_core::PolicyKey) -> Vec<PolicyId> {
        let ids = self.needs.keys().filter(|id| id.key == *key);
        ids.cloned().collect()
    }

    /// Sets what the evaluators of a server may hold.
    pub(crate) fn set_limits(&mut self, server: &str, limits: Option<ContextLimits>) {
        let before = match limits {
            Some(limits) => self.limits.insert(server.to_owned(), limits),
            None => self.limits.remove(server),
        };
        self.changed |= before != limits;
    }

    /// Takes in what is known of a kind; true if that is news.
    pub(crate) fn observe_kind(&mut self, kind: &KindRef, state: KindState) -> bool {
        if let KindState::Served {
            plural, namespaced, ..
        } = &state
        {
            let resolved = (plural.clone(), *namespaced);
            self.resolved.insert(kind.clone(), resolved);
        }
        let Some(known) = self.kinds.get_mut(kind) else {
            return false;
        };
        let news = known.as_ref() != Some(&state);
        *known = Some(state);
        self.changed |= news;
        news
    }

    /// Takes in what is known of a collection; true if its state changed.
    pub(crate) fn observe_collection(
        &mut self,
        id: &CollectionId,
        report: CollectionReport,
    ) -> bool {
        let Some(entry) = self.collections.get_mut(id) else {
            return false;
        };
        let news = entry.report.as_ref().map(|r| r.state) != Some(report.state);
        entry.report = Some(report);
        news
    }

    /// Policies that need a kind.
    pub(crate) fn needing_kind(&self, kind: &KindRef) -> Vec<PolicyId> {
        self.needing(|resource| KindRef::of(resource) == *kind)
    }

    /// Policies that need a collection.
    pub(crate) fn needing_collection(&self, id: &CollectionId) -> Vec<PolicyId> {
        self.needing(|resource| self.spec(resource).is_some_and(|spec| spec.id() == *id))
    }

    /// PolicyServers that a collection is assigned to.
    pub(crate) fn servers_with(&self, id: &CollectionId) -> Vec<String> {
        let has = |a: &&Assignment| a.collections.iter().any(|spec| spec.id() == *id);
        let servers = self.assigned.values().filter(has);
        servers.map(|a| a.server.clone()).collect()
    }

    /// What is known of a declared kind; none until it was looked up.
    pub(crate) fn kind(&self, kind: &KindRef) -> Option<&KindState> {
        self.kinds.get(kind)?.as_ref()
    }

    /// What is known of the collection that a declaration means.
    pub(crate) fn report(&self, resource: &ContextResource) -> Option<&CollectionReport> {
        let id = self.spec(resource)?.id();
        self.collections.get(&id)?.report.as_ref()
    }

    /// The collections of a server, with what is known of them.
    pub(crate) fn reports_of<'a>(
        &'a self,
        server: &str,
    ) -> impl Iterator<Item = (&'a CollectionSpec, Option<&'a CollectionReport>)> {
        let assigned = self.assigned.get(server).into_iter();
        let specs = assigned.flat_map(|a| &a.collections);
        specs.map(|spec| {
            let entry = self.collections.get(&spec.id());
            (&**spec, entry.and_then(|e| e.report.as_ref()))
        })
    }

    /// The bytes that the evaluators of a server hold already, without these declarations.
    pub(crate) fn bytes_besides(&self, server: &str, new: &[ContextResource]) -> u64 {
        let new = new.iter().filter_map(|resource| self.spec(resource));
        let new: BTreeSet<CollectionId> = new.map(|spec| spec.id()).collect();
        let held = self.reports_of(server);
        let held = held.filter(|(spec, _)| !new.contains(&spec.id()));
        held.filter_map(|(_, report)| Some(report?.bytes)).sum()
    }

    /// Whether evaluators of a server get the collection of this declaration already.
    pub(crate) fn is_assigned(&self, server: &str, resource: &ContextResource) -> bool {
        let Some(spec) = self.spec(resource) else {
            return false;
        };
        let assigned = self.assigned.get(server);
        assigned.is_some_and(|a| a.collections.iter().any(|held| held.id() == spec.id()))
    }

    /// What the evaluators of a server may hold.
    pub(crate) fn limits(&self, server: &str) -> ContextLimits {
        self.limits.get(server).copied().unwrap_or_default()
    }

    /// When time alone changes something next.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        let idle = self.collections.values().filter_map(|e| e.idle_since);
        idle.min().map(|since| since + LINGER)
    }

    fn needing(&self, is_needed: impl Fn(&ContextResource) -> bool) -> Vec<PolicyId> {
        let needs = self.needs.iter();
        let needs = needs.filter(|(_, need)| need.declarations().any(&is_needed));
        needs.map(|(id, _)| id.clone()).collect()
    }

    /// The collection that a declaration means; none until its kind was looked up.
    fn spec(&self, resource: &ContextResource) -> Option<Arc<CollectionSpec>> {
        let kind = KindRef::of(resource);
        self.kinds.get(&kind)?.as_ref()?;
        let resolved = self.resolved.get(&kind).cloned();
        let (plural, namespaced) = resolved.unwrap_or_else(|| kind.guess(resource));
        let spec = CollectionSpec::new(resource, &plural, namespaced);
        spec.ok().map(Arc::new)
    }
}

// === impl Need ===

impl Need {
    /// Declarations whose objects are followed.
    fn resources(&self) -> impl Iterator<Item = &ContextResource> {
        self.served.iter().chain(&self.prepared)
    }

    /// Declarations whose kinds are followed.
    fn declarations(&self) -> impl Iterator<Item = &ContextResource> {
        self.resources().chain(&self.declared)
    }
}
