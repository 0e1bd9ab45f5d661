//! Everything that one PolicyServer's evaluators must hold, under one version.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    digest::{Digest, Framed, Version},
    policy::{Policy, RevisionId},
};

#[cfg(test)]
mod tests;

/// An immutable set of revisions and routes. Equal content has an equal version on every
/// replica of the control plane and after every restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    version: Version,
    policies: BTreeMap<RevisionId, Arc<Policy>>,
    routes: BTreeMap<Arc<str>, Arc<Route>>,
}

/// What one webhook path evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path below `/validate/`.
    pub path: Arc<str>,
    /// Evaluated in order.
    pub revisions: Vec<RevisionId>,
    /// Where in its life the route is; whatever it is, `revisions` answer it.
    pub state: RouteState,
}

/// Where in its life a route is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteState {
    /// The webhook points at it.
    Active,
    /// It is being rolled out.
    Candidate,
    /// The webhook pointed at it until recently.
    Retired,
}

/// What a set has that another has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Revisions that are new or whose content differs.
    pub policies: Vec<Arc<Policy>>,
    /// Revisions that are gone.
    pub removed_revisions: Vec<RevisionId>,
    /// Routes that are new or differ.
    pub routes: Vec<Arc<Route>>,
    /// Paths that are gone.
    pub removed_routes: Vec<Arc<str>>,
}

// === impl Snapshot ===

impl Snapshot {
    /// Collects revisions and routes; the last of equal names wins.
    pub fn new(
        policies: impl IntoIterator<Item = Arc<Policy>>,
        routes: impl IntoIterator<Item = Arc<Route>>,
    ) -> Self {
        let policies: BTreeMap<_, _> = policies
            .into_iter()
            .map(|policy| (policy.revision.clone(), policy))
            .collect();
        let routes: BTreeMap<_, _> = routes
            .into_iter()
            .map(|route| (route.path.clone(), route))
            .collect();
        Self::of_maps(policies, routes)
    }

    fn of_maps(
        policies: BTreeMap<RevisionId, Arc<Policy>>,
        routes: BTreeMap<Arc<str>, Arc<Route>>,
    ) -> Self {
        let version = version(
            policies
                .iter()
                .map(|(id, p)| (id.as_str(), p.content_digest)),
            routes.values().map(AsRef::as_ref),
        );
        Self {
            version,
            policies,
            routes,
        }
    }

    /// The set without a policy in it.
    pub fn empty() -> Self {
        Self::new([], [])
    }

    /// The set with revisions inserted or removed, each with the one route that goes with it.
    pub fn with(
        &self,
        changes: impl IntoIterator<Item = (RevisionId, Option<(Arc<Policy>, RouteState)>)>,
    ) -> Self {
        let mut policies = self.policies.clone();
        let mut routes = self.routes.clone();
        for (revision, place) in changes {
            match place {
                Some((policy, state)) => {
                    let route = Route::of(&revision, state);
                    routes.insert(route.path.clone(), Arc::new(route));
                    policies.insert(revision, policy);
                }
                None => {
                    routes.remove(revision.as_str());
                    policies.remove(&revision);
                }
            }
        }
        Self::of_maps(policies, routes)
    }

    /// SHA-256 over the content.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Revisions in the order of their names.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// Routes in the order of their paths.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Arc<Route>> {
        self.routes.values()
    }

    /// One revision.
    pub fn get(&self, revision: &str) -> Option<&Arc<Policy>> {
        self.policies.get(revision)
    }

    /// Whether the revision is part of the set.
    pub fn contains(&self, revision: &str) -> bool {
        self.policies.contains_key(revision)
    }

    /// Whether `held` names exactly the revisions of this set.
    pub fn holds_exactly(&self, held: &BTreeMap<String, Digest>) -> bool {
        held.len() == self.policies.len()
            && self
                .policies
                .values()
                .all(|p| held.get(p.revision.as_str()) == Some(&p.content_digest))
    }

    /// Names of revisions that only one of the two sets has.
    pub fn changed_revisions(&self, other: &Snapshot) -> Vec<RevisionId> {
        let only = |a: &Snapshot, b: &Snapshot| -> Vec<RevisionId> {
            let only = a.policies.keys().filter(|id| !b.policies.contains_key(*id));
            only.cloned().collect()
        };
        let mut changed = only(self, other);
        changed.extend(only(other, self));
        changed
    }

    /// What someone who has `from` lacks. One walk over both sets; equal `Arc`s are not
    /// looked into.
    pub fn delta_from(&self, from: &Snapshot) -> Delta {
        let policies = self.policies.iter().filter(|(id, new)| {
            let old = from.policies.get(*id);
            !old.is_some_and(|o| Arc::ptr_eq(o, new) || o.content_digest == new.content_digest)
        });
        let routes = self.routes.iter().filter(|(path, new)| {
            let old = from.routes.get(*path);
            !old.is_some_and(|o| Arc::ptr_eq(o, new) || o == *new)
        });
        let gone = from
            .policies
            .keys()
            .filter(|id| !self.policies.contains_key(*id));
        let gone_routes = from
            .routes
            .keys()
            .filter(|path| !self.routes.contains_key(*path));
        Delta {
            policies: policies.map(|(_, new)| new.clone()).collect(),
            removed_revisions: gone.cloned().collect(),
            routes: routes.map(|(_, new)| new.clone()).collect(),
            removed_routes: gone_routes.cloned().collect(),
        }
    }

    /// What someone who claims to hold `held` lacks; its routes are not known, so all go.
    pub fn delta_from_claim(&self, held: &BTreeMap<String, Digest>) -> Delta {
        let missing = self
            .policies
            .values()
            .filter(|p| held.get(p.revision.as_str()) != Some(&p.content_digest));
        let gone = held.keys().filter(|id| !self.contains(id));
        Delta {
            policies: missing.cloned().collect(),
            removed_revisions: gone.map(|id| RevisionId::from_wire(id)).collect(),
            routes: self.routes.values().cloned().collect(),
            removed_routes: Vec::new(),
        }
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::empty()
    }
}

// === impl Route ===

impl Route {
    /// The route of one revision: its path is the revision's name.
    pub fn of(revision: &RevisionId, state: RouteState) -> Self {
        Self {
            path: revision.as_str().into(),
            revisions: vec![revision.clone()],
            state,
        }
    }
}

// === impl RouteState ===

impl RouteState {
    /// The number of the wire's enum.
    pub fn number(self) -> u8 {
        match self {
            RouteState::Active => 1,
            RouteState::Candidate => 2,
            RouteState::Retired => 3,
        }
    }
}

/// The version of a set. Both iterators must be in the byte order of their names, without
/// repetition.
pub fn version<'a>(
    policies: impl ExactSizeIterator<Item = (&'a str, Digest)>,
    routes: impl ExactSizeIterator<Item = &'a Route>,
) -> Version {
    let mut hash = Framed::new("assent.snapshot.v1");
    hash.count(policies.len());
    for (revision, content) in policies {
        hash.field(revision.as_bytes());
        hash.raw(content.as_bytes());
    }
    hash.count(routes.len());
    for route in routes {
        hash.field(route.path.as_bytes());
        hash.count(route.revisions.len());
        for revision in &route.revisions {
            hash.field(revision.as_str().as_bytes());
        }
        hash.u8(route.state.number());
    }
    hash.version()
}
