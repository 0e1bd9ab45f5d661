//! Modules that must be signed.

use assent_core::digest::Digest;
use assent_oci::{
    AddressPolicy, Error, ModuleUrl, Pulled, Puller,
    verify::{Keys, Rejected},
};
use oci_client::secrets::RegistryAuth;
use rcgen::KeyPair;
use serde_json::json;

use crate::{
    MODULE, OTHER,
    registry::{Access, LAYER, Registry},
    signer::{self, attach, attach_bundle, bundle, layer, payload, sign, sign_simple},
};

const SIGN: &str = "https://sigstore.dev/cosign/sign/v1";

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

fn keys(of: &[&KeyPair]) -> Keys {
    let pems: Vec<String> = of.iter().map(|key| key.public_key_pem()).collect();
    Keys::any_of(&pems).unwrap()
}

/// A registry with a policy, and the digest of its manifest.
async fn start() -> (Registry, Digest) {
    let registry = Registry::start(Access::Open).await;
    let digest = push(&registry, MODULE).await;
    (registry, digest)
}

/// Moves the tag to a module.
async fn push(registry: &Registry, module: &'static [u8]) -> Digest {
    registry
        .push("org/p:v1", module, LAYER, RegistryAuth::Anonymous)
        .await;
    let pulled = registry.pull(registry.insecure(), "org/p:v1").await;
    let url = pulled.unwrap().resolved_url.to_string();
    url.rsplit_once('@').unwrap().1.parse().unwrap()
}

fn puller(registry: &Registry, keys: Keys) -> Puller {
    Puller::new(registry.insecure(), AddressPolicy::PUBLIC)
        .unwrap()
        .with_verification(keys)
}

async fn pull(registry: &Registry, keys: Keys) -> Result<Pulled, Error> {
    let url: ModuleUrl = format!("{}/org/p:v1", registry.address).parse().unwrap();
    puller(registry, keys).pull(&url).await
}

#[track_caller]
fn check_rejected(pulled: Result<Pulled, Error>, expect: Rejected) {
    match pulled {
        Err(error @ Error::SignatureRejected { .. }) => {
            assert!(!error.is_retryable());
            let Error::SignatureRejected { why, .. } = error else {
                unreachable!()
            };
            assert_eq!(why, expect);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_signed_module_is_pulled_and_says_by_whom() {
    let (registry, digest) = start().await;
    let (own, other) = (key(), key());
    sign_simple(&registry, "org/p", digest, &[&other, &own]).await;
    let trusted = keys(&[&own]);
    let signer = trusted.fingerprints().next();
    let pulled = pull(&registry, trusted).await.unwrap();
    assert_eq!(pulled.bytes, MODULE);
    assert_eq!(pulled.verified_by, signer);
    assert!(
        pulled
            .resolved_url
            .to_string()
            .ends_with(&digest.to_string())
    );
    // The pin is as good as the tag.
    let again = puller(&registry, keys(&[&own]))
        .pull(&pulled.resolved_url)
        .await;
    assert_eq!(again.unwrap().verified_by, signer);
    // Without keys nobody asks.
    let pulled = registry
        .pull(registry.insecure(), "org/p:v1")
        .await
        .unwrap();
    assert_eq!(pulled.verified_by, None);
}

#[tokio::test]
async fn any_of_several_keys_will_do() {
    let (registry, digest) = start().await;
    let (a, b) = (key(), KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap());
    sign_simple(&registry, "org/p", digest, &[&b]).await;
    let pulled = pull(&registry, keys(&[&a, &b])).await.unwrap();
    assert_eq!(pulled.verified_by, keys(&[&b]).fingerprints().next());
}

#[tokio::test]
async fn a_bundle_is_a_signature_too() {
    let (registry, digest) = start().await;
    let own = key();
    // One of the older form that means nothing does not hide it.
    sign_simple(&registry, "org/p", digest, &[&key()]).await;
    attach_bundle(&registry, "org/p", digest, bundle(&own, digest, SIGN)).await;
    let pulled = pull(&registry, keys(&[&own])).await.unwrap();
    assert_eq!(pulled.verified_by, keys(&[&own]).fingerprints().next());
    let provenance = bundle(&own, digest, "https://slsa.dev/provenance/v1");
    attach_bundle(&registry, "org/p", digest, provenance).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::OtherContent);
}

#[tokio::test]
async fn what_nobody_trusted_signed_is_refused() {
    let (registry, digest) = start().await;
    let (own, other) = (key(), key());
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::Unsigned);
    sign_simple(&registry, "org/p", digest, &[&other]).await;
    let error = pull(&registry, keys(&[&own])).await;
    let said = error.as_ref().unwrap_err().to_string();
    let name = keys(&[&own]).fingerprints().next().unwrap().to_string();
    assert!(
        said.contains(&name) && said.contains("cosign sign"),
        "{said}"
    );
    check_rejected(error, Rejected::OtherKey(1));
}

#[tokio::test]
async fn a_signature_of_something_else_is_refused() {
    let (registry, digest) = start().await;
    let own = key();
    // A good signature of another policy, copied to where this one's should be.
    let copied = payload(Digest::of(b"another manifest"));
    let signature = sign(&own, copied.as_bytes());
    let copied = layer(&registry, "org/p", &copied, &signature).await;
    attach(&registry, "org/p", digest, &[copied]).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::OtherContent);
    // The same signature under a payload that names this one.
    let tampered = layer(&registry, "org/p", &payload(digest), &signature).await;
    attach(&registry, "org/p", digest, &[tampered]).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::OtherKey(1));
}

#[tokio::test]
async fn a_tag_that_moves_leaves_its_signature_behind() {
    let (registry, digest) = start().await;
    let own = key();
    sign_simple(&registry, "org/p", digest, &[&own]).await;
    let signed = pull(&registry, keys(&[&own])).await.unwrap();
    push(&registry, OTHER).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::Unsigned);
    let pinned = puller(&registry, keys(&[&own]))
        .pull(&signed.resolved_url)
        .await;
    assert_eq!(pinned.unwrap().bytes, MODULE);
}

#[tokio::test]
async fn odd_signatures_are_passed_over() {
    let (registry, digest) = start().await;
    let own = key();
    let good = payload(digest);
    let good = layer(&registry, "org/p", &good, &sign(&own, good.as_bytes())).await;
    let mut unsigned = good.clone();
    unsigned["annotations"] = json!(null);
    let mut foreign = good.clone();
    foreign["mediaType"] = "application/octet-stream".into();
    let garbage = layer(&registry, "org/p", "no JSON", "no base64!").await;
    let huge = layer(&registry, "org/p", &" ".repeat(200 << 10), "AAAA").await;
    let odd = [unsigned, foreign, garbage, huge];
    attach(&registry, "org/p", digest, &odd).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::Unreadable);
    let [a, b, c, d] = odd;
    attach(&registry, "org/p", digest, &[a, good.clone(), b, c, d]).await;
    pull(&registry, keys(&[&own])).await.unwrap();
    // Only so many are looked at, the newest first.
    let noise = layer(&registry, "org/p", "{}", "AAAA").await;
    let flood = |first, last| {
        let mut layers = vec![noise.clone(); 40];
        (layers[0], layers[39]) = (first, last);
        layers
    };
    let buried = flood(good.clone(), noise.clone());
    attach(&registry, "org/p", digest, &buried).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::OtherKey(32));
    attach(&registry, "org/p", digest, &flood(noise.clone(), good)).await;
    pull(&registry, keys(&[&own])).await.unwrap();
    // Something else altogether under the tag of signatures.
    let index = json!({"schemaVersion": 2, "mediaType": signer::INDEX, "manifests": []});
    let name = format!("org/p:sha256-{}.sig", digest.hex());
    registry.push_manifest(&name, signer::INDEX, &index).await;
    check_rejected(pull(&registry, keys(&[&own])).await, Rejected::Unsigned);
}

#[tokio::test]
async fn a_registry_that_goes_down_says_nothing_about_signatures() {
    let (mut registry, digest) = start().await;
    let own = key();
    sign_simple(&registry, "org/p", digest, &[&own]).await;
    registry.stop();
    let error = pull(&registry, keys(&[&own])).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}
