#![allow(clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use assent_api::settings::SecretKeyRef;
use serde_json::{Value, json};

use super::*;
use crate::testing::{failure, not_found, scripted};

/// 32 bytes.
const KEY_DATA: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn source(name: &str, key: &str) -> SettingsSource {
    SettingsSource {
        secret_key_ref: SecretKeyRef {
            name: name.into(),
            key: key.into(),
        },
        path: None,
    }
}

#[tokio::test]
async fn policies_read_secrets_of_one_namespace() {
    let (client, requests) = scripted(|_| (200, json!({"data": {"a": "MQ==", "b": "Mg=="}})));
    let reader = SettingsReader::new(client, "assent-system");
    let sources = [source("db", "b"), source("db", "a")];
    let values = reader.read(Some("shop"), &sources).await.unwrap();
    assert_eq!(values, [b"2", b"1"]);
    reader.read(None, &sources[..1]).await.unwrap();
    assert_eq!(
        requests.take(),
        [
            "GET /api/v1/namespaces/shop/secrets/db",
            "GET /api/v1/namespaces/assent-system/secrets/db",
        ]
    );
}

#[tokio::test]
async fn errors_name_the_entry_and_the_remedy() {
    let check = async |answer: (u16, Value), expected: &str| {
        let (client, _) = scripted(move |_| answer.clone());
        let reader = SettingsReader::new(client, "assent-system");
        let error = reader.read(None, &[source("db", "token")]).await;
        let error = error.unwrap_err().to_string();
        let start = "spec.settingsFrom[0]: the Secret db in namespace assent-system: ";
        assert!(
            error.starts_with(start) && error.contains(expected),
            "{error}"
        );
    };
    check(not_found(), "there is no such Secret").await;
    check(failure(403, "Forbidden"), "settingsSecrets").await;
    check((200, json!({"data": {"other": "eA=="}})), "no key token").await;
    let unreadable = json!({"data": {"token": "aHVudGVyMg==", "other": "hunter2?"}});
    check((200, unreadable), "cannot be parsed").await;
}

#[tokio::test]
async fn key_is_created_by_whoever_is_first() {
    // Another replica of the control plane creates it in the same moment.
    let created = Arc::new(AtomicBool::new(false));
    let (client, requests) = scripted(move |line| {
        let is_post = line.starts_with("POST");
        match created.fetch_or(is_post, Relaxed) {
            true => (200, json!({"data": {"key": KEY_DATA}})),
            false if is_post => failure(409, "AlreadyExists"),
            false => not_found(),
        }
    });
    let key = settings_key(&client, "assent-system").await.unwrap();
    let again = settings_key(&client, "assent-system").await.unwrap();
    let sealed = key.protect("a", *b"{}").sealed;
    assert!(again.open("a", &sealed).is_ok());
    let requests = requests.take_all();
    let lines: Vec<&str> = requests.iter().map(|r| r.line.as_str()).collect();
    let get = "GET /api/v1/namespaces/assent-system/secrets/assent-settings-key";
    let post = "POST /api/v1/namespaces/assent-system/secrets";
    assert_eq!(lines, [get, post, get, get]);
    let proposed = requests[1].body["data"]["key"].as_str().unwrap();
    assert_eq!(proposed.len(), KEY_DATA.len());
    assert_ne!(proposed, KEY_DATA);
}

#[tokio::test]
async fn damaged_key_is_an_error() {
    for data in [
        json!({}),
        json!({"key": "eA=="}),
        json!({"other": KEY_DATA}),
    ] {
        let (client, _) = scripted(move |_| (200, json!({"data": data})));
        let damaged = settings_key(&client, "assent-system").await.unwrap_err();
        assert!(damaged.to_string().contains("delete it"), "{damaged}");
    }
}
