#![allow(clippy::unwrap_used)]
use super::*;
use crate::{
    announced::{
        Announced,
        tests::{mk_policy, mk_set},
    },
    plan::{Failed, Loaded},
};

fn table(announced: &Announced) -> RoutingTable {
    RoutingTable::new(announced, &Loaded::new(), &Failed::new())
}

#[test]
fn no_path_is_unknown_before_the_first_set() {
    let active = ActiveSet::default();
    let metrics = Metrics::new();
    assert!(matches!(
        active.load().find("cluster/a/1-x", &metrics),
        Lookup::NotLoaded(_)
    ));
    // An empty set is a set: from then on the path is unknown.
    active.swap(&table(&Announced::default()), &HashMap::new());
    assert!(matches!(
        active.load().find("cluster/a/1-x", &metrics),
        Lookup::Unknown
    ));
}

#[test]
fn a_known_object_without_loaded_revisions_is_not_unknown() {
    let policy = mk_policy("a", 2, "x");
    let set = mk_set(&[(&policy, RouteState::Active)]);
    let active = ActiveSet::default();
    active.swap(&table(&set), &HashMap::new());
    let find = |path: &str| active.load().find(path, &Metrics::new());
    let before = policy.revision.as_str().replace("/2-", "/1-");
    assert!(matches!(find(&before), Lookup::NotLoaded(_)));
    assert!(matches!(find("cluster/b/1-x"), Lookup::Unknown));
}

#[test]
fn only_retired_paths_are_counted() {
    let (old, new) = (mk_policy("a", 1, "x"), mk_policy("a", 2, "x"));
    let set = mk_set(&[(&old, RouteState::Retired), (&new, RouteState::Active)]);
    let active = ActiveSet::default();
    active.swap(&table(&set), &HashMap::new());
    assert_eq!(active.load().retired.len(), 1);
    for policy in [&old, &old, &new] {
        active
            .load()
            .find(policy.revision.as_str(), &Metrics::new());
    }
    let counts = vec![(old.revision.to_string(), 2)];
    assert_eq!(active.take_retired(), counts);
    assert_eq!(active.take_retired(), []);
    // Counts that were not reported survive the next swap.
    active.restore_retired(&counts);
    active.swap(&table(&set), &HashMap::new());
    assert_eq!(active.take_retired(), counts);
}

#[test]
fn a_mutating_candidate_does_not_change_past_generations() {
    let mut seen = Generations::new();
    for (generation, mutating) in [(3, false), (4, false)] {
        remember(&mut seen, generation, mutating);
    }
    assert!(changes(&seen).is_empty());
    remember(&mut seen, 6, true);
    let seen = changes(&seen);
    for (generation, mutating) in [(1, false), (4, false), (5, false), (6, true), (7, true)] {
        assert_eq!(mutating_at(&seen, generation), Some(mutating));
    }
}
