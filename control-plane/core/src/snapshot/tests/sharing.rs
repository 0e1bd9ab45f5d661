//! A snapshot that shares chunks with its predecessors equals one that was built from nothing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::fixtures::mk_revision;

/// Enough for several chunks.
const NAMES: usize = 600;

/// What the set has, by number of the policy.
type Model = BTreeMap<usize, (i64, RouteState)>;

fn name(n: usize) -> String {
    format!("policy-{n:04}")
}

fn place(n: usize, generation: i64, state: RouteState) -> (Arc<Policy>, RouteState) {
    (mk_policy(&name(n), generation), state)
}

/// The policy `n` of each set has one generation, so that its revision has two contents: a
/// generation of another policy object would have another name.
fn change(
    n: usize,
    to: Option<(i64, RouteState)>,
) -> (RevisionId, Option<(Arc<Policy>, RouteState)>) {
    let revision = mk_revision(&name(n), 1);
    let to = to.map(|(content, state)| {
        let (mut policy, state) = place(n, 1, state);
        if content != 1 {
            let other = mk_policy(&name(n), content);
            Arc::make_mut(&mut policy).content_digest = other.content_digest;
        }
        (policy, state)
    });
    (revision, to)
}

fn from_nothing(model: &Model) -> Snapshot {
    let changes = model.iter().map(|(n, to)| change(*n, Some(*to)));
    let (policies, routes): (Vec<_>, Vec<_>) = changes
        .filter_map(|(revision, place)| {
            let (policy, state) = place?;
            Some((policy, Arc::new(Route::of(&revision, state))))
        })
        .unzip();
    Snapshot::new(policies, routes)
}

fn state() -> impl Strategy<Value = RouteState> {
    prop_oneof![
        Just(RouteState::Active),
        Just(RouteState::Candidate),
        Just(RouteState::Retired),
    ]
}

/// Changes of neighbours as well as scattered ones.
fn changes() -> impl Strategy<Value = Vec<(usize, Option<(i64, RouteState)>)>> {
    let to = || prop::option::weighted(0.6, (1i64..3, state()));
    let scattered = vec((0..NAMES, to()), 0..8);
    let neighbours = (0..NAMES, 0..200usize, to()).prop_map(|(from, count, to)| {
        let numbers = from..NAMES.min(from + count);
        numbers.map(|n| (n, to)).collect::<Vec<_>>()
    });
    prop_oneof![3 => scattered, 1 => neighbours]
}

/// The names of a difference, computed entry by entry.
fn names_that_differ(old: &Model, new: &Model) -> [BTreeSet<String>; 4] {
    let mut names: [BTreeSet<String>; 4] = Default::default();
    for n in 0..NAMES {
        let revision = mk_revision(&name(n), 1).to_string();
        match (old.get(&n), new.get(&n)) {
            (Some(_), None) => {
                names[1].insert(revision.clone());
                names[3].insert(revision);
            }
            (before, Some((content, state))) => {
                if before.map(|b| b.0) != Some(*content) {
                    names[0].insert(revision.clone());
                }
                if before.map(|b| b.1) != Some(*state) {
                    names[2].insert(revision);
                }
            }
            (None, None) => {}
        }
    }
    names
}

fn names_of(delta: &Delta) -> [BTreeSet<String>; 4] {
    let routes = delta.routes.iter().map(|r| r.path.to_string());
    let removed_routes = delta.removed_routes.iter().map(ToString::to_string);
    [
        delta
            .policies
            .iter()
            .map(|p| p.revision.to_string())
            .collect(),
        delta
            .removed_revisions
            .iter()
            .map(ToString::to_string)
            .collect(),
        routes.collect(),
        removed_routes.collect(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shared_chunks_change_no_version_and_no_difference(steps in vec(changes(), 1..12)) {
        let mut history: Vec<(Model, Snapshot)> = vec![(Model::new(), Snapshot::empty())];
        for step in steps {
            let (mut model, snapshot) = history.last().unwrap().clone();
            let step: BTreeMap<_, _> = step.into_iter().collect();
            let snapshot = snapshot.with(step.iter().map(|(n, to)| change(*n, *to)));
            for (n, to) in step {
                match to {
                    Some(to) => drop(model.insert(n, to)),
                    None => drop(model.remove(&n)),
                }
            }
            let expected = from_nothing(&model);
            prop_assert_eq!(snapshot.version(), expected.version());
            let names: Vec<_> = snapshot.policies().map(|p| p.revision.clone()).collect();
            let expected_names: Vec<_> = expected.policies().map(|p| p.revision.clone()).collect();
            prop_assert_eq!(&names, &expected_names);
            prop_assert_eq!(snapshot.policies().len(), names.len());
            prop_assert!(snapshot.routes().eq(expected.routes()));
            for n in 0..NAMES {
                let revision = mk_revision(&name(n), 1);
                prop_assert_eq!(snapshot.contains(revision.as_str()), model.contains_key(&n));
            }
            history.push((model, snapshot));
        }
        let (newest_model, newest) = history.last().unwrap();
        for (model, snapshot) in &history {
            let found = names_of(&newest.delta_from(snapshot));
            prop_assert_eq!(found, names_that_differ(model, newest_model));
            let changed: BTreeSet<usize> = model.keys().chain(newest_model.keys()).copied()
                .filter(|n| model.contains_key(n) != newest_model.contains_key(n)).collect();
            prop_assert_eq!(newest.changed_revisions(snapshot).len(), changed.len());
        }
    }
}

/// A set in which the policy `n` has these generations.
fn edited(from: &Snapshot, n: usize, states: &[(i64, Option<RouteState>)]) -> Snapshot {
    from.with(states.iter().map(|(generation, state)| {
        let policy = mk_policy(&name(n), *generation);
        (policy.revision.clone(), state.map(|state| (policy, state)))
    }))
}

#[test]
fn version_continues_from_the_first_difference() {
    let numbers = 0..1_000;
    let start = Snapshot::empty().with(numbers.map(|n| {
        let (policy, state) = place(n, 1, RouteState::Active);
        (policy.revision.clone(), Some((policy, state)))
    }));
    let all = start.hashed_bytes();
    let (active, retired) = (RouteState::Active, RouteState::Retired);
    let candidate = |n| edited(&start, n, &[(2, Some(RouteState::Candidate))]);
    // A new revision changes the number of policies, with which the input begins.
    assert!(candidate(990).hashed_bytes() >= all);
    for (n, part) in [(990, 8), (500, 2)] {
        let candidate = candidate(n);
        let flipped = edited(&candidate, n, &[(1, Some(retired)), (2, Some(active))]);
        // Routes are a bit more than a half of the input; those from `n` on are hashed.
        assert!(flipped.hashed_bytes() < all / part, "{n}");
        // The number of policies is that of the start again.
        let removed = edited(&flipped, n, &[(1, None)]);
        assert!(removed.hashed_bytes() < all, "{n}");
        let next = edited(&removed, n, &[(3, Some(RouteState::Candidate))]);
        assert!(next.hashed_bytes() < all, "{n}");
        for snapshot in [flipped, removed, next] {
            let again = Snapshot::new(snapshot.policies().cloned(), snapshot.routes().cloned());
            assert_eq!(snapshot.version(), again.version());
        }
    }
}

#[test]
fn set_has_what_was_placed_in_it() {
    let (policy, state) = place(1, 1, RouteState::Active);
    let revision = policy.revision.clone();
    let snapshot = Snapshot::empty().with([(revision.clone(), Some((policy.clone(), state)))]);
    assert!(snapshot.has(&revision, Some(&(policy.clone(), state))));
    assert!(snapshot.has(&revision, Some(&place(1, 1, state))));
    assert!(!snapshot.has(&revision, Some(&(policy, RouteState::Retired))));
    assert!(!snapshot.has(&revision, None));
    assert!(snapshot.has(&mk_revision(&name(2), 1), None));
}
