//! Policies that ask about images.

use std::time::Duration;

use assent_core::RouteState::Active;
use assent_evaluator::{Config, Handle, RegistryAccess};
use assent_oci::Sources;
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::{
    guests,
    http::Client,
    images,
    peer::{Peer, Stream},
    registry::Registry,
    set::{Revision, full, snapshot},
    signer::sign_simple,
    start_with,
};

const CONFIG: &str = r#"{"architecture":"amd64","os":"linux","config":{"User":"65533"}}"#;

/// An evaluator that serves one policy.
struct Serving {
    path: String,
    client: Client,
    _evaluator: Handle,
    _peer: Peer,
    _stream: Stream,
}

impl Serving {
    async fn start(wasm: &[u8], capabilities: &[&str], access: RegistryAccess) -> Self {
        let mut revision = Revision::new("a", 1, wasm);
        revision.capabilities = capabilities.iter().map(|c| (*c).to_owned()).collect();
        revision.timeout_ms = 10_000;
        Self::start_with(&revision, access).await
    }

    async fn start_with(revision: &Revision, access: RegistryAccess) -> Self {
        let mut peer = Peer::start().await;
        peer.serve(revision);
        let change = |config: &mut Config| config.registries = access;
        let evaluator = start_with(&peer, change).await;
        let mut stream = peer.stream().await;
        let all = snapshot(&[(revision, Active)]);
        stream.applied(full(&all, "n1")).await;
        Self {
            path: format!("/validate/{}", revision.path()),
            client: Client::plain(evaluator.listen_addr()).await,
            _evaluator: evaluator,
            _peer: peer,
            _stream: stream,
        }
    }

    /// What the policy says of a pod.
    async fn said(&mut self) -> String {
        let (_, answer) = self.client.review(&self.path).await;
        let message = &answer["response"]["status"]["message"];
        message.as_str().unwrap_or_default().to_owned()
    }
}

fn insecure(registry: &Registry) -> RegistryAccess {
    RegistryAccess {
        sources: Sources {
            insecure: vec![registry.address.to_string()],
            ..Sources::default()
        },
        ..RegistryAccess::default()
    }
}

/// What a policy hears that makes this call.
async fn heard(registry: &Registry, operation: &str, payload: &Value) -> String {
    let guest = guests::ask("oci", operation, &payload.to_string());
    let mut serving = Serving::start(&guest, &["oci/*"], insecure(registry)).await;
    serving.said().await
}

#[tokio::test]
async fn images_are_told_in_the_words_of_the_sdks() {
    let registry = images::registry().await;
    let digest = images::push(&registry, "org/image:v1", CONFIG).await;
    let image = json!(images::full_name(&registry, "org/image:v1"));
    let words = heard(&registry, "v1/manifest_digest", &image).await;
    let expect = format!(r#"{{"digest":"{digest}"}}"#);
    assert!(words.ends_with(&expect), "{words}");
    let words = heard(&registry, "v1/oci_manifest", &image).await;
    assert!(words.contains(r#""schemaVersion":2"#), "{words}");
    assert!(!words.contains("User"), "{words}");
    let words = heard(&registry, "v1/oci_manifest_config", &image).await;
    assert!(words.contains(r#"{"manifest":{"#), "{words}");
    let expect = format!(r#""digest":"{digest}","config":{CONFIG}}}"#);
    assert!(words.ends_with(&expect), "{words}");
}

#[tokio::test]
async fn signatures_are_verified_in_both_versions() {
    let registry = images::registry().await;
    let digest = images::push(&registry, "org/image:v1", CONFIG).await;
    let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    sign_simple(&registry, "org/image", digest, &[&own]).await;
    let asked = |key: &KeyPair, env: Value| {
        let image = images::full_name(&registry, "org/image:v1");
        json!({"image": image, "pub_keys": [key.public_key_pem()], "annotations": env})
    };
    let v1 = |asked: Value| json!({"SigstorePubKeyVerify": asked});
    let v2 = |mut asked: Value| {
        asked["type"] = "SigstorePubKeyVerify".into();
        asked
    };
    let trusted = format!(r#"{{"is_trusted":true,"digest":"{digest}"}}"#);
    let words = heard(&registry, "v1/verify", &v1(asked(&own, json!(null)))).await;
    assert!(words.ends_with(&trusted), "{words}");
    let team = json!({"team": "a"});
    let words = heard(&registry, "v2/verify", &v2(asked(&own, team))).await;
    assert!(words.ends_with(&trusted), "{words}");
    let test = json!({"env": "test"});
    let words = heard(&registry, "v2/verify", &v2(asked(&own, test))).await;
    assert!(words.contains("annotations"), "{words}");
    let words = heard(&registry, "v1/verify", &v1(asked(&other, json!(null)))).await;
    assert!(words.contains("none of them by a trusted key"), "{words}");
}

#[tokio::test]
async fn registries_are_asked_only_where_that_is_allowed() {
    let registry = images::registry().await;
    images::push(&registry, "org/image:v1", CONFIG).await;
    let image = json!(images::full_name(&registry, "org/image:v1")).to_string();
    let guest = guests::ask("oci", "v1/manifest_digest", &image);
    let none = &["oci/v1/verify", "net/*"];
    let mut serving = Serving::start(&guest, none, insecure(&registry)).await;
    let words = serving.said().await;
    assert!(words.contains("not among the policy's host"), "{words}");
    // A registry inside that nobody declared.
    let mut serving = Serving::start(&guest, &["*"], RegistryAccess::default()).await;
    let words = serving.said().await;
    assert!(words.contains("loopback address"), "{words}");
}

#[tokio::test]
async fn an_answer_is_remembered_and_a_failure_is_not() {
    let mut registry = images::registry().await;
    let image = json!(images::full_name(&registry, "org/image:v1")).to_string();
    let guest = guests::ask("oci", "v1/manifest_digest", &image);
    let mut serving = Serving::start(&guest, &["oci/*"], insecure(&registry)).await;
    let words = serving.said().await;
    assert!(words.contains("404"), "{words}");
    let digest = images::push(&registry, "org/image:v1", CONFIG).await;
    let words = serving.said().await;
    assert!(words.contains(&digest.to_string()), "{words}");
    registry.stop();
    assert_eq!(serving.said().await, words);
}

#[tokio::test]
async fn a_slow_registry_ends_one_evaluation() {
    // Takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let image = json!(format!("{address}/org/image:v1")).to_string();
    let guest = guests::insist("oci", "v1/manifest_digest", &image);
    let mut revision = Revision::new("a", 1, &guest);
    revision.capabilities = vec!["oci/*".to_owned()];
    revision.timeout_ms = Duration::from_millis(300).as_millis().try_into().unwrap();
    let access = RegistryAccess {
        sources: Sources {
            insecure: vec![address.to_string()],
            ..Sources::default()
        },
        ..RegistryAccess::default()
    };
    // Loading it asks nobody: a policy must not hang on a registry to be loaded.
    let mut serving = Serving::start_with(&revision, access).await;
    let words = serving.said().await;
    assert!(words.contains("did not answer within 300 ms"), "{words}");
}
