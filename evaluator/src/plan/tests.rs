#![allow(clippy::unwrap_used)]
use super::*;
use crate::announced::{
    Offer,
    tests::{mk_policy, mk_policy_of, mk_set},
};

fn loaded(policies: &[&Arc<Policy>]) -> Loaded {
    policies
        .iter()
        .map(|p| (p.revision.clone(), (*p).clone()))
        .collect()
}

fn failed(policy: &Policy) -> Failed {
    [(
        policy.revision.clone(),
        Failure::permanent(Stage::Compile, "no"),
    )]
    .into()
}

fn all(set: &Announced) -> BTreeSet<RevisionId> {
    set.offers().keys().cloned().collect()
}

#[track_caller]
fn check_plan(
    plan: &Plan,
    keep: &[&Arc<Policy>],
    prepare: &[&Arc<Policy>],
    failed: &[&Arc<Policy>],
) {
    let names = |list: &[&Arc<Policy>]| list.iter().map(|p| p.revision.clone()).collect::<Vec<_>>();
    assert_eq!(plan.keep, names(keep), "keep");
    let prepared: Vec<_> = plan.prepare.iter().map(|p| p.revision.clone()).collect();
    assert_eq!(prepared, names(prepare), "prepare");
    assert_eq!(
        plan.failed.keys().cloned().collect::<Vec<_>>(),
        names(failed),
        "failed"
    );
}

#[track_caller]
fn check_path(table: &RoutingTable, path: &Policy, by: Option<&Policy>) {
    let found = table
        .rows
        .get(path.revision.as_str())
        .map(|row| &row.target);
    match (found, by) {
        (Some(Target::Revisions(revisions)), Some(by)) => {
            assert_eq!(revisions, std::slice::from_ref(&by.revision))
        }
        (Some(Target::NotLoaded(_)), None) => {}
        other => panic!("{}: {other:?}", path.revision),
    }
}

#[test]
fn loaded_revisions_are_kept_and_new_ones_prepared() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let set = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Active)]);
    let none = (Failed::new(), BTreeMap::new());
    let result = plan(&set, &all(&set), &loaded(&[&a]), &none.0, &none.1);
    check_plan(&result, &[&a], &[&b], &[]);
}

#[test]
fn changed_content_under_one_name_is_prepared_again() {
    let (old, new) = (mk_policy("a", 1, "x"), mk_policy("a", 1, "y"));
    let set = mk_set(&[(&new, RouteState::Active)]);
    let result = plan(
        &set,
        &all(&set),
        &loaded(&[&old]),
        &Failed::new(),
        &BTreeMap::new(),
    );
    check_plan(&result, &[], &[&new], &[]);
    // And while it is not loaded, the old content does not pass for it.
    check_path(
        &RoutingTable::new(&set, &loaded(&[&old]), &failed(&new)),
        &new,
        None,
    );
}

#[test]
fn a_failure_stands_until_it_is_offered_again() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, RouteState::Candidate)]);
    let stands = plan(
        &set,
        &BTreeSet::new(),
        &Loaded::new(),
        &failed(&a),
        &BTreeMap::new(),
    );
    check_plan(&stands, &[], &[], &[&a]);
    let again = plan(
        &set,
        &all(&set),
        &Loaded::new(),
        &failed(&a),
        &BTreeMap::new(),
    );
    check_plan(&again, &[], &[&a], &[]);
}

#[test]
fn poisoned_content_is_never_tried() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("a", 2, "y"));
    let set = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Candidate)]);
    let crashed = Failure::permanent(Stage::SelfTest, "brought the evaluator down");
    let poisoned = [(a.content_digest, crashed.clone())].into();
    let result = plan(&set, &all(&set), &Loaded::new(), &Failed::new(), &poisoned);
    check_plan(&result, &[], &[&b], &[&a]);
    assert_eq!(result.failed[&a.revision], crashed);
}

#[test]
fn a_poisoned_module_is_never_tried_with_other_settings_either() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy_of("a", 2, "x", true));
    assert_ne!(a.content_digest, b.content_digest);
    let set = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Candidate)]);
    let crashed = Failure::permanent(Stage::Compile, "brought the evaluator down");
    let poisoned = [(a.content.module_digest, crashed)].into();
    let result = plan(&set, &all(&set), &Loaded::new(), &Failed::new(), &poisoned);
    check_plan(&result, &[], &[], &[&a, &b]);
}

#[test]
fn an_unreadable_revision_fails_at_verify() {
    let a = mk_policy("a", 1, "x");
    let offer = Offer {
        body: Err("mode 7 is not known".into()),
        ..(*Offer::known(&a)).clone()
    };
    let set = Announced::new(
        [(a.revision.clone(), Arc::new(offer))].into(),
        BTreeMap::new(),
    );
    let result = plan(
        &set,
        &all(&set),
        &Loaded::new(),
        &Failed::new(),
        &BTreeMap::new(),
    );
    assert_eq!(result.failed[&a.revision].stage, Stage::Verify);
}

/// The control plane knows only its name and its content digest.
#[test]
fn a_revision_without_content_is_kept_where_it_is_loaded() {
    let a = mk_policy("a", 1, "x");
    let policy = Policy::without_content(a.policy.clone(), 1, "5f2a9c1e-0000", a.content_digest);
    assert_eq!(policy.revision, a.revision);
    let offer = Arc::new(Offer::verified(policy));
    let known = mk_set(&[(&a, RouteState::Active)]);
    let set = Announced::new([(a.revision.clone(), offer)].into(), known.routes().clone());
    assert_eq!(set.version(), known.version());
    let none = (Failed::new(), BTreeMap::new());
    let holder = plan(&set, &all(&set), &loaded(&[&a]), &none.0, &none.1);
    check_plan(&holder, &[&a], &[], &[]);
    check_path(
        &RoutingTable::new(&set, &loaded(&[&a]), &none.0),
        &a,
        Some(&a),
    );
    // Whoever lacks it says so, and is not ready.
    let other = plan(&set, &all(&set), &Loaded::new(), &none.0, &none.1);
    check_plan(&other, &[], &[], &[&a]);
    let table = RoutingTable::new(&set, &Loaded::new(), &other.failed);
    assert!(!table.active_complete);
}

#[test]
fn a_rejected_candidate_leaves_the_active_revision() {
    let (one, two) = (mk_policy("a", 1, "x"), mk_policy("a", 2, "y"));
    let set = mk_set(&[(&one, RouteState::Active), (&two, RouteState::Candidate)]);
    let result = RoutingTable::new(&set, &loaded(&[&one]), &failed(&two));
    check_path(&result, &one, Some(&one));
    check_path(&result, &two, None);
    assert!(result.active_complete);
    assert_eq!(result.retained, [one.revision.clone()].into());
}

#[test]
fn the_last_good_revision_of_a_rejected_policy_stays() {
    let (one, two, three) = (
        mk_policy("a", 1, "x"),
        mk_policy("a", 2, "y"),
        mk_policy("a", 3, "z"),
    );
    let set = mk_set(&[(&three, RouteState::Active)]);
    let result = RoutingTable::new(&set, &loaded(&[&one, &two]), &failed(&three));
    check_path(&result, &two, Some(&two));
    check_path(&result, &three, Some(&two));
    assert!(!result.active_complete);
    assert_eq!(result.retained, [two.revision.clone()].into());
    // Once it loads, the old one goes.
    let result = RoutingTable::new(&set, &loaded(&[&two, &three]), &Failed::new());
    check_path(&result, &three, Some(&three));
    assert_eq!(result.retained, [three.revision.clone()].into());
    assert_eq!(result.rows.len(), 1);
}

#[test]
fn a_deleted_policy_goes() {
    let a = mk_policy("a", 1, "x");
    let result = RoutingTable::new(&Announced::default(), &loaded(&[&a]), &Failed::new());
    assert!(result.retained.is_empty() && result.rows.is_empty());
}

#[test]
fn a_recreated_policy_is_another_object() {
    let old = mk_policy("a", 7, "x");
    let mut new = (*mk_policy("a", 8, "y")).clone();
    new.revision = RevisionId::new(&new.policy, 8, "00000000");
    let new = Arc::new(new);
    let set = mk_set(&[(&new, RouteState::Active)]);
    let result = RoutingTable::new(&set, &loaded(&[&old]), &failed(&new));
    check_path(&result, &new, None);
    assert!(result.retained.is_empty());
}

#[test]
fn change_of_mutating_has_no_stand_in() {
    let (one, two) = (mk_policy("a", 1, "x"), mk_policy_of("a", 2, "y", true));
    let set = mk_set(&[(&two, RouteState::Active)]);
    let result = RoutingTable::new(&set, &loaded(&[&one]), &failed(&two));
    check_path(&result, &two, None);
    check_path(&result, &one, Some(&one));
}

#[test]
fn names_are_taken_apart() {
    let name = RevisionName::parse("namespaced/ns/p/12-5f2a9c1e").unwrap();
    assert_eq!(
        (name.policy, name.generation, name.uid),
        ("namespaced/ns/p", 12, "5f2a9c1e")
    );
    for bad in [
        "",
        "p",
        "a/b",
        "a/-1-x",
        "a/+1-x",
        "a/x-1",
        "a/99999999999999999999-x",
    ] {
        assert_eq!(RevisionName::parse(bad), None, "{bad}");
    }
}

/// Otherwise one tenant's policy would keep injected evaluators of others from becoming ready.
#[test]
fn a_revision_whose_settings_are_withheld_is_not_waited_for() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let known = mk_set(&[(&a, RouteState::Active), (&b, RouteState::Active)]);
    for withheld in [false, true] {
        let mut offers = known.offers().clone();
        let offer = Offer {
            revision: a.revision.clone(),
            content_digest: a.content_digest,
            body: Err("withheld".into()),
            withheld,
        };
        offers.insert(a.revision.clone(), Arc::new(offer));
        let set = Announced::new(offers, known.routes().clone());
        let table = RoutingTable::new(&set, &loaded(&[&b]), &failed(&a));
        check_path(&table, &a, None);
        check_path(&table, &b, Some(&b));
        assert_eq!(table.active_complete, withheld);
    }
}
