//! What to do about an announced set: pure functions from what is announced and loaded to
//! what to prepare, and to what each path is answered by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{Digest, Policy, RevisionId, Route, RouteState, Version};

use crate::{
    announced::{Announced, Routes},
    failure::{Failure, Stage},
};

#[cfg(test)]
mod tests;

pub(crate) type Loaded = BTreeMap<RevisionId, Arc<Policy>>;
pub(crate) type Failed = BTreeMap<RevisionId, Failure>;

/// The way from what is loaded to what is announced.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Loaded already, with equal content.
    pub(crate) keep: Vec<RevisionId>,
    /// To be fetched, compiled and tested; equal content is shared, not made again.
    pub(crate) prepare: Vec<Arc<Policy>>,
    /// Known not to load, without trying.
    pub(crate) failed: Failed,
}

/// What each path is answered by, decided before the swap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) version: Version,
    pub(crate) paths: BTreeMap<Arc<str>, Path>,
    /// Loaded revisions that stay: announced ones and last good ones of rejected policies.
    pub(crate) stay: BTreeSet<RevisionId>,
    /// Whether each active route is answered by the very revisions that it names.
    pub(crate) active_complete: bool,
}

/// One path of the layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    pub(crate) state: RouteState,
    pub(crate) answer: Answer,
}

/// Who answers a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    By(Vec<RevisionId>),
    /// Announced, but not loaded; why.
    NotLoaded(String),
}

/// A revision's name taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed<'a> {
    pub(crate) policy: &'a str,
    pub(crate) generation: i64,
    pub(crate) uid: &'a str,
}

/// Decides what to do about each revision of `candidate`. `offered` came with its content in
/// this response and is tried anew; a failure of one that was not stands. `poisoned` content,
/// and any content with a `poisoned` module, brought this process down before and is never
/// tried.
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
            (Err(why), _, _) => {
                let failure = Failure::lasting(Stage::Verify, why.clone());
                plan.failed.insert(revision.clone(), failure);
            }
            (_, Some(failure), _) if !same => {
                plan.failed.insert(revision.clone(), failure.clone());
            }
            (_, _, Some(failure)) => {
                plan.failed.insert(revision.clone(), failure.clone());
            }
            // What failed at run time is offered again to be made afresh.
            _ if same && !failed.contains_key(revision) => plan.keep.push(revision.clone()),
            (Ok(policy), _, _) => plan.prepare.push(policy.clone()),
        }
    }
    plan
}

/// Decides what each path is answered by, once `loaded` is what could be loaded.
pub(crate) fn layout(announced: &Announced, loaded: &Loaded, failed: &Failed) -> Layout {
    let mut layout = Layout {
        version: announced.version(),
        paths: BTreeMap::new(),
        stay: BTreeSet::new(),
        active_complete: true,
    };
    for revision in announced.offers().keys() {
        if serves(announced, loaded, revision) {
            layout.stay.insert(revision.clone());
        }
    }
    for revision in last_good(announced, loaded) {
        layout.add_last_good(revision);
    }
    for (path, route) in announced.routes() {
        layout.add_route(path, route, announced, loaded, failed);
    }
    layout
}

// === impl Layout ===

impl Layout {
    /// The old path of a last good revision stays answered, as while it drained.
    fn add_last_good(&mut self, revision: &RevisionId) {
        let path = Path {
            state: RouteState::Retired,
            answer: Answer::By(vec![revision.clone()]),
        };
        self.stay.insert(revision.clone());
        self.paths.insert(revision.as_str().into(), path);
    }

    /// Routes that name who answers them here. A set that is read back from disk lacks the
    /// revisions that were not loaded, and with them whether they mutate.
    pub(crate) fn answered(&self, routes: &Routes) -> Routes {
        let entry = |(path, route): (&Arc<str>, &Arc<Route>)| {
            let route = match self.paths.get(path).map(|path| &path.answer) {
                Some(Answer::By(revisions)) if *revisions != route.revisions => Arc::new(Route {
                    revisions: revisions.clone(),
                    ..(**route).clone()
                }),
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
        let answer = match missing {
            None => Answer::By(route.revisions.clone()),
            Some(missing) => {
                self.active_complete &= route.state != RouteState::Active;
                match stand_in(route, missing, announced, loaded) {
                    Some(revision) => {
                        self.stay.insert(revision.clone());
                        Answer::By(vec![revision])
                    }
                    None => not_loaded(missing, failed),
                }
            }
        };
        let state = route.state;
        self.paths.insert(path.clone(), Path { state, answer });
    }
}

// === impl Parsed ===

impl<'a> Parsed<'a> {
    /// Reads `<policy>/<generation>-<uid8>`.
    pub(crate) fn read(path: &'a str) -> Option<Self> {
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
    pub(crate) fn same_object(&self, other: &Parsed<'_>) -> bool {
        self.policy == other.policy && self.uid == other.uid
    }
}

/// A revision counts as served when what is loaded under its name is what was announced.
fn serves(announced: &Announced, loaded: &Loaded, revision: &RevisionId) -> bool {
    match (announced.offers().get(revision), loaded.get(revision)) {
        (Some(offer), Some(have)) => offer.content_digest == have.content_digest,
        _ => false,
    }
}

/// Revisions that are no longer announced but still needed: of each object that is
/// announced and of which nothing announced could be loaded, the newest one that is loaded.
fn last_good<'a>(announced: &Announced, loaded: &'a Loaded) -> Vec<&'a RevisionId> {
    let mut bereft: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for revision in announced.offers().keys() {
        if let Some(name) = Parsed::read(revision.as_str()) {
            let bereft = bereft.entry((name.policy, name.uid)).or_insert(true);
            *bereft &= !serves(announced, loaded, revision);
        }
    }
    let mut newest: BTreeMap<(&str, &str), (i64, &RevisionId)> = BTreeMap::new();
    for revision in loaded.keys() {
        if let Some(name) = Parsed::read(revision.as_str())
            && bereft.get(&(name.policy, name.uid)) == Some(&true)
        {
            let found = (name.generation, revision);
            let best = newest.entry((name.policy, name.uid)).or_insert(found);
            *best = (*best).max(found);
        }
    }
    newest.into_values().map(|(_, revision)| revision).collect()
}

fn related(revision: &str, have: &Policy) -> bool {
    match (Parsed::read(revision), Parsed::read(have.revision.as_str())) {
        (Some(a), Some(b)) => a.same_object(&b),
        _ => false,
    }
}

/// Where the webhook points at a revision that is not loaded here, the newest older one of
/// the same object answers. Never across a change of `mutating`: a validating webhook may
/// not return a patch, and a mutating one would lose it.
fn stand_in(
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
    let wanted = Parsed::read(missing.as_str())?;
    let offer = announced.offers().get(missing)?;
    let mutating = offer
        .body
        .as_ref()
        .ok()
        .map(|policy| policy.content.mutating);
    loaded
        .values()
        .filter(|have| related(missing.as_str(), have) && have.generation < wanted.generation)
        .filter(|have| mutating.is_none_or(|mutating| have.content.mutating == mutating))
        .max_by_key(|have| have.generation)
        .map(|have| have.revision.clone())
}

fn not_loaded(missing: &RevisionId, failed: &Failed) -> Answer {
    Answer::NotLoaded(match failed.get(missing) {
        Some(failure) => format!("{missing}: {}: {}", failure.stage.name(), failure.message),
        None => format!("{missing} is not loaded yet"),
    })
}
