//! Reads manifests, configurations and signatures of images.

use std::sync::Arc;

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;
use serde_json::value::RawValue;

use crate::{
    AddressPolicy, Error, ModuleUrl, Sources, SourcesError, UrlError,
    module_url::Location,
    repository::{self, Session},
    transport::Transport,
    verify::Keys,
};

/// Reads images in registries, under the same rules as modules are pulled.
#[derive(Clone)]
pub struct Images {
    transport: Arc<Transport>,
}

/// An image's manifest and configuration, unchanged.
#[derive(Clone, Debug)]
pub struct ManifestAndConfig {
    /// The manifest; for an index, that of this machine's platform.
    pub manifest: Box<RawValue>,
    /// Its digest.
    pub digest: Digest,
    /// The configuration.
    pub config: Box<RawValue>,
}

// === impl Images ===

impl Images {
    /// A client for these sources. Reads the system's certificate authorities: create one
    /// and keep it.
    pub fn new(sources: Sources, addresses: AddressPolicy) -> Result<Self, SourcesError> {
        let transport = Arc::new(Transport::new(sources, addresses)?);
        Ok(Self { transport })
    }

    /// The digest of the manifest that the reference resolves to now.
    pub async fn digest(&self, image: &str) -> Result<Digest, Error> {
        let reference = reference(image)?;
        let (_, digest) = Session::new(&self.transport, &reference)?.resolve().await?;
        Ok(digest)
    }

    /// The manifest or index that the reference resolves to now.
    pub async fn manifest(&self, image: &str) -> Result<Box<RawValue>, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.transport, &reference)?;
        let (manifest, _) = session.resolve().await?;
        json(&session, &manifest)
    }

    /// The manifest and the configuration of an image.
    pub async fn manifest_and_config(&self, image: &str) -> Result<ManifestAndConfig, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.transport, &reference)?;
        let found = repository::image(&mut session).await?;
        Ok(ManifestAndConfig {
            manifest: json(&session, &found.manifest)?,
            digest: found.digest,
            config: json(&session, &found.config)?,
        })
    }

    /// The digest that the reference resolves to now, if its signatures satisfy the keys.
    pub async fn verify(&self, image: &str, keys: &Keys) -> Result<Digest, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.transport, &reference)?;
        let (manifest, digest) = session.resolve().await?;
        repository::verify(&mut session, &manifest, digest, keys).await?;
        Ok(digest)
    }
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").finish_non_exhaustive()
    }
}

fn reference(image: &str) -> Result<Reference, Error> {
    let bad = |source| Error::Name {
        name: image.to_owned(),
        source,
    };
    match image.parse::<ModuleUrl>().map_err(bad)?.into_location() {
        Location::Registry(reference) => Ok(reference),
        _ => Err(bad(UrlError::Reference(
            "it is the URL of a file".to_owned(),
        ))),
    }
}

fn json(session: &Session, bytes: &Bytes) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(bytes).map_err(|_| Error::Manifest {
        url: session.redacted(),
        why: "it is not JSON".to_owned(),
    })
}
