//! Modules from OCI registries.

mod challenge;
mod manifest;
mod session;
mod signatures;

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;

use self::manifest::{Content, Layer};
pub(super) use self::{
    session::Session,
    signatures::{named, verify},
};
use super::{Error, http::Http};
use crate::verify::{Fingerprint, Keys};

/// What registries accept at most for a configuration is not said; images have some KiB.
const MAX_CONFIG_BYTES: usize = 4 << 20;

/// A module with the digest of the manifest that names it.
pub(super) struct Found {
    pub(super) module: Bytes,
    pub(super) manifest: Digest,
    pub(super) verified_by: Option<Fingerprint>,
}

/// An image's manifest and configuration, as the registry has them.
pub(super) struct Image {
    pub(super) manifest: Bytes,
    pub(super) digest: Digest,
    pub(super) config: Bytes,
}

/// The tag is resolved once: the manifest that was verified is the one whose layer is
/// fetched, whatever happens to the tag meanwhile.
pub(super) async fn pull(
    http: &Http,
    reference: &Reference,
    keys: Option<&Keys>,
    limit: usize,
) -> Result<Found, Error> {
    let mut session = Session::new(http, reference)?;
    let (manifest, digest) = session.resolve().await?;
    let verified_by = match keys {
        Some(keys) => verify(&mut session, &manifest, digest, keys)
            .await?
            .pop_first(),
        None => None,
    };
    let layer = match read(&session, &manifest)? {
        Content::Layer(layer) => layer,
        Content::Index(entry) => {
            let (inner, _) = session.manifest(&entry.to_string(), Some(entry)).await?;
            layer_of(&session, &inner)?
        }
    };
    let module = session.blob(layer.digest, layer.size, limit).await?;
    Ok(Found {
        module,
        manifest: digest,
        verified_by,
    })
}

/// The manifest of an image with its configuration; of an index, those for this machine.
pub(super) async fn image(session: &mut Session<'_>) -> Result<Image, Error> {
    let (mut manifest, mut digest) = session.resolve().await?;
    let chosen = manifest::for_this_machine(&manifest);
    if let Some(entry) = chosen.map_err(|why| session.manifest_error(why))? {
        (manifest, digest) = session.manifest(&entry.to_string(), Some(entry)).await?;
    }
    let config = manifest::config(&manifest).map_err(|why| session.manifest_error(why))?;
    let config = session
        .blob(config.digest, config.size, MAX_CONFIG_BYTES)
        .await?;
    Ok(Image {
        manifest,
        digest,
        config,
    })
}

fn read(session: &Session<'_>, manifest: &[u8]) -> Result<Content, Error> {
    manifest::read(manifest).map_err(|error| session.manifest_error(error))
}

fn layer_of(session: &Session<'_>, manifest: &[u8]) -> Result<Layer, Error> {
    match read(session, manifest)? {
        Content::Layer(layer) => Ok(layer),
        Content::Index(_) => Err(session.manifest_error("it is an index of indexes")),
    }
}
