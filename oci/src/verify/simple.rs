//! Signatures in the simple format: a JSON payload contains the digest, and its signature is
//! an annotation of the layer with the payload.

use assent_core::digest::Digest;
use serde::Deserialize;

use super::{Fingerprint, Keys, Mismatch, Subject, decode};

/// The type of cosign's payloads; those of other tools mean other things.
const TYPE: &str = "cosign container image signature";

/// Names of the simple format in registries.
pub(crate) struct Signed;

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
    #[serde(default)]
    optional: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

// === impl Signed ===

impl Signed {
    /// The layers of a signature manifest that are signatures.
    pub(crate) const LAYER: &'static str = "application/vnd.dev.cosign.simplesigning.v1+json";

    /// The annotation with the signature, base64.
    pub(crate) const ANNOTATION: &'static str = "dev.cosignproject.cosign/signature";

    /// The tag of the manifest with all signatures of a digest.
    pub(crate) fn tag(digest: Digest) -> String {
        format!("sha256-{}.sig", digest.hex())
    }
}

/// The payload is not parsed before its signature is verified.
pub(super) fn check(
    keys: &Keys,
    subject: Subject<'_>,
    payload: &[u8],
    signature: &str,
) -> Result<Fingerprint, Mismatch> {
    let signature = decode(signature)?;
    let signer = keys.signer(payload, &signature).ok_or(Mismatch::OtherKey)?;
    let payload: Payload = serde_json::from_slice(payload).map_err(|_| Mismatch::Unreadable)?;
    let named = payload.critical.image.digest.parse::<Digest>();
    if payload.critical.kind != TYPE || named != Ok(subject.digest) {
        return Err(Mismatch::OtherContent);
    }
    match keys.annotated(&payload.optional.unwrap_or_default()) {
        true => Ok(signer),
        false => Err(Mismatch::Annotations),
    }
}
