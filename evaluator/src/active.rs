//! The set of policies that answers requests: immutable, replaced as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use assent_core::{RevisionId, RouteState, Version, policy::is_for_requests};

use crate::{
    envoy::RequestTable,
    evaluation::{LoadedPolicy, Route},
    metrics::Metrics,
    plan::{RevisionName, RoutingTable, Row, Target},
};

#[cfg(test)]
mod tests;

/// The set in place: requests read it, the sync loop replaces it.
#[derive(Default)]
pub(crate) struct ActiveSet {
    current: ArcSwap<PolicySet>,
    history: Mutex<History>,
}

/// The policies that one request sees.
#[derive(Default)]
pub(crate) struct PolicySet {
    /// None before the first set: "not known yet" is not "empty".
    version: Option<Version>,
    paths: HashMap<Arc<str>, Entry>,
    /// The retired ones of `paths`: health checks look at them alone.
    retired: Vec<(Arc<str>, Arc<AtomicU64>)>,
    /// Per object (policy and uid): what answers paths that are no longer in the table.
    objects: HashMap<String, Object>,
    /// The policies that decide about requests at Envoy.
    requests: RequestTable,
}

/// The loaded revisions, by name.
pub(crate) type LoadedPolicies = HashMap<String, Arc<LoadedPolicy>>;

struct Entry {
    state: RouteState,
    answer: Answer,
    /// Requests since the last health check; counted on retired paths.
    requests: Arc<AtomicU64>,
}

#[derive(Clone)]
enum Answer {
    Route(Arc<Route>),
    /// The reason.
    NotLoaded(Arc<str>),
}

struct Object {
    active: Option<Arc<Route>>,
    /// `mutating` of the generations that were seen; empty if it never changed.
    mutating: Generations,
}

/// `mutating` of the generations that were seen, per object.
type History = HashMap<String, Generations>;
type Generations = BTreeMap<i64, bool>;

/// Why nothing is answered before the first set.
const NO_SET: &str = "no set of policies has been loaded yet";

/// Generations remembered per object; webhooks point at one of the last few.
const REMEMBERED: usize = 64;

/// What answers a path.
pub(crate) enum Lookup {
    Route(Arc<Route>),
    /// Announced or about to be, but not loaded, and why.
    NotLoaded(String),
    /// No policy of this set has or had this path.
    Unknown,
}

// === impl ActiveSet ===

impl ActiveSet {
    /// The set as it is now; a request loads it once.
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<PolicySet>> {
        self.current.load()
    }

    /// The same for longer than a lookup.
    pub(crate) fn load_full(&self) -> Arc<PolicySet> {
        self.current.load_full()
    }

    /// Replaces the set. One store: no request sees half of it.
    pub(crate) fn swap(&self, table: &RoutingTable, loaded: &LoadedPolicies) {
        let before = self.current.load_full();
        let entry = |(path, row): (&Arc<str>, &Row)| {
            let requests = before.paths.get(path).map(|entry| entry.requests.clone());
            let entry = Entry {
                state: row.state,
                answer: Answer::of(&row.target, loaded),
                requests: requests.unwrap_or_default(),
            };
            (path.clone(), entry)
        };
        let paths: HashMap<_, _> = table.rows.iter().map(entry).collect();
        let retired = paths
            .iter()
            .filter(|(_, entry)| entry.state == RouteState::Retired)
            .map(|(path, entry)| (path.clone(), entry.requests.clone()));
        let set = PolicySet {
            version: Some(table.version),
            retired: retired.collect(),
            objects: self.objects(&paths, loaded),
            paths,
            requests: RequestTable::new(table, |row| request_policy(row, loaded)),
        };
        self.current.store(Arc::new(set));
    }

    /// Requests on retired paths since the last call.
    pub(crate) fn take_retired(&self) -> Vec<(String, u64)> {
        let set = self.current.load();
        let counted = set.retired.iter().filter_map(|(path, requests)| {
            let count = requests.swap(0, Relaxed);
            (count > 0).then(|| (path.to_string(), count))
        });
        counted.collect()
    }

    /// Adds counts again that could not be reported.
    pub(crate) fn restore_retired(&self, counts: &[(String, u64)]) {
        let set = self.current.load();
        for (path, count) in counts {
            if let Some(entry) = set.paths.get(path.as_str()) {
                entry.requests.fetch_add(*count, Relaxed);
            }
        }
    }

    fn objects(
        &self,
        paths: &HashMap<Arc<str>, Entry>,
        loaded: &LoadedPolicies,
    ) -> HashMap<String, Object> {
        let mut history = self
            .history
            .lock()
            .expect("the history's lock must not be poisoned");
        for one in loaded.values() {
            if let Some(key) = object_key(one.policy.revision.as_str()) {
                let seen = history.entry(key).or_default();
                remember(seen, one.policy.generation, one.policy.content.mutating);
            }
        }
        let mut objects = HashMap::new();
        // An object without a loaded revision is known too: its paths are not loaded yet.
        let names = paths.keys().map(AsRef::as_ref);
        for name in names.chain(loaded.keys().map(String::as_str)) {
            if let Some(key) = object_key(name) {
                let mutating = history.get(&key).map(changes).unwrap_or_default();
                let active = None;
                objects.entry(key).or_insert(Object { active, mutating });
            }
        }
        for (path, entry) in paths {
            let Answer::Route(route) = &entry.answer else {
                continue;
            };
            let object = object_key(path).and_then(|key| objects.get_mut(&key));
            if let (RouteState::Active, [_], Some(object)) = (entry.state, route.policies(), object)
            {
                object.active = Some(route.clone());
            }
        }
        history.retain(|key, _| objects.contains_key(key));
        objects
    }
}

// === impl PolicySet ===

impl PolicySet {
    /// The policies that decide about requests at Envoy; an error if no set is known yet.
    pub(crate) fn requests(&self) -> Result<&RequestTable, &'static str> {
        match self.version {
            Some(_) => Ok(&self.requests),
            None => Err(NO_SET),
        }
    }

    /// What answers `path`; counts requests on paths that should have none.
    pub(crate) fn find(&self, path: &str, metrics: &Metrics) -> Lookup {
        if is_for_requests(path) {
            return Lookup::Unknown;
        }
        if let Some(entry) = self.paths.get(path) {
            if entry.state == RouteState::Retired {
                entry.requests.fetch_add(1, Relaxed);
                metrics.retired_path_requests.inc();
            }
            return match &entry.answer {
                Answer::Route(route) => Lookup::Route(route.clone()),
                Answer::NotLoaded(why) => Lookup::NotLoaded(why.to_string()),
            };
        }
        if self.version.is_none() {
            return Lookup::NotLoaded(NO_SET.into());
        }
        self.find_past(path, metrics)
    }

    /// The routes of other loaded revisions of the policy object that `path` belongs to. Looks at every path.
    pub(crate) fn other_revisions(&self, path: &str) -> impl Iterator<Item = Arc<Route>> {
        let object = object_key(path);
        let others = self.paths.iter().filter(move |(other, _)| {
            other.as_ref() != path && object.is_some() && object_key(other) == object
        });
        others.filter_map(|(_, entry)| match &entry.answer {
            Answer::Route(route) => Some(route.clone()),
            Answer::NotLoaded(_) => None,
        })
    }

    /// A path that is not in the table: an older generation of a known object is answered by the active revision, a
    /// newer one is not loaded yet.
    fn find_past(&self, path: &str, metrics: &Metrics) -> Lookup {
        let Some(name) = RevisionName::parse(path) else {
            return Lookup::Unknown;
        };
        let Some(object) = object_key(path).and_then(|key| self.objects.get(&key)) else {
            return Lookup::Unknown;
        };
        let Some((route, [active])) = object.active.as_ref().map(|it| (it, it.policies())) else {
            return Lookup::NotLoaded(format!("no revision of {} is active yet", name.policy));
        };
        if name.generation > active.policy.generation {
            return Lookup::NotLoaded(format!("{path} is not loaded yet"));
        }
        let now = active.policy.content.mutating;
        if mutating_at(&object.mutating, name.generation).is_some_and(|then| then != now) {
            return Lookup::NotLoaded(format!(
                "{path} is gone, and the active revision differs in whether it mutates"
            ));
        }
        metrics.retired_path_requests.inc();
        Lookup::Route(route.clone())
    }
}

// === impl Answer ===

impl Answer {
    fn of(target: &Target, loaded: &LoadedPolicies) -> Self {
        match target {
            Target::Revisions(revisions) => Self::route(revisions, loaded),
            Target::NotLoaded(why) => Self::NotLoaded(why.as_str().into()),
        }
    }

    fn route(revisions: &[RevisionId], loaded: &LoadedPolicies) -> Self {
        let policies: Option<Vec<_>> = revisions
            .iter()
            .map(|revision| loaded.get(revision.as_str()).cloned())
            .collect();
        match policies.and_then(Route::new) {
            Some(route) => Self::Route(Arc::new(route)),
            None => Self::NotLoaded("the route names no revision that is loaded".into()),
        }
    }
}

/// The policy that decides about requests on this row.
fn request_policy(row: &Row, loaded: &LoadedPolicies) -> Result<Arc<LoadedPolicy>, Arc<str>> {
    let found = match &row.target {
        Target::NotLoaded(why) => return Err(why.as_str().into()),
        Target::Revisions(revisions) => match revisions.as_slice() {
            [revision] => loaded.get(revision.as_str()),
            _ => None,
        },
    };
    let found = found.filter(|one| one.policy.content.requests.is_some());
    found.cloned().ok_or_else(|| {
        Arc::from("the route names no revision that is loaded and decides about requests")
    })
}

fn object_key(revision: &str) -> Option<String> {
    RevisionName::parse(revision).map(|name| format!("{}\n{}", name.policy, name.uid))
}

fn remember(seen: &mut Generations, generation: i64, mutating: bool) {
    seen.insert(generation, mutating);
    while seen.len() > REMEMBERED {
        seen.pop_first();
    }
}

/// The generations that were seen, if they differ in `mutating`.
fn changes(seen: &Generations) -> Generations {
    let mut values = seen.values();
    let first = values.next();
    if values.all(|value| Some(value) == first) {
        return Generations::new();
    }
    seen.clone()
}

/// `mutating` of a generation, or of the last one before it that was seen; generations before the first that was
/// seen count as that one.
fn mutating_at(seen: &Generations, generation: i64) -> Option<bool> {
    let before = seen.range(..=generation).next_back();
    before.or_else(|| seen.iter().next()).map(|(_, is)| *is)
}
