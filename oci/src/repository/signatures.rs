//! Finds the signatures of a manifest.
//!
//! Whoever may push to the repository may push anything in the place of signatures.
//! Therefore unreadable ones are skipped, and only a bounded number is checked.

use std::collections::{BTreeMap, BTreeSet};

use assent_core::digest::Digest;
use bytes::Bytes;
use serde::Deserialize;

use super::Session;
use crate::{
    Error,
    verify::{Check, Fingerprint, Keys, SIGN_PREDICATE, Signed, Subject},
};

/// Signatures of each format that are checked, the newest first: each signing adds one, and
/// each costs a request.
const MAX_SIGNATURES: usize = 32;

/// A simple payload has some hundred bytes, with annotations a few KiB.
const MAX_PAYLOAD_BYTES: usize = 128 << 10;

/// A bundle contains certificates and proofs beside its statement: some ten KiB.
const MAX_BUNDLE_BYTES: usize = 1 << 20;

/// The prefix of the media types of bundles, in all versions.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// The annotation with the type of a bundle's statement.
const PREDICATE: &str = "dev.sigstore.bundle.predicateType";

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    artifact_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// The signers of the manifest; an error if the keys are not satisfied.
pub(crate) async fn verify(
    session: &mut Session,
    manifest: &[u8],
    digest: Digest,
    keys: &Keys,
) -> Result<BTreeSet<Fingerprint>, Error> {
    let mut check = Check::new(keys, Subject { manifest, digest });
    check_layers(session, &mut check).await?;
    if !check.is_done() {
        check_referrers(session, &mut check).await?;
    }
    check.finish().map_err(|why| Error::SignatureRejected {
        url: session.redacted(),
        why,
        keys: named(keys),
    })
}

/// The fingerprints of keys, for messages.
pub(crate) fn named(keys: &Keys) -> String {
    let names: Vec<String> = keys.fingerprints().map(|name| name.to_string()).collect();
    names.join(", ")
}

async fn check_layers(session: &mut Session, check: &mut Check<'_>) -> Result<(), Error> {
    let tag = Signed::tag(check.subject().digest);
    let manifest = readable(check, session.find_manifest(&tag).await.transpose());
    let Some(manifest) = manifest?.and_then(|json| parse(check, &json)) else {
        return Ok(());
    };
    let layers = manifest.layers.into_iter().rev();
    let layers = layers.filter(|layer| layer.media_type == Signed::LAYER);
    for layer in layers.take(MAX_SIGNATURES) {
        let Some(signature) = layer.annotation(Signed::ANNOTATION) else {
            check.unreadable();
            continue;
        };
        if let Some(payload) = blob(session, check, &layer, MAX_PAYLOAD_BYTES).await? {
            check.simple(&payload, signature);
        }
        if check.is_done() {
            break;
        }
    }
    Ok(())
}

async fn check_referrers(session: &mut Session, check: &mut Check<'_>) -> Result<(), Error> {
    let index = session.referrers(check.subject().digest).await.transpose();
    let Some(index) = readable(check, index)?.and_then(|json| parse(check, &json)) else {
        return Ok(());
    };
    let entries = index.manifests.into_iter().rev();
    let entries = entries.filter(|entry| {
        let predicate = entry.annotation(PREDICATE);
        entry.artifact_type.starts_with(BUNDLE)
            && predicate.is_none_or(|predicate| predicate == SIGN_PREDICATE)
    });
    for entry in entries.take(MAX_SIGNATURES) {
        check_bundle(session, check, &entry).await?;
        if check.is_done() {
            break;
        }
    }
    Ok(())
}

async fn check_bundle(
    session: &mut Session,
    check: &mut Check<'_>,
    entry: &Descriptor,
) -> Result<(), Error> {
    let Ok(digest) = entry.digest.parse::<Digest>() else {
        check.unreadable();
        return Ok(());
    };
    let found = session.manifest(&digest.to_string(), Some(digest)).await;
    let manifest = readable(check, Some(found.map(|(json, _)| json)))?;
    let Some(manifest) = manifest.and_then(|json| parse(check, &json)) else {
        return Ok(());
    };
    // The specification has exactly one; of several, the first one is read.
    let layer = manifest
        .layers
        .iter()
        .find(|l| l.media_type.starts_with(BUNDLE));
    let Some(layer) = layer else {
        check.unreadable();
        return Ok(());
    };
    if let Some(json) = blob(session, check, layer, MAX_BUNDLE_BYTES).await? {
        check.bundle(&json);
    }
    Ok(())
}

async fn blob(
    session: &mut Session,
    check: &mut Check<'_>,
    layer: &Descriptor,
    limit: usize,
) -> Result<Option<Bytes>, Error> {
    let Ok(digest) = layer.digest.parse() else {
        check.unreadable();
        return Ok(None);
    };
    let found = session.blob(digest, layer.size, limit).await;
    readable(check, Some(found))
}

/// Passes on errors that do not come from the signature itself; the others mean that a
/// signature is unreadable.
fn readable(
    check: &mut Check<'_>,
    found: Option<Result<Bytes, Error>>,
) -> Result<Option<Bytes>, Error> {
    match found.transpose() {
        Err(Error::TooLarge { .. } | Error::Digest { .. } | Error::Status { status: 404, .. }) => {
            check.unreadable();
            Ok(None)
        }
        found => found,
    }
}

fn parse(check: &mut Check<'_>, json: &[u8]) -> Option<Manifest> {
    let parsed = serde_json::from_slice(json).ok();
    if parsed.is_none() {
        check.unreadable();
    }
    parsed
}

// === impl Descriptor ===

impl Descriptor {
    fn annotation(&self, name: &str) -> Option<&str> {
        Some(self.annotations.as_ref()?.get(name)?.as_str())
    }
}
