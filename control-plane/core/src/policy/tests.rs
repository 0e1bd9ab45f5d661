use std::sync::Arc;

use super::*;
use crate::digest::Digest;

#[test]
fn revision_names_are_parsed_into_their_parts() {
    let key = PolicyKey::namespaced("ns", "no-root");
    let id = RevisionId::new(&key, 12, "5f2a9c1e-0000-4000-8000-000000000000");
    assert_eq!(id.as_str(), "namespaced/ns/no-root/12-5f2a9c1e");
    assert_eq!(id.short(), "12-5f2a9c1e");
    let read = RevisionId::from_wire(id.as_str());
    assert_eq!((&read, read.parts()), (&id, id.parts()));
    assert_eq!((read.policy(), read.generation()), (Some(&key), Some(12)));
}

#[test]
fn confidential_settings_are_salted_and_not_formatted() {
    let key = PolicyKey::cluster("a");
    let plain = Policy::without_content(key, 1, "5f2a9c1e", Digest::of(b"")).content;
    let salted = |salt: &[u8]| Content {
        settings_json: Arc::from(*b"{\"token\":\"hunter2\"}"),
        settings_salt: Arc::from(salt),
        ..plain.clone()
    };
    assert_ne!(salted(b"").digest(), salted(b"a").digest());
    assert_ne!(salted(b"a").digest(), salted(b"b").digest());
    assert!(format!("{:?}", salted(b"")).contains("hunter2"));
    assert!(!format!("{:?}", salted(b"a")).contains("hunter2"));
}

#[test]
fn keys_of_requests_differ_from_those_of_admission() {
    let keys = [
        (PolicyKey::cluster("a"), None, false),
        (PolicyKey::namespaced("ns", "a"), Some("ns"), false),
        (PolicyKey::cluster_requests("a"), None, true),
        (PolicyKey::requests("ns", "a"), Some("ns"), true),
    ];
    for (key, namespace, requests) in &keys {
        assert_eq!(PolicyKey::parse(key.as_str()).as_ref(), Some(key));
        assert_eq!((key.namespace(), key.name()), (*namespace, "a"));
        assert_eq!(key.is_for_requests(), *requests, "{key}");
    }
}

#[test]
fn names_of_another_form_are_kept_without_parts() {
    for text in [
        "",
        "a",
        "cluster/a",
        "cluster/a/1",
        "cluster/a/1-",
        "cluster/a/01-x",
        "cluster/a/+1-x",
        "cluster/a/x-1",
        "elsewhere/a/1-x",
        "cluster/A/1-x",
    ] {
        let id = RevisionId::from_wire(text);
        assert_eq!((id.as_str(), id.parts()), (text, None));
    }
}
