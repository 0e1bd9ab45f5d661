#![allow(clippy::unwrap_used)]

use assent_core::PolicyKey;

use super::*;

const NOW: Millis = Millis(1_000);

fn mk_id(name: &str) -> PolicyId {
    PolicyId {
        key: PolicyKey::cluster(name),
        uid: "u".into(),
    }
}

fn mk_resource(kind: &str) -> ContextResource {
    ContextResource {
        api_version: "v1".into(),
        kind: kind.into(),
        ..ContextResource::default()
    }
}

fn mk_need(served: &[&str], prepared: &[&str]) -> Option<Need> {
    let set = |kinds: &[&str]| kinds.iter().map(|kind| mk_resource(kind)).collect();
    Some(Need {
        server: "default".into(),
        served: set(served),
        prepared: set(prepared),
        declared: set(prepared),
    })
}

fn mk_served(plural: &str) -> KindState {
    KindState::Served {
        plural: plural.into(),
        namespaced: true,
        forbidden: None,
    }
}

fn mk_report(state: CollectionState, bytes: u64) -> CollectionReport {
    CollectionReport {
        state,
        detail: String::new(),
        objects: 1,
        bytes,
        largest: Vec::new(),
    }
}

fn mk_contexts() -> Contexts {
    let mut contexts = Contexts::default();
    contexts.set_limits("default", Some(ContextLimits::default()));
    contexts.settle(NOW);
    contexts
}

fn pod() -> KindRef {
    KindRef::of(&mk_resource("Pod"))
}

fn kinds(followed: &[FollowedCollection]) -> Vec<(&str, bool)> {
    let followed = followed.iter();
    followed
        .map(|f| (f.spec.kind(), f.limit.is_some()))
        .collect()
}

#[test]
fn nothing_is_followed_that_no_policy_declares() {
    let mut contexts = Contexts::default();
    assert_eq!(contexts.settle(NOW), ContextChanges::default());
    assert!(!contexts.observe_kind(&pod(), mk_served("pods")));
    assert_eq!(contexts.settle(NOW), ContextChanges::default());
}

#[test]
fn collection_is_followed_once_its_kind_is_known() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&[], &["Pod"]));
    let changes = contexts.settle(NOW);
    assert_eq!(changes.kinds, Some(vec![pod()]));
    assert_eq!(changes.collections, None);
    assert!(contexts.observe_kind(&pod(), mk_served("pods")));
    let changes = contexts.settle(NOW);
    // A candidate has a limit, and evaluators do not get it yet.
    assert_eq!(kinds(&changes.collections.unwrap()), [("Pod", true)]);
    assert_eq!(changes.assignments, []);
    contexts.set_need(&mk_id("a"), mk_need(&["Pod"], &[]));
    let changes = contexts.settle(NOW);
    assert_eq!(kinds(&changes.collections.unwrap()), [("Pod", false)]);
    assert_eq!(changes.assignments[0].collections.len(), 1);
    assert!(changes.assignments[0].complete);
}

#[test]
fn equal_declarations_share_one_collection() {
    let mut contexts = mk_contexts();
    for name in ["a", "b"] {
        contexts.set_need(&mk_id(name), mk_need(&["Pod"], &[]));
    }
    contexts.settle(NOW);
    contexts.observe_kind(&pod(), mk_served("pods"));
    let changes = contexts.settle(NOW);
    assert_eq!(changes.collections.unwrap().len(), 1);
    assert_eq!(changes.assignments[0].collections.len(), 1);
    // The second policy keeps it.
    contexts.set_need(&mk_id("a"), None);
    assert_eq!(contexts.settle(NOW), ContextChanges::default());
}

#[test]
fn assignment_is_incomplete_until_every_kind_is_known() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&["Pod", "Service"], &[]));
    let changes = contexts.settle(NOW);
    assert!(
        !changes.assignments[0].complete,
        "evaluators must keep what they hold"
    );
    contexts.observe_kind(&pod(), mk_served("pods"));
    let changes = contexts.settle(NOW);
    assert!(!changes.assignments[0].complete);
    contexts.observe_kind(&KindRef::of(&mk_resource("Service")), KindState::Absent);
    let changes = contexts.settle(NOW);
    // A kind that is absent has a collection too: reads are errors, not empty.
    assert_eq!(changes.assignments[0].collections.len(), 2);
    assert!(changes.assignments[0].complete);
}

#[test]
fn kind_that_disappears_keeps_its_collection() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&["Pod"], &[]));
    contexts.settle(NOW);
    contexts.observe_kind(&pod(), mk_served("pods"));
    let before = contexts.settle(NOW).assignments;
    contexts.observe_kind(&pod(), KindState::Absent);
    assert_eq!(contexts.settle(NOW).assignments, []);
    assert_eq!(before[0].collections[0].plural(), "pods");
}

#[test]
fn collection_lingers_after_its_last_revision() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&["Pod"], &[]));
    contexts.settle(NOW);
    contexts.observe_kind(&pod(), mk_served("pods"));
    contexts.settle(NOW);
    contexts.set_need(&mk_id("a"), None);
    let changes = contexts.settle(NOW);
    assert_eq!((changes.collections, changes.assignments.len()), (None, 0));
    assert_eq!(contexts.deadline(), Some(NOW + LINGER));
    let changes = contexts.settle(NOW + LINGER);
    assert_eq!(changes.collections, Some(vec![]));
    assert_eq!(changes.assignments[0].collections, []);
    assert_eq!(contexts.deadline(), None);
}

#[test]
fn list_that_was_given_up_does_not_linger() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&[], &["Pod"]));
    contexts.settle(NOW);
    contexts.observe_kind(&pod(), mk_served("pods"));
    let followed = contexts.settle(NOW).collections.unwrap();
    let id = followed[0].spec.id();
    assert!(contexts.observe_collection(&id, mk_report(CollectionState::TooLarge, 1)));
    contexts.set_need(&mk_id("a"), mk_need(&[], &[]));
    assert_eq!(contexts.settle(NOW).collections, Some(vec![]));
}

#[test]
fn bytes_of_a_server_are_those_of_its_collections() {
    let mut contexts = mk_contexts();
    contexts.set_need(&mk_id("a"), mk_need(&["Pod"], &[]));
    contexts.settle(NOW);
    contexts.observe_kind(&pod(), mk_served("pods"));
    let followed = contexts.settle(NOW).collections.unwrap();
    contexts.observe_collection(
        &followed[0].spec.id(),
        mk_report(CollectionState::Synced, 70),
    );
    assert_eq!(contexts.bytes_besides("default", &[]), 70);
    assert_eq!(contexts.bytes_besides("default", &[mk_resource("Pod")]), 0);
    assert_eq!(contexts.bytes_besides("other", &[]), 0);
}
