//! Signatures in the bundle format: an in-toto statement about the digest in a signed
//! envelope, or a signature over the manifest itself.

use serde::Deserialize;

use super::{Fingerprint, Keys, Mismatch, Subject, decode};

/// The type of a statement that is a signature. The same key may sign other statements
/// about an image, which do not mean that the image is trusted.
pub(crate) const SIGN_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

const STATEMENT_TYPES: [&str; 2] = [
    "https://in-toto.io/Statement/v1",
    "https://in-toto.io/Statement/v0.1",
];

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// Envelopes of cosign have one signature.
const MAX_SIGNATURES: usize = 8;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    #[serde(default)]
    dsse_envelope: Option<Envelope>,
    #[serde(default)]
    message_signature: Option<MessageSignature>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Deserialize)]
struct Signature {
    sig: String,
}

#[derive(Deserialize)]
struct MessageSignature {
    signature: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    predicate_type: String,
    subject: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(default)]
    digest: Digests,
    #[serde(default)]
    annotations: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Default, Deserialize)]
struct Digests {
    #[serde(default)]
    sha256: String,
}

pub(super) fn check(
    keys: &Keys,
    subject: Subject<'_>,
    json: &[u8],
) -> Result<Fingerprint, Mismatch> {
    let bundle: Bundle = serde_json::from_slice(json).map_err(|_| Mismatch::Unreadable)?;
    match (bundle.dsse_envelope, bundle.message_signature) {
        (Some(envelope), None) => check_envelope(keys, subject, &envelope),
        (None, Some(message)) => check_message(keys, subject, &message),
        _ => Err(Mismatch::Unreadable),
    }
}

/// A signature over the manifest's bytes can not be for other content, and has no
/// annotations.
fn check_message(
    keys: &Keys,
    subject: Subject<'_>,
    message: &MessageSignature,
) -> Result<Fingerprint, Mismatch> {
    let signature = decode(&message.signature)?;
    let signer = keys.signer(subject.manifest, &signature);
    let signer = signer.ok_or(Mismatch::OtherKey)?;
    match keys.annotated(&serde_json::Map::new()) {
        true => Ok(signer),
        false => Err(Mismatch::Annotations),
    }
}

fn check_envelope(
    keys: &Keys,
    subject: Subject<'_>,
    envelope: &Envelope,
) -> Result<Fingerprint, Mismatch> {
    let payload = decode(&envelope.payload)?;
    let message = encoded(&envelope.payload_type, &payload);
    let signatures = envelope.signatures.iter().take(MAX_SIGNATURES);
    let signer = signatures
        .filter_map(|signature| keys.signer(&message, &decode(&signature.sig).ok()?))
        .next()
        .ok_or(Mismatch::OtherKey)?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(Mismatch::OtherContent);
    }
    let statement: Statement =
        serde_json::from_slice(&payload).map_err(|_| Mismatch::Unreadable)?;
    if !STATEMENT_TYPES.contains(&statement.kind.as_str())
        || statement.predicate_type != SIGN_PREDICATE
    {
        return Err(Mismatch::OtherContent);
    }
    let hex = subject.digest.hex();
    let mut named = statement.subject.iter().filter(|r| r.digest.sha256 == hex);
    let resource = named.next().ok_or(Mismatch::OtherContent)?;
    match keys.annotated(&resource.annotations.clone().unwrap_or_default()) {
        true => Ok(signer),
        false => Err(Mismatch::Annotations),
    }
}

/// The bytes that an envelope's signature covers: type and payload with their lengths.
fn encoded(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    );
    [head.as_bytes(), payload].concat()
}
