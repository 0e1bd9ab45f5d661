//! Fetches modules from registries, web servers and files.

use std::{path::PathBuf, sync::Arc, time::Duration};

use assent_core::digest::Digest;
use bytes::Bytes;

use crate::{
    AddressPolicy, Error, ModuleUrl, Sources, SourcesError, file,
    module_url::Location,
    repository::{self, Artefact},
    transport::Transport,
    verify::{Fingerprint, Keys, Rejected},
};

/// The largest module that is pulled and stored: generous beside real policies (2 to
/// 20 MiB), and small enough to be held in memory while it is hashed.
pub const MAX_MODULE_BYTES: usize = 64 << 20;

/// Enough for the largest module over a line of 5 Mbit/s.
const DEADLINE: Duration = Duration::from_secs(120);

/// Pulls modules from the sources of one PolicyServer.
#[derive(Clone)]
pub struct Puller {
    transport: Arc<Transport>,
    files: Files,
    limits: Limits,
    keys: Option<Arc<Keys>>,
}

/// A module, and the URL that always refers to it.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The module, or the text that it is built from ([`ModuleUrl::text_name`]).
    pub bytes: Bytes,
    /// Its digest.
    pub digest: Digest,
    /// The URL pinned by digest: that of a registry by the digest of the manifest, any other
    /// by that of the module.
    pub resolved_url: ModuleUrl,
    /// The key that signed it, if a signature is required.
    pub verified_by: Option<Fingerprint>,
}

/// A module that was found, and not fetched yet.
pub struct Located {
    url: ModuleUrl,
    /// Present if it is in a registry.
    artefact: Option<Artefact>,
}

/// Bounds of one pull.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest module.
    pub max_bytes: usize,
    /// The time from the first DNS query to the last byte.
    pub deadline: Duration,
}

/// Whether `file://` may be used: only if the author of the policies also owns the
/// machine.
#[derive(Clone, Debug, Default)]
pub enum Files {
    /// Refused.
    #[default]
    Refused,
    /// Allowed; relative paths start at this directory.
    Below(PathBuf),
}

// === impl Puller ===

impl Puller {
    /// A puller for these sources. Reads the system's certificate authorities: call it
    /// when sources change, not for each pull.
    pub fn new(sources: Sources, addresses: AddressPolicy) -> Result<Self, SourcesError> {
        Ok(Self {
            transport: Arc::new(Transport::new(sources, addresses)?),
            files: Files::Refused,
            limits: Limits::default(),
            keys: None,
        })
    }

    /// Allows or refuses `file://`.
    #[must_use]
    pub fn with_files(self, files: Files) -> Self {
        Self { files, ..self }
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Accepts only modules that satisfy these keys. Only registries hold signatures:
    /// modules from elsewhere are refused.
    #[must_use]
    pub fn with_verification(self, keys: Keys) -> Self {
        Self {
            keys: Some(Arc::new(keys)),
            ..self
        }
    }

    /// Fetches a module and checks that it is one, with the digest that the URL names,
    /// if it names one.
    pub async fn pull(&self, url: &ModuleUrl) -> Result<Pulled, Error> {
        let pulling = async {
            let located = self.locate_unbounded(url).await?;
            self.fetch_unbounded(located).await
        };
        self.within_deadline(url, pulling).await
    }

    /// The first half of a pull: resolves a registry's tag and verifies the signatures, but
    /// leaves the module where it is. It costs a few KiB of memory, however large the
    /// module is.
    pub async fn locate(&self, url: &ModuleUrl) -> Result<Located, Error> {
        self.within_deadline(url, self.locate_unbounded(url)).await
    }

    /// The second half of a pull.
    pub async fn fetch(&self, located: Located) -> Result<Pulled, Error> {
        let url = located.url.clone();
        self.within_deadline(&url, self.fetch_unbounded(located))
            .await
    }

    async fn within_deadline<T>(
        &self,
        url: &ModuleUrl,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = self.limits.deadline;
        tokio::time::timeout(deadline, work)
            .await
            .unwrap_or_else(|_| {
                Err(Error::Deadline {
                    url: url.redacted(),
                    seconds: deadline.as_secs(),
                })
            })
    }

    async fn locate_unbounded(&self, url: &ModuleUrl) -> Result<Located, Error> {
        let artefact = match url.location() {
            Location::Registry(reference) => {
                let keys = self.keys.as_deref();
                Some(repository::locate(&self.transport, reference, keys).await?)
            }
            _ if self.keys.is_some() => return Err(self.unsigned(url)),
            Location::Web(_)
            | Location::File(_)
            | Location::ConfigMap(_)
            | Location::Inline(..) => None,
        };
        Ok(Located {
            url: url.clone(),
            artefact,
        })
    }

    async fn fetch_unbounded(&self, located: Located) -> Result<Pulled, Error> {
        let limit = self.limits.max_bytes;
        let Located { url, artefact } = located;
        let manifest = artefact.as_ref().map(|artefact| artefact.manifest);
        let verified_by = artefact.as_ref().and_then(|artefact| artefact.verified_by);
        let bytes = match (artefact, url.location()) {
            (Some(artefact), _) => artefact.fetch(limit).await?,
            (None, Location::Web(address)) => {
                let response = self.transport.get(address, None, None).await?;
                response.success()?.body(limit).await?
            }
            (None, Location::File(path)) => file::read(&self.files, path, limit).await?,
            (None, Location::Inline(_, text)) => text.clone(),
            (None, Location::ConfigMap(_)) => {
                return Err(Error::ConfigMap {
                    url: url.redacted(),
                });
            }
            (None, Location::Registry(_)) => {
                unreachable!("a registry's module must have been located in the registry")
            }
        };
        let digest = Digest::of(&bytes);
        check_pin(&url, digest)?;
        if url.text_name().is_none() {
            check_wasm(&url, &bytes)?;
        }
        Ok(Pulled {
            bytes,
            digest,
            resolved_url: url.pinned(manifest.unwrap_or(digest)),
            verified_by,
        })
    }

    fn unsigned(&self, url: &ModuleUrl) -> Error {
        Error::SignatureRejected {
            url: url.redacted(),
            why: Rejected::NoRegistry,
            keys: self
                .keys
                .as_deref()
                .map(repository::named)
                .unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for Puller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Puller")
            .field("files", &self.files)
            .field("limits", &self.limits)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

// === impl Located ===

impl Located {
    /// The module's digest, if it is known before the module is fetched.
    pub fn digest(&self) -> Option<Digest> {
        match &self.artefact {
            Some(artefact) => Some(artefact.layer.digest),
            None => self.url.module_digest(),
        }
    }

    /// The module's size as the registry declares it. [`Puller::fetch`] reads
    /// hardly more.
    pub fn size(&self) -> Option<u64> {
        let artefact = self.artefact.as_ref()?;
        Some(artefact.layer.size).filter(|size| *size > 0)
    }

    /// The key that signed the module, if a signature is required.
    pub fn verified_by(&self) -> Option<Fingerprint> {
        self.artefact.as_ref()?.verified_by
    }

    /// The URL pinned by digest, if that is known before the module is fetched.
    pub fn resolved_url(&self) -> Option<ModuleUrl> {
        let pin = match &self.artefact {
            Some(artefact) => Some(artefact.manifest),
            None => self.url.module_digest(),
        };
        pin.map(|pin| self.url.pinned(pin))
    }
}

impl std::fmt::Debug for Located {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Located")
            .field("url", &self.url.redacted())
            .finish_non_exhaustive()
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: MAX_MODULE_BYTES,
            deadline: DEADLINE,
        }
    }
}

/// The pin of a registry is the manifest's digest, which is checked when it is read.
fn check_pin(url: &ModuleUrl, actual: Digest) -> Result<(), Error> {
    match url.module_digest() {
        Some(expected) if expected != actual => Err(Error::Digest {
            url: url.redacted(),
            expected,
            actual,
        }),
        _ => Ok(()),
    }
}

fn check_wasm(url: &ModuleUrl, bytes: &[u8]) -> Result<(), Error> {
    let why = match bytes {
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => return Ok(()),
        [b'\0', b'a', b's', b'm', _, _, 1, 0, ..] => {
            "it is a WebAssembly component; policies must be core modules"
        }
        [b'\0', b'a', b's', b'm', ..] => "its WebAssembly version is not 1",
        _ => "it is not a WebAssembly module",
    };
    Err(Error::NotWasm {
        url: url.redacted(),
        why,
    })
}
