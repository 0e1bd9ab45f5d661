//! Pushes modules, and copies artefacts with their signatures between registries.

use std::{collections::BTreeMap, sync::Arc};

use assent_core::digest::Digest;
use bytes::Bytes;
use oci_spec::distribution::Reference;

use crate::{
    AddressPolicy, Error, MAX_MODULE_BYTES, ModuleUrl, Sources, SourcesError, UrlError,
    module_url::Location,
    repository::copy::{self, Copy},
    transport::Transport,
};

/// Writes to registries, under the same rules as modules are pulled.
#[derive(Clone)]
pub struct Pusher {
    transport: Arc<Transport>,
}

// === impl Pusher ===

impl Pusher {
    /// A client for these sources.
    pub fn new(sources: Sources, addresses: AddressPolicy) -> Result<Self, SourcesError> {
        let transport = Arc::new(Transport::new(sources, addresses)?);
        Ok(Self { transport })
    }

    /// Pushes a module, and returns the URL that pins it.
    pub async fn push(
        &self,
        url: &ModuleUrl,
        module: Bytes,
        annotations: &BTreeMap<String, String>,
    ) -> Result<ModuleUrl, Error> {
        let reference = reference(url)?;
        let copy = copy::of_module(module, reference.tag(), annotations);
        copy::write(&self.transport, reference, &copy).await?;
        Ok(url.pinned(copy.manifest.unwrap_or_else(|| Digest::of(b""))))
    }

    /// Reads an artefact as it is, with its signatures.
    pub async fn read(&self, url: &ModuleUrl) -> Result<Copy, Error> {
        copy::read(&self.transport, reference(url)?, MAX_MODULE_BYTES).await
    }

    /// Writes an artefact as it is.
    pub async fn write(&self, url: &ModuleUrl, copy: &Copy) -> Result<(), Error> {
        copy::write(&self.transport, reference(url)?, copy).await
    }
}

impl std::fmt::Debug for Pusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pusher").finish_non_exhaustive()
    }
}

fn reference(url: &ModuleUrl) -> Result<&Reference, Error> {
    match url.location() {
        Location::Registry(reference) => Ok(reference),
        _ => Err(Error::Name {
            name: url.redacted(),
            source: UrlError::Reference("it is not in a registry".to_owned()),
        }),
    }
}
