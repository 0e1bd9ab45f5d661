//! One collection out of the watches of its namespaces.

use std::collections::BTreeSet;

use assent_context::{Key, SyncState, feed::Change};

/// What a watch found.
#[derive(Debug)]
pub(super) enum Found {
    /// A part of a first list.
    Page(Vec<Change>),
    /// A complete list: what differs from what was held, and all keys.
    Listed(Vec<Change>, BTreeSet<Key>),
    /// Single changes.
    Changed(Vec<Change>),
    /// It goes on, or why not.
    State(SyncState, String),
}

/// What follows for the collection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Nothing.
    Nothing,
    /// Changes.
    Apply(Vec<Change>),
    /// All watches have listed: these are all keys.
    Complete(BTreeSet<Key>, Vec<Change>),
    /// How complete it is.
    State(SyncState, String),
}

/// The watches of one collection.
#[derive(Debug)]
pub(super) struct Merger {
    scopes: Vec<Scope>,
    complete: bool,
}

#[derive(Clone, Debug)]
struct Scope {
    keys: BTreeSet<Key>,
    listed: bool,
    state: SyncState,
    detail: String,
}

// === impl Merger ===

impl Merger {
    pub(super) fn new(scopes: usize) -> Self {
        let scope = Scope {
            keys: BTreeSet::new(),
            listed: false,
            state: SyncState::Syncing,
            detail: String::new(),
        };
        Self {
            scopes: vec![scope; scopes],
            complete: false,
        }
    }

    /// Takes what the watch `scope` found.
    pub(super) fn take(&mut self, scope: usize, found: Found) -> Merged {
        let Some(own) = self.scopes.get_mut(scope) else {
            return Merged::Nothing;
        };
        match found {
            Found::Page(changes) | Found::Changed(changes) => {
                own.note(&changes);
                Merged::Apply(changes)
            }
            Found::Listed(mut changes, keys) => {
                let gone = own.keys.difference(&keys).cloned();
                changes.extend(gone.map(|key| (key, None)));
                own.keys = keys;
                own.listed = true;
                own.state = SyncState::Synced;
                own.detail.clear();
                self.listed(changes)
            }
            Found::State(state, detail) => {
                (own.state, own.detail) = (state, detail);
                let (state, detail) = self.worst();
                Merged::State(state, detail)
            }
        }
    }

    fn listed(&mut self, changes: Vec<Change>) -> Merged {
        let all = self.scopes.iter().all(|scope| scope.listed);
        let synced = self.worst().0 == SyncState::Synced;
        if !all || !synced {
            return Merged::Apply(changes);
        }
        self.complete = true;
        let keys = self.scopes.iter().flat_map(|scope| &scope.keys);
        Merged::Complete(keys.cloned().collect(), changes)
    }

    /// A collection is as good as the worst of its watches.
    fn worst(&self) -> (SyncState, String) {
        let rank = |state: SyncState| match state {
            SyncState::Synced => 0,
            SyncState::Stale => 1,
            SyncState::Syncing => 2,
            SyncState::Forbidden => 3,
            SyncState::Absent => 4,
        };
        let worst = self.scopes.iter().max_by_key(|scope| rank(scope.state));
        worst.map_or((SyncState::Synced, String::new()), |scope| {
            (scope.state, scope.detail.clone())
        })
    }
}

// === impl Scope ===

impl Scope {
    fn note(&mut self, changes: &[Change]) {
        for (key, json) in changes {
            match json {
                Some(_) => drop(self.keys.insert(key.clone())),
                None => drop(self.keys.remove(key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(name: &str) -> Key {
        let (namespace, name) = name.split_once('/').unwrap();
        Key::new(namespace, name).unwrap()
    }

    fn put(name: &str) -> Change {
        (key(name), Some(b"{}".to_vec()))
    }

    fn keys(names: &[&str]) -> BTreeSet<Key> {
        names.iter().map(|name| key(name)).collect()
    }

    #[test]
    fn collection_is_complete_once_every_namespace_was_listed() {
        let mut merger = Merger::new(2);
        assert_eq!(
            merger.take(0, Found::Page(vec![put("a/x")])),
            Merged::Apply(vec![put("a/x")])
        );
        let listed = merger.take(0, Found::Listed(vec![], keys(&["a/x"])));
        assert_eq!(listed, Merged::Apply(vec![]));
        let listed = merger.take(1, Found::Listed(vec![put("b/y")], keys(&["b/y"])));
        let all = keys(&["a/x", "b/y"]);
        assert_eq!(listed, Merged::Complete(all, vec![put("b/y")]));
    }

    #[test]
    fn second_list_deletes_what_is_gone_in_its_namespace_only() {
        let mut merger = Merger::new(2);
        merger.take(
            0,
            Found::Listed(vec![put("a/x"), put("a/z")], keys(&["a/x", "a/z"])),
        );
        merger.take(1, Found::Listed(vec![put("b/y")], keys(&["b/y"])));
        let again = merger.take(0, Found::Listed(vec![], keys(&["a/x"])));
        let gone = vec![(key("a/z"), None)];
        assert_eq!(again, Merged::Complete(keys(&["a/x", "b/y"]), gone));
    }

    #[test]
    fn one_interrupted_watch_makes_the_collection_stale() {
        let mut merger = Merger::new(2);
        merger.take(0, Found::Listed(vec![], keys(&[])));
        merger.take(1, Found::Listed(vec![], keys(&[])));
        let state = merger.take(1, Found::State(SyncState::Stale, "gone".into()));
        assert_eq!(state, Merged::State(SyncState::Stale, "gone".into()));
        let other = merger.take(0, Found::State(SyncState::Synced, String::new()));
        assert_eq!(other, Merged::State(SyncState::Stale, "gone".into()));
        let back = merger.take(1, Found::State(SyncState::Synced, String::new()));
        assert_eq!(back, Merged::State(SyncState::Synced, String::new()));
    }
}
