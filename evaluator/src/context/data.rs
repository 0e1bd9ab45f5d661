//! What evaluations read: the published state of every collection.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use assent_context::{CollectionId, CollectionSpec, Snapshot, SyncState};
use assent_core::{Policy, policy::ContextResource};
use tokio::sync::watch;

/// The published collections. One store replaces a collection: a reader that has loaded the state sees one state of
/// each.
pub struct ContextData {
    state: ArcSwap<State>,
    /// Counts publications, to wake who waits for a collection.
    changes: watch::Sender<u64>,
}

/// All collections at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    collections: BTreeMap<CollectionId, Arc<View>>,
    /// Reads of an older collection are errors.
    max_staleness: Option<Duration>,
}

/// One collection as it was published.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// None before the first complete state.
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) spec: Arc<CollectionSpec>,
    pub(crate) state: SyncState,
    /// Why it is not synced.
    pub(crate) detail: String,
    /// How old the state was when it was received.
    pub(crate) age: Duration,
    pub(crate) received: Instant,
    /// When the control plane knew last that this is what the API server has, by its clock.
    pub(crate) observed_at: SystemTime,
}

// === impl ContextData ===

impl Default for ContextData {
    fn default() -> Self {
        Self {
            state: ArcSwap::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl ContextData {
    /// Collections that are complete and do not change: objects from files.
    pub fn fixed(collections: impl IntoIterator<Item = Snapshot>) -> Self {
        let data = Self::default();
        for snapshot in collections {
            let spec = snapshot.spec().clone();
            data.publish(View {
                snapshot: Some(snapshot),
                spec,
                state: SyncState::Synced,
                detail: String::new(),
                age: Duration::ZERO,
                received: Instant::now(),
                observed_at: SystemTime::UNIX_EPOCH,
            });
        }
        data
    }

    pub(crate) fn load(&self) -> Arc<State> {
        self.state.load_full()
    }

    /// Wakes after each publication.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A view without a snapshot leaves the one before in place, as old as it is.
    pub(crate) fn publish(&self, mut view: View) {
        if view.snapshot.is_none()
            && let Some(before) = self.state.load().collections.get(&view.spec.id())
            && before.snapshot.is_some()
        {
            view.snapshot = before.snapshot.clone();
            view.age = before.age;
            view.received = before.received;
            view.observed_at = before.observed_at;
        }
        self.change(|state| {
            state
                .collections
                .insert(view.spec.id(), Arc::new(view.clone()));
        });
    }

    pub(crate) fn remove(&self, id: CollectionId) {
        self.change(|state| {
            state.collections.remove(&id);
        });
    }

    pub(crate) fn set_max_staleness(&self, most: Option<Duration>) {
        self.change(|state| state.max_staleness = most);
    }

    /// What a policy must wait for, in words; none if every declared kind can be read.
    pub(crate) fn missing(&self, policy: &Policy) -> Option<String> {
        let state = self.state.load();
        let missing = policy.content.context_resources.iter();
        let missing: Vec<String> = missing
            .filter_map(|declared| state.unsynced(declared))
            .collect();
        (!missing.is_empty()).then(|| {
            format!(
                "the objects that it reads are not here yet: {}",
                missing.join("; ")
            )
        })
    }

    fn change(&self, change: impl Fn(&mut State)) {
        self.state.rcu(|state| {
            let mut state = State::clone(state);
            change(&mut state);
            state
        });
        self.changes.send_modify(|count| *count += 1);
    }
}

// === impl State ===

impl State {
    /// The collection of a declaration.
    pub(crate) fn find(&self, declared: &ContextResource) -> Option<&Arc<View>> {
        let mut views = self.collections.values();
        views.find(|view| view.spec.serves(declared))
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = &Arc<View>> {
        self.collections.values()
    }

    /// A collection that can be read now; the error names it and says why not.
    pub(crate) fn readable(
        &self,
        declared: &ContextResource,
        now: Instant,
    ) -> Result<(&Arc<View>, &Snapshot), ReadError> {
        let name = format!("{} ({})", declared.kind, declared.api_version);
        let Some(view) = self.find(declared) else {
            return Err(ReadError::Unsynced(format!("{name} is not replicated yet")));
        };
        if view.state == SyncState::Absent {
            return Err(ReadError::Unsynced(format!(
                "the API server does not serve {name}{}",
                because(&view.detail)
            )));
        }
        let Some(snapshot) = &view.snapshot else {
            return Err(ReadError::Unsynced(format!(
                "{name} is {}{}",
                view.state.as_str(),
                because(&view.detail)
            )));
        };
        let age = view.age_at(now);
        match self.max_staleness {
            Some(most) if age > most => Err(ReadError::Stale(format!(
                "{name} is {} s old{}, and the PolicyServer allows {} s",
                age.as_secs(),
                because(&view.detail),
                most.as_secs()
            ))),
            _ => Ok((view, snapshot)),
        }
    }

    fn unsynced(&self, declared: &ContextResource) -> Option<String> {
        // Age does not matter here: a policy is loaded once, and its reads are checked later.
        let ageless = Self {
            collections: self.collections.clone(),
            max_staleness: None,
        };
        let read = ageless.readable(declared, Instant::now());
        read.err().map(ReadError::into_message)
    }
}

/// Why a collection can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// There is no complete state.
    Unsynced(String),
    /// It is older than allowed.
    Stale(String),
}

// === impl ReadError ===

impl ReadError {
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Unsynced(why) | Self::Stale(why) => why,
        }
    }
}

// === impl View ===

impl View {
    /// How old the state is.
    pub(crate) fn age_at(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.received)
    }
}

fn because(detail: &str) -> String {
    match detail {
        "" => String::new(),
        detail => format!(" ({detail})"),
    }
}
