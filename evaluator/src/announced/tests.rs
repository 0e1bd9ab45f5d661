#![allow(clippy::unwrap_used)]
use assent_core::{
    PolicyKey, RouteState,
    policy::{Content, Limits},
};

use super::*;

/// A revision of `cluster/<name>`; equal `content` has equal digests.
pub(crate) fn mk_policy(name: &str, generation: i64, content: &str) -> Arc<Policy> {
    mk_policy_of(name, generation, content, false)
}

pub(crate) fn mk_policy_of(
    name: &str,
    generation: i64,
    content: &str,
    mutating: bool,
) -> Arc<Policy> {
    let content = Content {
        module_digest: Digest::of(content.as_bytes()),
        abi: "wapc".into(),
        settings_json: b"{}".as_slice().into(),
        settings_salt: [].into(),
        mode: assent_core::Mode::Protect,
        mutating,
        limits: Limits::default(),
        context_resources: vec![],
        host_capabilities: vec![],
        message: String::new(),
        entrypoint: String::new(),
        requests: None,
    };
    let key = PolicyKey::cluster(name);
    Arc::new(Policy::new(key, generation, "5f2a9c1e-0000", content, 8))
}

pub(crate) fn mk_route(policy: &Policy, state: RouteState) -> Arc<Route> {
    Arc::new(Route::of(&policy.revision, state))
}

/// A full set with a route of the given state for each revision.
pub(crate) fn mk_set(policies: &[(&Arc<Policy>, RouteState)]) -> Announced {
    let offers = policies
        .iter()
        .map(|(p, _)| (p.revision.clone(), Offer::known(p)));
    let routes = policies.iter().map(|(p, state)| mk_route(p, *state));
    Announced::new(
        offers.collect(),
        routes.map(|route| (route.path.clone(), route)).collect(),
    )
}

/// The response that carries the whole of a set.
pub(crate) fn mk_full(set: &Announced) -> Update {
    Update {
        version: set.version().to_string(),
        offers: set.offers().values().cloned().collect(),
        routes: set.routes().values().cloned().collect(),
        ..Update::default()
    }
}

#[test]
fn a_delta_adds_changes_and_removes() {
    let (a, b) = (mk_policy("a", 1, "x"), mk_policy("b", 1, "y"));
    let before = mk_set(&[(&a, RouteState::Active)]);
    let after = mk_set(&[(&b, RouteState::Active)]);
    let update = Update {
        removed_revisions: vec![a.revision.clone()],
        removed_routes: vec![a.revision.as_str().into()],
        ..mk_full(&after)
    };
    assert_eq!(before.updated(&update, false).unwrap(), after);
    // Without the removal the content does not match the version.
    let lost = Update {
        removed_revisions: vec![],
        ..update
    };
    assert!(matches!(
        before.updated(&lost, false),
        Err(Error::Version { .. })
    ));
}

#[test]
fn complete_routes_replace_the_table() {
    let a = mk_policy("a", 1, "x");
    let stale = Arc::new(Route {
        path: "cluster/a/0-5f2a9c1e".into(),
        revisions: vec![a.revision.clone()],
        state: RouteState::Retired,
    });
    let after = mk_set(&[(&a, RouteState::Active)]);
    let mut routes = after.routes().clone();
    routes.insert(stale.path.clone(), stale);
    let before = Announced::new(after.offers().clone(), routes);
    assert_eq!(before.updated(&mk_full(&after), true).unwrap(), after);
    assert!(before.updated(&mk_full(&after), false).is_err());
}

#[test]
fn duplicates_are_refused() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, RouteState::Active)]);
    let mut twice = mk_full(&set);
    twice.offers.push(Offer::known(&a));
    assert_eq!(
        Announced::default().updated(&twice, true),
        Err(Error::DuplicateRevision(a.revision.clone()))
    );
    let mut twice = mk_full(&set);
    twice.routes.push(mk_route(&a, RouteState::Active));
    assert_eq!(
        Announced::default().updated(&twice, true),
        Err(Error::DuplicateRoute(a.revision.as_str().into()))
    );
}

#[test]
fn no_change_confirms_only_the_same_version() {
    let a = mk_policy("a", 1, "x");
    let set = mk_set(&[(&a, RouteState::Active)]);
    let confirm = |version: Version| Update {
        version: version.to_string(),
        no_change: true,
        ..Update::default()
    };
    assert_eq!(set.updated(&confirm(set.version()), true).unwrap(), set);
    let other = Announced::default().version();
    assert!(set.updated(&confirm(other), true).is_err());
}

#[test]
fn content_must_have_the_digest_that_it_claims() {
    let a = mk_policy("a", 1, "x");
    assert!(Offer::verified((*a).clone()).body.is_ok());
    let mut forged = (*a).clone();
    forged.content.message = "changed on its way".into();
    let offer = Offer::verified(forged);
    assert_eq!(offer.content_digest, a.content_digest);
    assert!(
        offer
            .body
            .unwrap_err()
            .contains("failed to verify the content")
    );
}
