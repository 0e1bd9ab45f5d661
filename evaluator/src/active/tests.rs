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
