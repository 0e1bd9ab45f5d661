//! Modules from OCI registries.

mod challenge;
mod manifest;
mod session;
mod signatures;
mod upload;

pub(crate) mod copy;

use std::sync::Arc;

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;

use self::manifest::Content;
pub(crate) use self::{
    manifest::Layer,
    session::Session,
    signatures::{named, verify},
};
use crate::{
    Error,
    transport::Transport,
    verify::{Fingerprint, Keys},
};

/// The specification has no limit for configurations; those of images have some KiB.
const MAX_CONFIG_BYTES: usize = 4 << 20;

/// A module in a registry that was not fetched yet.
pub(crate) struct Artefact {
    /// The digest of the manifest that names the module.
    pub(crate) manifest: Digest,
    pub(crate) layer: Layer,
    pub(crate) verified_by: Option<Fingerprint>,
    session: Session,
}

/// An image's manifest and configuration, unchanged.
pub(crate) struct Image {
    pub(crate) manifest: Bytes,
    pub(crate) digest: Digest,
    pub(crate) config: Bytes,
}

/// Finds a module. The tag is resolved once: the manifest that was verified is the one
/// whose layer is fetched, whatever happens to the tag meanwhile.
pub(crate) async fn locate(
    transport: &Arc<Transport>,
    reference: &Reference,
    keys: Option<&Keys>,
) -> Result<Artefact, Error> {
    let mut session = Session::new(transport, reference)?;
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
    Ok(Artefact {
        manifest: digest,
        layer,
        verified_by,
        session,
    })
}

/// The manifest and configuration of an image; of an index, those of this machine's platform.
pub(crate) async fn image(session: &mut Session) -> Result<Image, Error> {
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

// === impl Artefact ===

impl Artefact {
    pub(crate) async fn fetch(mut self, limit: usize) -> Result<Bytes, Error> {
        let Layer { digest, size } = self.layer;
        self.session.blob(digest, size, limit).await
    }
}

fn read(session: &Session, manifest: &[u8]) -> Result<Content, Error> {
    manifest::read(manifest).map_err(|error| session.manifest_error(error))
}

fn layer_of(session: &Session, manifest: &[u8]) -> Result<Layer, Error> {
    match read(session, manifest)? {
        Content::Layer(layer) => Ok(layer),
        Content::Index(_) => Err(session.manifest_error("it is an index of indexes")),
    }
}
