#![allow(clippy::unwrap_used)]
use std::time::UNIX_EPOCH;

use assent_core::{
    Digest, Policy, PolicyKey, Route, RouteState,
    policy::Content as PolicyContent,
    session::{Answer, InitialRequest, Input, Output, Session},
};

use super::*;

fn mk_policy(name: &str, settings: usize) -> Arc<Policy> {
    let content = PolicyContent::new(
        Digest::of(name.as_bytes()),
        "wapc",
        vec![b'x'; settings].into(),
    );
    Arc::new(Policy::new(
        PolicyKey::cluster(name),
        1,
        "0a1b2c3d-x",
        content,
        9,
    ))
}

fn mk_snapshot(names: &[&str], settings: usize) -> Snapshot {
    let policies: Vec<_> = names.iter().map(|name| mk_policy(name, settings)).collect();
    let routes = policies
        .iter()
        .map(|p| Route::of(&p.revision, RouteState::Active).into());
    Snapshot::new(policies.clone(), routes.collect::<Vec<_>>())
}

fn mk_header() -> Header {
    Header {
        version: "v".into(),
        control_plane: v1::ControlPlane::default(),
        published_at: UNIX_EPOCH,
    }
}

/// The first nonce of stream 7.
fn mk_nonce() -> Nonce {
    let mut out = Vec::new();
    let mut session = Session::new(StreamKind::Delta, 7, InitialRequest::default());
    session.step(Input::Publish(Arc::new(Snapshot::empty())), &mut out);
    session.step(Input::Answer(Answer::default()), &mut out);
    match out.first() {
        Some(Output::Send(response)) => response.nonce,
        other => panic!("expected a response, got {other:?}"),
    }
}

/// Undoes the framing: the messages without their prefixes.
fn messages(encoded: &Encoded) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    encoded.chunks(mk_nonce(), &mut chunks);
    assert!(
        chunks
            .iter()
            .all(|c| c.len() <= CHUNK_BYTES && !c.is_empty())
    );
    let mut wire = Bytes::from(chunks.concat());
    let mut list = Vec::new();
    while !wire.is_empty() {
        let prefix = wire.split_to(5);
        assert_eq!(prefix[0], 0);
        let len = u32::from_be_bytes(prefix[1..].try_into().unwrap());
        list.push(wire.split_to(len as usize));
    }
    list
}

#[test]
fn a_nonce_in_front_decodes_like_a_normal_message() {
    for settings in [0, COPY_BYTES, 10 * CHUNK_BYTES] {
        let snapshot = mk_snapshot(&["a", "b"], settings);
        let encoded = Encoded::new(
            StreamKind::Delta,
            &mk_header(),
            Content::full(&snapshot, Settings::Sent),
        );
        let [message] = messages(&encoded).try_into().unwrap();
        let decoded = v1::DeltaPolicyDiscoveryResponse::decode(message).unwrap();
        let mut expected = Content::full(&snapshot, Settings::Sent).into_delta(&mk_header(), 0, 0);
        expected.nonce = "7-1".into();
        assert_eq!(decoded, expected);
    }
}

#[test]
fn a_state_of_the_world_has_its_nonce_in_its_own_field() {
    let snapshot = mk_snapshot(&["a"], 3);
    let encoded = Encoded::new(
        StreamKind::StateOfTheWorld,
        &mk_header(),
        Content::full(&snapshot, Settings::Sent),
    );
    let [message] = messages(&encoded).try_into().unwrap();
    let decoded = v1::PolicyDiscoveryResponse::decode(message).unwrap();
    let mut expected =
        Content::full(&snapshot, Settings::Sent).into_state_of_the_world(&mk_header(), 0, 0);
    expected.nonce = "7-1".into();
    assert_eq!(decoded, expected);
}

#[test]
fn a_large_set_is_split_and_loses_nothing() {
    let snapshot = mk_snapshot(&["a", "b", "c", "d", "e"], 1000);
    let limit = 2500;
    let encoded = Encoded::with_limit(
        StreamKind::Delta,
        &mk_header(),
        Content::full(&snapshot, Settings::Sent),
        limit,
    );
    let mut policies = Vec::new();
    let mut routes = Vec::new();
    let list = messages(&encoded);
    let count = u32::try_from(list.len()).unwrap();
    assert!(count > 2);
    for (message, number) in list.into_iter().zip(1..) {
        let part = v1::DeltaPolicyDiscoveryResponse::decode(message).unwrap();
        assert_eq!((part.part, part.parts), (number, count));
        assert_eq!((&*part.version_info, &*part.nonce), ("v", "7-1"));
        assert!(part.encoded_len() < limit + 200);
        policies.extend(part.policies);
        routes.extend(part.routes);
    }
    let whole = Content::full(&snapshot, Settings::Sent);
    assert_eq!((policies, routes), (whole.policies, whole.routes));
}

#[test]
fn parts_stay_below_a_clients_limit() {
    let snapshot = mk_snapshot(&["a", "b", "c", "d", "e"], 1 << 20);
    let encoded = Encoded::new(
        StreamKind::StateOfTheWorld,
        &mk_header(),
        Content::full(&snapshot, Settings::Sent),
    );
    let list = messages(&encoded);
    assert_eq!(list.len(), 3);
    assert!(list.iter().all(|message| message.len() < 4 << 20));
}

#[test]
fn streams_share_what_is_large() {
    let snapshot = mk_snapshot(&["a"], 2 * CHUNK_BYTES);
    let encoded = Encoded::new(
        StreamKind::Delta,
        &mk_header(),
        Content::full(&snapshot, Settings::Sent),
    );
    let (mut one, mut two) = (Vec::new(), Vec::new());
    encoded.chunks(mk_nonce(), &mut one);
    encoded.chunks(mk_nonce(), &mut two);
    assert_eq!(one[1].as_ptr(), two[1].as_ptr());
    assert_eq!(one[1].as_ptr(), encoded.parts[0].as_ptr());
}

#[test]
fn a_confirmation_is_one_small_chunk() {
    let encoded = Encoded::new(StreamKind::Delta, &mk_header(), Content::no_change());
    let mut chunks = Vec::new();
    encoded.chunks(mk_nonce(), &mut chunks);
    assert_eq!(chunks.len(), 1);
    let [message] = messages(&encoded).try_into().unwrap();
    let decoded = v1::DeltaPolicyDiscoveryResponse::decode(message).unwrap();
    assert!(decoded.no_change && decoded.policies.is_empty());
}
