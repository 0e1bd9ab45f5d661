//! Signs in a registry, in the very forms that `cosign sign --key` leaves there.

use assent_core::digest::Digest;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::registry::Registry;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
pub(crate) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// The payload about a digest.
pub(crate) fn payload(digest: Digest) -> String {
    json!({
        "critical": {
            "identity": {"docker-reference": "registry.example/org/p"},
            "image": {"docker-manifest-digest": digest.to_string()},
            "type": "cosign container image signature"
        },
        "optional": {"team": "a"}
    })
    .to_string()
}

/// The signature over some bytes, base64.
pub(crate) fn sign(key: &KeyPair, message: &[u8]) -> String {
    STANDARD.encode(key.sign(message).unwrap())
}

/// A layer with a payload and a signature that may or may not be over it.
pub(crate) async fn layer(
    registry: &Registry,
    repository: &str,
    payload: &str,
    signature: &str,
) -> Value {
    let bytes = payload.to_owned().into_bytes();
    let mut layer = registry.push_blob(repository, SIMPLE, bytes).await;
    layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
    layer
}

/// Puts a manifest of these layers where signatures of the digest lie.
pub(crate) async fn attach(
    registry: &Registry,
    repository: &str,
    digest: Digest,
    layers: &[Value],
) {
    let config = "application/vnd.oci.image.config.v1+json";
    let config = registry.push_blob(repository, config, "{}").await;
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    let name = format!("{repository}:sha256-{}.sig", digest.hex());
    registry.push_manifest(&name, MANIFEST, &manifest).await;
}

/// Signs a digest in the simple form.
pub(crate) async fn sign_simple(
    registry: &Registry,
    repository: &str,
    digest: Digest,
    keys: &[&KeyPair],
) {
    let payload = payload(digest);
    let mut layers = Vec::new();
    for key in keys {
        let signature = sign(key, payload.as_bytes());
        layers.push(layer(registry, repository, &payload, &signature).await);
    }
    attach(registry, repository, digest, &layers).await;
}

/// A bundle with a statement of this kind about the digest.
pub(crate) fn bundle(key: &KeyPair, digest: Digest, predicate: &str) -> String {
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": digest.hex()}, "annotations": {"team": "a"}}],
        "predicateType": predicate,
        "predicate": {}
    })
    .to_string();
    let kind = "application/vnd.in-toto+json";
    let message = format!(
        "DSSEv1 {} {kind} {} {statement}",
        kind.len(),
        statement.len()
    );
    json!({
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": "key"}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": STANDARD.encode(&statement),
            "payloadType": kind,
            "signatures": [{"sig": sign(key, message.as_bytes())}]
        }
    })
    .to_string()
}

/// Attaches a bundle, with the index under the tag that stands in for the list of
/// referrers.
pub(crate) async fn attach_bundle(
    registry: &Registry,
    repository: &str,
    digest: Digest,
    bundle: String,
) {
    let empty = "application/vnd.oci.empty.v1+json";
    let config = registry.push_blob(repository, empty, "{}").await;
    let layer = registry.push_blob(repository, BUNDLE, bundle).await;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": BUNDLE,
        "config": config, "layers": [layer],
        "subject": {"mediaType": MANIFEST, "digest": digest.to_string(), "size": 1}
    });
    let name = format!("{repository}:bundle");
    let mut entry = registry.push_manifest(&name, MANIFEST, &manifest).await;
    entry["artifactType"] = BUNDLE.into();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
    let name = format!("{repository}:sha256-{}", digest.hex());
    registry.push_manifest(&name, INDEX, &index).await;
}
