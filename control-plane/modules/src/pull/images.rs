//! Questions about images, and whatever else lies in registries.

use std::sync::Arc;

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;
use serde_json::value::RawValue;

use super::{
    Error, ModuleUrl, Reach, Sources, SourcesError,
    http::Http,
    oci::{self, Session},
    url::Location,
};
use crate::verify::Keys;

/// Asks registries, under the same rules as modules are pulled by.
#[derive(Clone)]
pub struct Images {
    http: Arc<Http>,
}

/// An image's manifest and configuration: JSON, as the registry has them.
#[derive(Clone, Debug)]
pub struct ManifestAndConfig {
    /// The manifest; of an index, the one for this machine.
    pub manifest: Box<RawValue>,
    /// Its digest.
    pub digest: Digest,
    /// The configuration.
    pub config: Box<RawValue>,
}

// === impl Images ===

impl Images {
    /// Asks by these sources. Reads the system's certificate authorities: make one, and
    /// keep it.
    pub fn new(sources: Sources, reach: Reach) -> Result<Self, SourcesError> {
        let http = Arc::new(Http::new(sources, reach)?);
        Ok(Self { http })
    }

    /// The digest of the manifest that the image's name leads to now.
    pub async fn digest(&self, image: &str) -> Result<Digest, Error> {
        let reference = reference(image)?;
        let (_, digest) = Session::new(&self.http, &reference)?.resolve().await?;
        Ok(digest)
    }

    /// The manifest or index that the image's name leads to now.
    pub async fn manifest(&self, image: &str) -> Result<Box<RawValue>, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.http, &reference)?;
        let (manifest, _) = session.resolve().await?;
        json(&session, &manifest)
    }

    /// The manifest and the configuration of an image.
    pub async fn manifest_and_config(&self, image: &str) -> Result<ManifestAndConfig, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.http, &reference)?;
        let found = oci::image(&mut session).await?;
        Ok(ManifestAndConfig {
            manifest: json(&session, &found.manifest)?,
            digest: found.digest,
            config: json(&session, &found.config)?,
        })
    }

    /// The digest of what the image's name leads to now, if the keys signed that.
    pub async fn verify(&self, image: &str, keys: &Keys) -> Result<Digest, Error> {
        let reference = reference(image)?;
        let mut session = Session::new(&self.http, &reference)?;
        let (manifest, digest) = session.resolve().await?;
        oci::verify(&mut session, &manifest, digest, keys).await?;
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
        _ => Err(bad(super::UrlError::Reference(
            "it is the address of a file".to_owned(),
        ))),
    }
}

fn json(session: &Session<'_>, bytes: &Bytes) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(bytes).map_err(|_| Error::Manifest {
        url: session.shown(),
        why: "it is not JSON".to_owned(),
    })
}
