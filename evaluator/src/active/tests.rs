#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn before_the_first_set_nothing_is_unknown() {
    let active = Active::new(Metrics::new(), 1);
    let metrics = Metrics::new();
    assert!(matches!(
        active.load().find("cluster/a/1-x", &metrics),
        Found::NotLoaded(_)
    ));
    // An empty set is an answer: from then on the path is not known.
    let layout = crate::plan::layout(
        &crate::announced::Announced::default(),
        &crate::plan::Loaded::new(),
        &crate::plan::Failed::new(),
    );
    active.swap(&layout, &HashMap::new());
    assert!(matches!(
        active.load().find("cluster/a/1-x", &metrics),
        Found::Unknown
    ));
}

#[test]
fn a_policy_has_one_gate() {
    let active = Active::new(Metrics::new(), 1);
    assert!(Arc::ptr_eq(
        &active.gate("cluster/a"),
        &active.gate("cluster/a")
    ));
    assert!(!Arc::ptr_eq(
        &active.gate("cluster/a"),
        &active.gate("cluster/b")
    ));
}

#[test]
fn a_known_object_of_which_nothing_is_loaded_is_not_unknown() {
    let policy = crate::announced::tests::mk_policy("a", 2, "x");
    let set = crate::announced::tests::mk_set(&[(&policy, RouteState::Active)]);
    let (none, failed) = (crate::plan::Loaded::new(), crate::plan::Failed::new());
    let active = Active::new(Metrics::new(), 1);
    active.swap(&crate::plan::layout(&set, &none, &failed), &HashMap::new());
    let find = |path: &str| active.load().find(path, &Metrics::new());
    let before = policy.revision.as_str().replace("/2-", "/1-");
    assert!(matches!(find(&before), Found::NotLoaded(_)));
    assert!(matches!(find("cluster/b/1-x"), Found::Unknown));
}

#[test]
fn a_candidate_that_mutates_changes_nothing_about_the_past() {
    let mut seen = Generations::new();
    for (generation, mutating) in [(3, false), (4, false)] {
        note(&mut seen, generation, mutating);
    }
    assert!(changes(&seen).is_empty());
    note(&mut seen, 6, true);
    let seen = changes(&seen);
    for (generation, mutating) in [(1, false), (4, false), (5, false), (6, true), (7, true)] {
        assert_eq!(mutating_at(&seen, generation), Some(mutating));
    }
}
