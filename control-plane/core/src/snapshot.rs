//! Everything that one PolicyServer's evaluators must hold, under one version.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    digest::{Digest, Framed, Version},
    policy::{Policy, RevisionId},
};

mod chunks;
#[cfg(test)]
mod tests;
mod trail;

use chunks::{Chunks, Entry};
use trail::{Computed, Trail};

/// The prefix of what a version is computed from.
const DOMAIN: &str = "assent.snapshot.v1";

/// An immutable set of revisions and routes. Equal content has an equal version on every
/// replica of the control plane and after every restart.
#[derive(Clone)]
pub struct Snapshot {
    version: Version,
    policies: Chunks<Policy>,
    routes: Chunks<Route>,
    /// The states of the hash from which the version of the next snapshot continues.
    trail: Arc<Trail>,
    /// The trail of the last predecessor that had another number of policies.
    other_trail: Option<Arc<Trail>>,
    hashed: usize,
}

/// What one webhook path evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path below `/validate/`.
    pub path: Arc<str>,
    /// Evaluated in order.
    pub revisions: Vec<RevisionId>,
    /// The state of the route; `revisions` answer it in every state.
    pub state: RouteState,
}

/// The state of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteState {
    /// The webhook points at it.
    Active,
    /// It is being rolled out.
    Candidate,
    /// The webhook pointed at it until recently.
    Retired,
}

/// The difference between two sets.
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
        let policies = policies.into_iter().map(|p| (p.revision.clone(), p));
        let policies: BTreeMap<RevisionId, Arc<Policy>> = policies.collect();
        let routes = routes.into_iter().map(|r| (r.path.clone(), r));
        let routes: BTreeMap<Arc<str>, Arc<Route>> = routes.collect();
        let policies = Chunks::from_sorted(policies.into_values());
        Self::of(policies, Chunks::from_sorted(routes.into_values()), None)
    }

    fn of(policies: Chunks<Policy>, routes: Chunks<Route>, predecessor: Option<&Snapshot>) -> Self {
        let before = predecessor.map(|p| &p.trail);
        let other = predecessor.and_then(|p| p.other_trail.as_ref());
        let earlier: Vec<&Trail> = before.into_iter().chain(other).map(|t| &**t).collect();
        let Computed {
            version,
            trail,
            hashed,
        } = Trail::compute(&policies, &routes, &earlier);
        let is_other = |t: &&Arc<Trail>| !t.is_comparable(&trail);
        let other_trail = before.filter(is_other).or(other.filter(is_other)).cloned();
        Self {
            version,
            policies,
            routes,
            trail: Arc::new(trail),
            other_trail,
            hashed,
        }
    }

    /// The set without a policy in it.
    pub fn empty() -> Self {
        Self::new([], [])
    }

    /// The set with revisions inserted or removed, each with the one route that goes with it.
    /// It costs what changes, besides a pointer for every hundred policies and hashing.
    pub fn with(
        &self,
        changes: impl IntoIterator<Item = (RevisionId, Option<(Arc<Policy>, RouteState)>)>,
    ) -> Self {
        let changes: Vec<_> = changes.into_iter().collect();
        let policies = changes.iter().filter_map(|(revision, place)| {
            let policy = place.as_ref().map(|(policy, _)| policy.clone());
            let same = self.get(revision.as_str()).zip(policy.as_ref());
            // An equal entry keeps its chunk, and with it the hash.
            let is_same = same.is_some_and(|(old, new)| Arc::ptr_eq(old, new) || old == new);
            (!is_same).then_some((revision.as_str(), policy))
        });
        let routes = changes.iter().map(|(revision, place)| {
            let route = |state| Arc::new(Route::of(revision, state));
            let state = place.as_ref().map(|(_, state)| *state);
            (revision.as_str(), state.map(route))
        });
        let (policies, routes) = (self.policies.with(policies), self.routes.with(routes));
        Self::of(policies, routes, Some(self))
    }

    /// Whether the set has exactly this of a revision.
    pub fn has(&self, revision: &RevisionId, place: Option<&(Arc<Policy>, RouteState)>) -> bool {
        let policy = self.get(revision.as_str());
        let route = self.routes.get(revision.as_str());
        match (place, policy, route) {
            (None, None, None) => true,
            (Some((new, state)), Some(old), Some(route)) => {
                (Arc::ptr_eq(old, new) || old == new)
                    && *route.as_ref() == Route::of(revision, *state)
            }
            _ => false,
        }
    }

    /// How many bytes were hashed for the version: fewer than all, if it was computed from
    /// where a predecessor begins to differ.
    pub fn hashed_bytes(&self) -> usize {
        self.hashed
    }

    /// SHA-256 over the content.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Revisions in the order of their names.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &Arc<Policy>> {
        self.policies.iter()
    }

    /// Routes in the order of their paths.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Arc<Route>> {
        self.routes.iter()
    }

    /// One revision.
    pub fn get(&self, revision: &str) -> Option<&Arc<Policy>> {
        self.policies.get(revision)
    }

    /// Whether the revision is part of the set.
    pub fn contains(&self, revision: &str) -> bool {
        self.policies.get(revision).is_some()
    }

    /// Whether `held` names exactly the revisions of this set.
    pub fn holds_exactly(&self, held: &BTreeMap<String, Digest>) -> bool {
        let is_held = |p: &Arc<Policy>| held.get(p.revision.as_str()) == Some(&p.content_digest);
        held.len() == self.policies.len() && self.policies.iter().all(is_held)
    }

    /// Names of revisions that only one of the two sets has.
    pub fn changed_revisions(&self, other: &Snapshot) -> Vec<RevisionId> {
        let mut changed = Vec::new();
        Chunks::compare(&self.policies, &other.policies, |a, b| match (a, b) {
            (Some(only), None) | (None, Some(only)) => changed.push(only.revision.clone()),
            _ => {}
        });
        changed
    }

    /// What a client that has `from` lacks. Only chunks that differ are looked into, so that
    /// the difference to a predecessor costs what changed.
    pub fn delta_from(&self, from: &Snapshot) -> Delta {
        let mut delta = Delta::default();
        Chunks::compare(&from.policies, &self.policies, |old, new| {
            match (old, new) {
                (Some(old), None) => delta.removed_revisions.push(old.revision.clone()),
                (Some(old), Some(new)) if old.content_digest == new.content_digest => {}
                (_, Some(new)) => delta.policies.push(new.clone()),
                (None, None) => {}
            }
        });
        Chunks::compare(&from.routes, &self.routes, |old, new| match (old, new) {
            (Some(old), None) => delta.removed_routes.push(old.path.clone()),
            (Some(old), Some(new)) if old == new => {}
            (_, Some(new)) => delta.routes.push(new.clone()),
            (None, None) => {}
        });
        delta
    }

    /// What a client that claims to hold `held` lacks. Its routes are unknown, so that all are sent.
    pub fn delta_from_claim(&self, held: &BTreeMap<String, Digest>) -> Delta {
        let is_missing =
            |p: &&Arc<Policy>| held.get(p.revision.as_str()) != Some(&p.content_digest);
        let missing = self.policies.iter().filter(is_missing);
        let gone = held.keys().filter(|id| !self.contains(id));
        Delta {
            policies: missing.cloned().collect(),
            removed_revisions: gone.map(|id| RevisionId::from_wire(id)).collect(),
            routes: self.routes.iter().cloned().collect(),
            removed_routes: Vec::new(),
        }
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

impl Eq for Snapshot {}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes().map(|r| (&r.path, r.state));
        f.debug_struct("Snapshot")
            .field("version", &self.version)
            .field("routes", &routes.collect::<Vec<_>>())
            .finish()
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

impl Entry for Route {
    fn name(&self) -> &str {
        &self.path
    }

    fn encode(&self, out: &mut Vec<u8>) {
        field(&self.path, out);
        count(self.revisions.len(), out);
        for revision in &self.revisions {
            field(revision.as_str(), out);
        }
        out.push(self.state.number());
    }
}

// === impl Policy ===

impl Entry for Policy {
    fn name(&self) -> &str {
        self.revision.as_str()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_policy(self.revision.as_str(), &self.content_digest, out);
    }
}

/// The version of a set. Both iterators must be in the byte order of their names, without
/// repetition.
pub fn version<'a>(
    policies: impl ExactSizeIterator<Item = (&'a str, Digest)>,
    routes: impl ExactSizeIterator<Item = &'a Route>,
) -> Version {
    let mut hash = Framed::new(DOMAIN);
    let mut encoded = Vec::new();
    hash.count(policies.len());
    for (revision, content) in policies {
        encoded.clear();
        encode_policy(revision, &content, &mut encoded);
        hash.encoded(&encoded);
    }
    hash.count(routes.len());
    for route in routes {
        encoded.clear();
        route.encode(&mut encoded);
        hash.encoded(&encoded);
    }
    hash.version()
}

fn encode_policy(revision: &str, content: &Digest, out: &mut Vec<u8>) {
    field(revision, out);
    out.extend_from_slice(content.as_bytes());
}

fn field(text: &str, out: &mut Vec<u8>) {
    count(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn count(n: usize, out: &mut Vec<u8>) {
    let n = u32::try_from(n).expect("a snapshot must hold fewer than 2^32 bytes");
    out.extend_from_slice(&n.to_be_bytes());
}
