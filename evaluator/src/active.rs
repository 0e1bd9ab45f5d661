//! The set that answers requests: immutable, swapped as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use assent_core::{RouteState, Version};

use crate::{
    gate::Gate,
    metrics::Metrics,
    plan::{Answer, Layout, Parsed},
    served::Served,
};

#[cfg(test)]
mod tests;

/// The one place that requests read and the sync loop writes.
pub(crate) struct Active {
    current: ArcSwap<Set>,
    history: Mutex<History>,
    metrics: Metrics,
    gates: Mutex<HashMap<String, Arc<Gate>>>,
    per_policy: usize,
}

/// What a request sees, whole.
#[derive(Default)]
pub(crate) struct Set {
    /// None before the first set: "not known yet" is not "empty".
    pub(crate) version: Option<Version>,
    paths: HashMap<Arc<str>, Entry>,
    /// Per object (policy and uid): who answers paths that have left the table.
    objects: HashMap<String, Object>,
}

struct Entry {
    state: RouteState,
    target: Target,
    /// Requests since the last health check; counted on retired paths.
    requests: Arc<AtomicU64>,
}

enum Target {
    By(Vec<Arc<Served>>),
    NotLoaded(Arc<str>),
}

struct Object {
    active: Option<Arc<Served>>,
    /// `mutating` of the generations that were seen; empty where it never changed.
    mutating: Generations,
}

/// What is remembered of `mutating`, per object and generation.
type History = HashMap<String, Generations>;
type Generations = BTreeMap<i64, bool>;

/// Generations remembered per object; webhooks point at one of the last few.
const REMEMBERED: usize = 64;

/// Who answers a path.
pub(crate) enum Found {
    By(Vec<Arc<Served>>),
    /// Announced or about to be, but not loaded.
    NotLoaded(String),
    /// No policy of this set has or had this path.
    Unknown,
}

// === impl Active ===

impl Active {
    pub(crate) fn new(metrics: Metrics, per_policy: usize) -> Self {
        Self {
            current: ArcSwap::default(),
            history: Mutex::default(),
            metrics,
            gates: Mutex::default(),
            per_policy,
        }
    }

    /// The set as it is now; a request loads it once.
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<Set>> {
        self.current.load()
    }

    /// The gate of a policy; revisions of it share one, so that a swap frees no capacity
    /// that is still in use.
    pub(crate) fn gate(&self, policy: &str) -> Arc<Gate> {
        let mut gates = self
            .gates
            .lock()
            .expect("the gates' lock must not be poisoned");
        let gate = gates.entry(policy.to_owned());
        gate.or_insert_with(|| Arc::new(Gate::new(self.per_policy)))
            .clone()
    }

    /// Puts a set in place. One store: no request sees half of it.
    pub(crate) fn swap(&self, layout: &Layout, served: &HashMap<String, Arc<Served>>) {
        let before = self.current.load_full();
        let objects = self.objects(layout, served);
        let paths = layout.paths.iter().map(|(path, place)| {
            let target = match &place.answer {
                Answer::By(revisions) => pick(revisions, served),
                Answer::NotLoaded(why) => Target::NotLoaded(why.as_str().into()),
            };
            let requests = before.paths.get(path).map(|entry| entry.requests.clone());
            let entry = Entry {
                state: place.state,
                target,
                requests: requests.unwrap_or_default(),
            };
            (path.clone(), entry)
        });
        let set = Set {
            version: Some(layout.version),
            paths: paths.collect(),
            objects,
        };
        self.current.store(Arc::new(set));
        self.forget_gone(&before, served);
    }

    /// Requests on retired paths since the last call.
    pub(crate) fn take_retired(&self) -> Vec<(String, u64)> {
        let set = self.current.load();
        let retired = set
            .paths
            .iter()
            .filter(|(_, entry)| entry.state == RouteState::Retired);
        let counted =
            retired.map(|(path, entry)| (path.to_string(), entry.requests.swap(0, Relaxed)));
        counted.filter(|(_, count)| *count > 0).collect()
    }

    /// Puts counts back that could not be told.
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
        layout: &Layout,
        served: &HashMap<String, Arc<Served>>,
    ) -> HashMap<String, Object> {
        let mut history = self
            .history
            .lock()
            .expect("the history's lock must not be poisoned");
        let mut objects = HashMap::new();
        for one in served.values() {
            if let Some(key) = object_key(one.policy.revision.as_str()) {
                let seen = history.entry(key).or_default();
                note(seen, one.policy.generation, one.policy.content.mutating);
            }
        }
        // Objects of which nothing is loaded are known too: their paths are not loaded yet.
        let paths = layout.paths.keys().map(AsRef::as_ref);
        for name in paths.chain(served.keys().map(String::as_str)) {
            if let Some(key) = object_key(name) {
                let mutating = history.get(&key).map(changes).unwrap_or_default();
                let active = None;
                objects.entry(key).or_insert(Object { active, mutating });
            }
        }
        for (path, place) in &layout.paths {
            let Answer::By(revisions) = &place.answer else {
                continue;
            };
            let object = object_key(path).and_then(|key| objects.get_mut(&key));
            if let (RouteState::Active, [one], Some(object)) =
                (place.state, revisions.as_slice(), object)
            {
                object.active = served.get(one.as_str()).cloned();
            }
        }
        history.retain(|key, _| objects.contains_key(key));
        objects
    }

    fn forget_gone(&self, before: &Set, served: &HashMap<String, Arc<Served>>) {
        let alive = |policy: &str| {
            served
                .values()
                .any(|one| one.policy.policy.as_str() == policy)
        };
        let mut gates = self
            .gates
            .lock()
            .expect("the gates' lock must not be poisoned");
        let gone: Vec<String> = before
            .objects
            .keys()
            .filter_map(|key| key.split('\n').next())
            .filter(|policy| !alive(policy))
            .map(str::to_owned)
            .collect();
        for policy in gone {
            gates.remove(&policy);
            self.metrics.forget(&policy, crate::served::REASONS);
        }
    }
}

// === impl Set ===

impl Set {
    /// Who answers `path`; counts requests on paths that should have none.
    pub(crate) fn find(&self, path: &str, metrics: &Metrics) -> Found {
        if let Some(entry) = self.paths.get(path) {
            if entry.state == RouteState::Retired {
                entry.requests.fetch_add(1, Relaxed);
                metrics.retired_path_requests.inc();
            }
            return match &entry.target {
                Target::By(served) => Found::By(served.clone()),
                Target::NotLoaded(why) => Found::NotLoaded(why.to_string()),
            };
        }
        if self.version.is_none() {
            return Found::NotLoaded("no set of policies has been loaded yet".into());
        }
        self.find_past(path, metrics)
    }

    /// A path that left the table: an older generation of an object that is known is
    /// answered by the active revision, a newer one is not loaded yet.
    fn find_past(&self, path: &str, metrics: &Metrics) -> Found {
        let Some(name) = Parsed::read(path) else {
            return Found::Unknown;
        };
        let Some(object) = object_key(path).and_then(|key| self.objects.get(&key)) else {
            return Found::Unknown;
        };
        let Some(active) = &object.active else {
            return Found::NotLoaded(format!("no revision of {} is active yet", name.policy));
        };
        if name.generation > active.policy.generation {
            return Found::NotLoaded(format!("{path} is not loaded yet"));
        }
        let now = active.policy.content.mutating;
        if mutating_at(&object.mutating, name.generation).is_some_and(|then| then != now) {
            return Found::NotLoaded(format!(
                "{path} is gone, and the active revision differs in whether it mutates"
            ));
        }
        metrics.retired_path_requests.inc();
        Found::By(vec![active.clone()])
    }
}

fn pick(revisions: &[assent_core::RevisionId], served: &HashMap<String, Arc<Served>>) -> Target {
    let found: Option<Vec<_>> = revisions
        .iter()
        .map(|r| served.get(r.as_str()).cloned())
        .collect();
    match found {
        Some(found) if !found.is_empty() => Target::By(found),
        _ => Target::NotLoaded("the route names no revision that is loaded".into()),
    }
}

fn object_key(revision: &str) -> Option<String> {
    Parsed::read(revision).map(|name| format!("{}\n{}", name.policy, name.uid))
}

fn note(seen: &mut Generations, generation: i64, mutating: bool) {
    seen.insert(generation, mutating);
    while seen.len() > REMEMBERED {
        seen.pop_first();
    }
}

/// What was seen, if it tells any generations apart.
fn changes(seen: &Generations) -> Generations {
    let mut values = seen.values();
    let first = values.next();
    if values.all(|value| Some(value) == first) {
        return Generations::new();
    }
    seen.clone()
}

/// What a generation was, or the one before it that was seen; the first stands for those
/// before it.
fn mutating_at(seen: &Generations, generation: i64) -> Option<bool> {
    let before = seen.range(..=generation).next_back();
    before.or_else(|| seen.iter().next()).map(|(_, is)| *is)
}
