//! Pure decisions about an announced set: which revisions to prepare, and which revisions answer each path.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use assent_core::{Digest, Policy, RevisionId, Route, RouteState, Version, policy::RequestScope};

use crate::{
    announced::{Announced, Routes},
    failure::{Failure, Stage},
};

#[cfg(test)]
mod tests;

pub(crate) type Loaded = BTreeMap<RevisionId, Arc<Policy>>;
pub(crate) type Failed = BTreeMap<RevisionId, Failure>;

/// What leads from the loaded revisions to the announced ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Loaded already, with equal content.
    pub(crate) keep: Vec<RevisionId>,
    /// To be fetched, compiled and tested; equal content is shared, not compiled again.
    pub(crate) prepare: Vec<Arc<Policy>>,
    /// Known not to load; not tried.
    pub(crate) failed: Failed,
}

/// Which revisions answer each path, decided before the swap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoutingTable {
    pub(crate) version: Version,
    pub(crate) rows: BTreeMap<Arc<str>, Row>,
    /// Loaded revisions to keep: announced ones and last good ones of rejected policies.
    pub(crate) retained: BTreeSet<RevisionId>,
    /// Whether each active route is answered by exactly the revisions that it names.
    pub(crate) active_complete: bool,
}

/// One path of the table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) state: RouteState,
    pub(crate) target: Target,
    /// Which requests at Envoy a revision that is not loaded would decide about, if that is known.
    pub(crate) requests: Option<Arc<RequestScope>>,
}

/// What answers a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Revisions(Vec<RevisionId>),
    /// Announced, but not loaded, and why.
    NotLoaded(String),
}

/// The parts of a revision's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RevisionName<'a> {
    pub(crate) policy: &'a str,
    pub(crate) generation: i64,
    pub(crate) uid: &'a str,
}

/// Decides what to do about each revision of `candidate`. Revisions in `offered` came with their content in this
/// response and are tried again; the failure of any other revision stands. `poisoned` content, and any content with
/// a `poisoned` module, crashed this process before and is never tried.
pub(crate) fn plan(
    candidate: &Announced,
    offered: &BTreeSet<RevisionId>,
    loaded: &Loaded,
    failed: &Failed,
    poisoned: &BTreeMap<Digest, Failure>,
) -> Plan {
    let mut plan = Plan::default();
    for (revision, offer) in candidate.offers() {
        let same = loaded
            .get(revision)
            .is_some_and(|have| have.content_digest == offer.content_digest);
        let before = failed.get(revision).filter(|_| !offered.contains(revision));
        let poison = poisoned.get(&offer.content_digest).or_else(|| {
            let policy = offer.body.as_ref().ok()?;
            poisoned.get(&policy.content.module_digest)
        });
        match (&offer.body, poison, before) {
            // What is loaded was verified: a revision whose content the control plane has lost is kept.
            (Err(_), _, None) if same && !failed.contains_key(revision) => {
                plan.keep.push(revision.clone());
            }
            (Err(why), _, _) => {
                let failure = Failure::permanent(Stage::Verify, why.clone());
                plan.failed.insert(revision.clone(), failure);
            }
            (_, Some(failure), _) if !same => {
                plan.failed.insert(revision.clone(), failure.clone());
            }
            (_, _, Some(failure)) => {
                plan.failed.insert(revision.clone(), failure.clone());
            }
            // A revision that failed at run time is offered again to be prepared from scratch.
            _ if same && !failed.contains_key(revision) => plan.keep.push(revision.clone()),
            (Ok(policy), _, _) => plan.prepare.push(policy.clone()),
        }
    }
    plan
}

// === impl RoutingTable ===

impl RoutingTable {
    /// The table for an announced set of which `loaded` could be loaded.
    pub(crate) fn new(announced: &Announced, loaded: &Loaded, failed: &Failed) -> Self {
        let mut table = Self {
            version: announced.version(),
            rows: BTreeMap::new(),
            retained: BTreeSet::new(),
            active_complete: true,
        };
        for revision in announced.offers().keys() {
            if serves(announced, loaded, revision) {
                table.retained.insert(revision.clone());
            }
        }
        for revision in last_good(announced, loaded) {
            table.add_last_good(revision);
        }
        for (path, route) in announced.routes() {
            table.add_route(path, route, announced, loaded, failed);
        }
        table
    }

    /// The path of a last good revision is answered as while it drained.
    fn add_last_good(&mut self, revision: &RevisionId) {
        let row = Row {
            state: RouteState::Retired,
            target: Target::Revisions(vec![revision.clone()]),
            requests: None,
        };
        self.retained.insert(revision.clone());
        self.rows.insert(revision.as_str().into(), row);
    }

    /// The routes with the revisions that answer them here. A set that is restored from disk lacks the revisions
    /// that were not loaded, and with them whether they mutate.
    pub(crate) fn resolve(&self, routes: &Routes) -> Routes {
        let entry = |(path, route): (&Arc<str>, &Arc<Route>)| {
            let route = match self.rows.get(path).map(|row| &row.target) {
                Some(Target::Revisions(revisions)) if *revisions != route.revisions => {
                    Arc::new(Route {
                        revisions: revisions.clone(),
                        ..(**route).clone()
                    })
                }
                _ => route.clone(),
            };
            (path.clone(), route)
        };
        routes.iter().map(entry).collect()
    }

    fn add_route(
        &mut self,
        path: &Arc<str>,
        route: &Route,
        announced: &Announced,
        loaded: &Loaded,
        failed: &Failed,
    ) {
        let missing = route
            .revisions
            .iter()
            .find(|revision| !serves(announced, loaded, revision));
        let target = match missing {
            None => Target::Revisions(route.revisions.clone()),
            Some(missing) => {
                let offer = announced.offers().get(missing);
                let withheld = offer.is_some_and(|offer| offer.withheld);
                self.active_complete &= route.state != RouteState::Active || withheld;
                match fallback(route, missing, announced, loaded) {
                    Some(revision) => {
                        self.retained.insert(revision.clone());
                        Target::Revisions(vec![revision])
                    }
                    None => not_loaded(missing, failed),
                }
            }
        };
        let requests = match &target {
            Target::NotLoaded(_) => missing.and_then(|missing| scope(announced, missing)),
            Target::Revisions(_) => None,
        };
        let row = Row {
            state: route.state,
            target,
            requests,
        };
        self.rows.insert(path.clone(), row);
    }
}

// === impl RevisionName ===

impl<'a> RevisionName<'a> {
    /// Parses `<policy>/<generation>-<uid8>`.
    pub(crate) fn parse(path: &'a str) -> Option<Self> {
        let (policy, last) = path.rsplit_once('/')?;
        let (generation, uid) = last.split_once('-')?;
        let digits = !generation.is_empty() && generation.bytes().all(|b| b.is_ascii_digit());
        Some(Self {
            policy,
            generation: digits.then(|| generation.parse().ok()).flatten()?,
            uid,
        })
    }

    /// Whether both are revisions of one object: same policy, not recreated in between.
    pub(crate) fn same_object(&self, other: &RevisionName<'_>) -> bool {
        self.policy == other.policy && self.uid == other.uid
    }
}

fn scope(announced: &Announced, revision: &RevisionId) -> Option<Arc<RequestScope>> {
    let policy = announced.offers().get(revision)?.body.as_ref().ok()?;
    policy.content.requests.clone()
}

/// Whether the announced content of a revision is loaded under its name.
fn serves(announced: &Announced, loaded: &Loaded, revision: &RevisionId) -> bool {
    match (announced.offers().get(revision), loaded.get(revision)) {
        (Some(offer), Some(have)) => offer.content_digest == have.content_digest,
        _ => false,
    }
}

/// Revisions that are no longer announced but still needed: of each object that is
/// announced and of which nothing announced could be loaded, the newest one that is loaded.
fn last_good<'a>(announced: &Announced, loaded: &'a Loaded) -> Vec<&'a RevisionId> {
    let mut unserved: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for revision in announced.offers().keys() {
        if let Some(name) = RevisionName::parse(revision.as_str()) {
            let unserved = unserved.entry((name.policy, name.uid)).or_insert(true);
            *unserved &= !serves(announced, loaded, revision);
        }
    }
    let mut newest: BTreeMap<(&str, &str), (i64, &RevisionId)> = BTreeMap::new();
    for revision in loaded.keys() {
        if let Some(name) = RevisionName::parse(revision.as_str())
            && unserved.get(&(name.policy, name.uid)) == Some(&true)
        {
            let found = (name.generation, revision);
            let best = newest.entry((name.policy, name.uid)).or_insert(found);
            *best = (*best).max(found);
        }
    }
    newest.into_values().map(|(_, revision)| revision).collect()
}

/// The loaded revisions of one object, oldest name first. Names of one policy are neighbours in the map: the cost is
/// that of the policy's revisions, not of all.
fn loaded_of<'a>(
    object: RevisionName<'a>,
    loaded: &'a Loaded,
) -> impl Iterator<Item = &'a Arc<Policy>> {
    let prefix = format!("{}/", object.policy);
    loaded
        .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
        .take_while(move |(revision, _)| revision.as_str().starts_with(&prefix))
        .filter(move |(revision, _)| {
            let name = RevisionName::parse(revision.as_str());
            name.is_some_and(|name| name.same_object(&object))
        })
        .map(|(_, policy)| policy)
}

/// If the webhook points at a revision that is not loaded here, the newest older one of the same object answers.
/// Never across a change of `mutating`: a validating webhook may not return a patch, and a mutating one would lose
/// it.
fn fallback(
    route: &Route,
    missing: &RevisionId,
    announced: &Announced,
    loaded: &Loaded,
) -> Option<RevisionId> {
    let [only] = route.revisions.as_slice() else {
        return None;
    };
    if route.state != RouteState::Active || only != missing {
        return None;
    }
    let wanted = RevisionName::parse(missing.as_str())?;
    let offer = announced.offers().get(missing)?;
    let mutating = offer
        .body
        .as_ref()
        .ok()
        .map(|policy| policy.content.mutating);
    loaded_of(wanted, loaded)
        .filter(|have| have.generation < wanted.generation)
        .filter(|have| mutating.is_none_or(|mutating| have.content.mutating == mutating))
        .max_by_key(|have| have.generation)
        .map(|have| have.revision.clone())
}

fn not_loaded(missing: &RevisionId, failed: &Failed) -> Target {
    Target::NotLoaded(match failed.get(missing) {
        Some(failure) => format!("{missing}: {}: {}", failure.stage.as_str(), failure.message),
        None => format!("{missing} is not loaded yet"),
    })
}
