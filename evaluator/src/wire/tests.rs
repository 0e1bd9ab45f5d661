#![allow(clippy::unwrap_used)]
use assent_core::{RouteState, session::Stage};

use super::*;
use crate::announced::{
    Announced,
    tests::{mk_full, mk_policy_of, mk_set},
};

fn set() -> Announced {
    let (a, b) = (
        mk_policy_of("a", 3, "x", true),
        mk_policy_of("b", 1, "y", false),
    );
    mk_set(&[(&a, RouteState::Active), (&b, RouteState::Candidate)])
}

fn message() -> v1::DeltaPolicyDiscoveryResponse {
    let set = set();
    let policies: Vec<_> = set
        .offers()
        .values()
        .map(|o| o.body.clone().unwrap())
        .collect();
    let policies: Vec<_> = policies.iter().collect();
    let routes: Vec<_> = set.routes().values().collect();
    let bytes = write_set(&set.version(), &policies, &routes);
    v1::DeltaPolicyDiscoveryResponse::decode(bytes.as_slice()).unwrap()
}

#[test]
fn a_set_survives_the_way_to_disk_and_back() {
    let set = set();
    let update = read_set(&message().encode_to_vec()).unwrap();
    assert_eq!(update, mk_full(&set));
    assert_eq!(Announced::default().updated(&update, true).unwrap(), set);
}

#[test]
fn what_is_not_understood_refuses_one_revision() {
    type Break = fn(&mut v1::Policy);
    let breaks: [(Break, &str); 5] = [
        (|p| p.mode = 7, "mode 7"),
        (|p| p.mode = 0, "mode 0"),
        (|p| p.module_digest = "md5:1".into(), "module digest"),
        (
            |p| p.policy = "cluster/../etc".into(),
            "not the name of a policy",
        ),
        (
            |p| p.message = "another".into(),
            "failed to verify the content",
        ),
    ];
    for (damage, words) in breaks {
        let mut message = message();
        damage(&mut message.policies[0]);
        let update = read(message).unwrap().update;
        let why = update.offers[0].body.clone().unwrap_err();
        assert!(why.contains(words), "{why}");
        assert!(update.offers[1].body.is_ok());
        // The version covers names and announced digests: it still verifies.
        assert!(Announced::default().updated(&update, true).is_ok());
    }
}

#[test]
fn what_the_version_needs_refuses_the_set() {
    let mut bad = message();
    bad.policies[0].content_digest = "sha256:1".into();
    assert!(matches!(read(bad), Err(Error::ContentDigest(..))));
    let mut bad = message();
    bad.routes[0].state = 9;
    assert!(matches!(read(bad), Err(Error::RouteState(unknown)) if unknown.state == 9));
    let mut bad = message();
    bad.policies[0].revision.clear();
    assert_eq!(read(bad), Err(Error::Nameless));
}

#[test]
fn a_nack_says_where_and_why() {
    let failure = Failure::transient(Stage::Fetch, "no route");
    let answer = answer(Answer {
        nonce: "n".into(),
        error: Some("failed".into()),
        rejected: vec![(RevisionId::from_wire("cluster/a/1-x"), failure)],
        ..Answer::default()
    });
    assert_eq!(answer.response_nonce, "n");
    assert_eq!(answer.error_detail.unwrap().code, UNAVAILABLE);
    let entry = &answer.rejected[0];
    assert_eq!(
        (entry.stage, entry.retryable),
        (v1::Stage::Fetch as i32, true)
    );
    assert_eq!(entry.status.as_ref().unwrap().message, "no route");
}
