#![allow(clippy::unwrap_used)]
use super::*;

fn mk_node(id: &str) -> v1::Node {
    v1::Node {
        id: id.to_owned(),
        ..v1::Node::default()
    }
}

#[test]
fn nodes_are_bounded_and_named() {
    assert_eq!(
        node(mk_node("evaluator-0")).unwrap().policy_server,
        "default"
    );
    for bad in ["", "UPPER", "a_b", "../x", "-a"] {
        assert_eq!(node(mk_node(bad)), Err(Error::BadId), "{bad}");
    }
    let mut large = mk_node("a");
    large.abis = vec!["x".repeat(1000); 9];
    assert!(matches!(node(large), Err(Error::LargeNode(_))));
}

#[test]
fn texts_are_cut_at_a_character() {
    let text = format!("{}é", "x".repeat(MAX_ERROR_BYTES - 1));
    assert_eq!(cut(text), "x".repeat(MAX_ERROR_BYTES - 1));
    assert_eq!(cut("short".to_owned()), "short");
}

#[test]
fn a_digest_that_cannot_be_read_matches_no_content() {
    let mut request = v1::DeltaPolicyDiscoveryRequest::default();
    request
        .initial_revisions
        .insert("a".into(), "nonsense".into());
    let good = Digest::of(b"x");
    request
        .initial_revisions
        .insert("b".into(), good.to_string());
    let first = request.into_initial().unwrap();
    assert_eq!(first.held["a"], Digest::from_raw([0; 32]));
    assert_eq!(first.held["b"], good);
}

#[test]
fn a_map_has_at_most_20_000_entries() {
    let digest = Digest::of(b"x").to_string();
    let held = (0..MAX_HELD).map(|n| (n.to_string(), digest.clone()));
    let mut request = v1::DeltaPolicyDiscoveryRequest {
        initial_revisions: held.collect(),
        ..Default::default()
    };
    assert!(request.clone().into_initial().is_ok());
    request.initial_revisions.insert("one more".into(), digest);
    assert_eq!(
        request.into_initial().unwrap_err(),
        Error::TooManyHeld(MAX_HELD + 1)
    );
}

#[test]
fn more_than_64_rejections_are_truncated() {
    let rejected = |n| v1::DeltaPolicyDiscoveryRequest {
        rejected: vec![v1::RejectedPolicy::default(); n],
        ..Default::default()
    };
    assert!(!rejected(64).into_answer().truncated);
    let answer = rejected(65).into_answer();
    assert!(answer.truncated);
    assert_eq!(answer.rejected.len(), 64);
}
