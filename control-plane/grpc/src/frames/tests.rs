#![allow(clippy::unwrap_used)]
use std::{collections::BTreeMap, time::UNIX_EPOCH};

use assent_core::{
    Digest, Mode, Policy, PolicyKey,
    policy::{Content as PolicyContent, Limits},
    session::{InitialRequest, Input, Output, Session},
};

use super::*;

fn mk_snapshot(names: &[&str]) -> Arc<Snapshot> {
    let policies = names.iter().map(|name| {
        let content = PolicyContent {
            module_digest: Digest::of(name.as_bytes()),
            abi: "wapc".into(),
            settings_json: (*b"{}").into(),
            settings_salt: [].into(),
            mode: Mode::Monitor,
            mutating: true,
            limits: Limits::default(),
            context_resources: Vec::new(),
            host_capabilities: Vec::new(),
            message: String::new(),
            entrypoint: String::new(),
            requests: None,
        };
        Arc::new(Policy::new(PolicyKey::cluster(name), 1, "uid", content, 1))
    });
    Arc::new(Snapshot::new(policies, []))
}

fn mk_published(snapshot: &Arc<Snapshot>) -> Published {
    Published::new(snapshot.clone(), UNIX_EPOCH, Arc::default())
}

/// The first response of a stream whose client holds `held`.
fn mk_response(to: &Arc<Snapshot>, held: &[&str]) -> Response {
    let digest = Digest::of(b"held");
    let held: BTreeMap<_, _> = held.iter().map(|id| ((*id).to_owned(), digest)).collect();
    let first = InitialRequest {
        held,
        ..InitialRequest::default()
    };
    let mut out = Vec::new();
    let mut session = Session::new(StreamKind::Delta, 1, first);
    session.step(Input::Publish(to.clone()), &mut out);
    match out.swap_remove(0) {
        Output::Send(response) => response,
        other => panic!("expected a response, got {other:?}"),
    }
}

#[test]
fn streams_that_send_the_same_share_one_encoding() {
    let snapshot = mk_snapshot(&["a", "b"]);
    let published = mk_published(&snapshot);
    let full = published.encoded(
        StreamKind::Delta,
        &mk_response(&snapshot, &[]),
        Settings::Sent,
    );
    let again = published.encoded(
        StreamKind::Delta,
        &mk_response(&snapshot, &[]),
        Settings::Sent,
    );
    assert!(Arc::ptr_eq(&full, &again));
    let world = published.encoded(
        StreamKind::StateOfTheWorld,
        &mk_response(&snapshot, &[]),
        Settings::Sent,
    );
    assert!(!Arc::ptr_eq(&full, &world));

    let claim = published.encoded(
        StreamKind::Delta,
        &mk_response(&snapshot, &["x"]),
        Settings::Sent,
    );
    let again = published.encoded(
        StreamKind::Delta,
        &mk_response(&snapshot, &["x"]),
        Settings::Sent,
    );
    let other = published.encoded(
        StreamKind::Delta,
        &mk_response(&snapshot, &["y"]),
        Settings::Sent,
    );
    assert!(Arc::ptr_eq(&claim, &again));
    assert!(!Arc::ptr_eq(&claim, &other));
}

#[test]
fn the_cache_is_bounded() {
    let snapshot = mk_snapshot(&["a"]);
    let published = mk_published(&snapshot);
    for n in 0..2 * MAX_CACHED {
        published.encoded(
            StreamKind::Delta,
            &mk_response(&snapshot, &[&n.to_string()]),
            Settings::Sent,
        );
    }
    assert_eq!(published.frames.lock().unwrap().len(), MAX_CACHED);
}

#[test]
fn large_differences_are_shared_up_to_a_bound() {
    let names: Vec<String> = (0..2 * MAX_CLAIM_POLICIES)
        .map(|n| format!("p-{n}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let snapshot = mk_snapshot(&names);
    let published = mk_published(&snapshot);
    let encode = |held: &str| {
        let response = mk_response(&snapshot, &[held]);
        published.encoded(StreamKind::Delta, &response, Settings::Sent)
    };
    assert!(Arc::ptr_eq(&encode("first"), &encode("first")));
    for n in 0..2 * MAX_LARGE_CLAIMS {
        encode(&n.to_string());
    }
    assert_eq!(published.frames.lock().unwrap().len(), MAX_LARGE_CLAIMS);
    assert!(Arc::ptr_eq(&encode("first"), &encode("first")));

    let long = "x".repeat(MAX_CLAIM_BYTES + 1);
    let response = mk_response(&mk_snapshot(&["a"]), &[&long]);
    assert!(Key::of(StreamKind::Delta, &response.body).is_large());
}

#[test]
fn responses_to_another_snapshot_are_not_shared() {
    let (old, new) = (mk_snapshot(&["a"]), mk_snapshot(&["a", "b"]));
    let published = mk_published(&new);
    let encoded = published.encoded(StreamKind::Delta, &mk_response(&old, &[]), Settings::Sent);
    assert!(
        encoded.len()
            < published
                .encoded(StreamKind::Delta, &mk_response(&new, &[]), Settings::Sent)
                .len()
    );
}

#[test]
fn confidential_settings_are_encoded_apart() {
    let plain = mk_snapshot(&["a"]);
    let mut secret = Policy::clone(plain.policies().next().unwrap());
    secret.content.settings_json = (*b"{\"token\":\"hunter2\"}").into();
    secret.content.settings_salt = (*b"pepper").into();
    secret.content_digest = secret.content.digest();
    let secret = Arc::new(Snapshot::new([Arc::new(secret)], []));
    let encode = |snapshot: &Arc<Snapshot>, settings| {
        let published = mk_published(snapshot);
        let response = mk_response(snapshot, &[]);
        let first = published.encoded(StreamKind::Delta, &response, Settings::Sent);
        let encoded = published.encoded(StreamKind::Delta, &response, settings);
        (Arc::ptr_eq(&first, &encoded), format!("{encoded:?}"))
    };
    assert!(encode(&plain, Settings::Withheld).0, "nothing is withheld");
    let (shared, sent) = encode(&secret, Settings::Sent);
    assert!(shared && sent.contains("hunter2") && sent.contains("pepper"));
    let (shared, withheld) = encode(&secret, Settings::Withheld);
    assert!(!shared && !withheld.contains("hunter2") && !withheld.contains("pepper"));
}
