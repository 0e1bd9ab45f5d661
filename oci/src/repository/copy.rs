//! Artefacts as a whole: the manifest, what it names, and its signatures, byte for byte.
//!
//! A copy keeps the digest of the manifest, so that signatures stay valid and pins stay right.

use std::{collections::BTreeMap, sync::Arc};

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;
use serde::Deserialize;
use serde_json::json;

use super::Session;
use crate::{Error, transport::Transport, verify::Signed};

/// An artefact that was read from a registry, or is to be written to one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// The digest of its manifest.
    pub manifest: Option<Digest>,
    /// Manifests, by digest, with the tags under which they are found. Those that others refer to come first.
    pub manifests: Vec<CopiedManifest>,
    /// Blobs, by digest.
    pub blobs: BTreeMap<String, Bytes>,
}

/// One manifest of an artefact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedManifest {
    /// Its tag; none if it is found by its digest only.
    pub tag: Option<String>,
    /// Its media type.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    size: u64,
}

/// Manifests of one artefact, signatures included: some dozen at most.
const MAX_MANIFESTS: usize = 128;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
const CONFIG: &str = "application/vnd.wasm.config.v1+json";

/// Reads an artefact with its signatures.
pub(crate) async fn read(
    transport: &Arc<Transport>,
    reference: &Reference,
    limit: usize,
) -> Result<Copy, Error> {
    let mut session = Session::new(transport, reference)?;
    let (bytes, digest) = session.resolve().await?;
    let mut copy = Copy {
        manifest: Some(digest),
        ..Copy::default()
    };
    copy.take(&mut session, bytes, reference.tag(), limit)
        .await?;
    let signatures = Signed::tag(digest);
    if let Some(bytes) = session.find_manifest(&signatures).await? {
        copy.take(&mut session, bytes, Some(&signatures), limit)
            .await?;
    }
    if let Some(index) = session.referrers(digest).await? {
        let tag = format!("sha256-{}", digest.hex());
        copy.take(&mut session, index, Some(&tag), limit).await?;
    }
    Ok(copy)
}

/// Writes an artefact into another repository.
pub(crate) async fn write(
    transport: &Arc<Transport>,
    reference: &Reference,
    copy: &Copy,
) -> Result<(), Error> {
    let mut session = Session::for_push(transport, reference)?;
    for bytes in copy.blobs.values() {
        session.put_blob(bytes.clone()).await?;
    }
    for manifest in &copy.manifests {
        let digest = Digest::of(&manifest.bytes).to_string();
        let name = manifest.tag.as_deref().unwrap_or(&digest);
        session
            .put_manifest(name, &manifest.media_type, manifest.bytes.clone())
            .await?;
    }
    Ok(())
}

/// The artefact of a module, as the tools of this field push policies.
pub(crate) fn of_module(
    module: Bytes,
    tag: Option<&str>,
    annotations: &BTreeMap<String, String>,
) -> Copy {
    let descriptor = |media_type: &str, bytes: &Bytes| {
        let digest = Digest::of(bytes).to_string();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let config = Bytes::from_static(b"{}");
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &config),
        "layers": [descriptor(LAYER, &module)],
    });
    if !annotations.is_empty() {
        manifest["annotations"] = json!(annotations);
    }
    let bytes = Bytes::from(manifest.to_string());
    let blobs = [config, module].map(|bytes| (Digest::of(&bytes).to_string(), bytes));
    Copy {
        manifest: Some(Digest::of(&bytes)),
        manifests: vec![CopiedManifest {
            tag: tag.map(str::to_owned),
            media_type: MANIFEST.to_owned(),
            bytes,
        }],
        blobs: blobs.into(),
    }
}

// === impl Copy ===

impl Copy {
    /// Takes a manifest with everything that it names. An index comes after its entries: a registry refuses one that names
    /// what it does not have.
    async fn take(
        &mut self,
        session: &mut Session,
        bytes: Bytes,
        tag: Option<&str>,
        limit: usize,
    ) -> Result<(), Error> {
        let contents = Contents::parse(session, &bytes)?;
        for entry in &contents.manifests {
            // A list of referrers may outlive what it lists.
            let digest = entry.digest(session)?;
            match session.manifest(&entry.digest, Some(digest)).await {
                Ok((bytes, _)) => self.take_leaf(session, bytes, None, limit).await?,
                Err(Error::Status { status: 404, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.take_leaf(session, bytes, tag, limit).await
    }

    async fn take_leaf(
        &mut self,
        session: &mut Session,
        bytes: Bytes,
        tag: Option<&str>,
        limit: usize,
    ) -> Result<(), Error> {
        if self.manifests.len() >= MAX_MANIFESTS {
            return Err(session.manifest_error("it has too many manifests"));
        }
        let contents = Contents::parse(session, &bytes)?;
        for blob in contents.config.iter().chain(&contents.layers) {
            if !self.blobs.contains_key(&blob.digest) {
                let digest = blob.digest(session)?;
                let bytes = session.blob(digest, blob.size, limit).await?;
                self.blobs.insert(blob.digest.clone(), bytes);
            }
        }
        let default = match contents.manifests.is_empty() {
            true => MANIFEST,
            false => INDEX,
        };
        self.manifests.push(CopiedManifest {
            tag: tag.map(str::to_owned),
            media_type: contents.media_type.unwrap_or_else(|| default.to_owned()),
            bytes,
        });
        Ok(())
    }
}

// === impl Contents ===

impl Contents {
    fn parse(session: &Session, bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|_| session.manifest_error("it is not a manifest"))
    }
}

// === impl Descriptor ===

impl Descriptor {
    fn digest(&self, session: &Session) -> Result<Digest, Error> {
        let parsed = self.digest.parse();
        parsed.map_err(|_| {
            session.manifest_error("it names a blob by something other than a SHA-256 digest")
        })
    }
}
