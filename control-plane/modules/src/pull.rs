//! Fetching modules from registries, web servers and files.
//!
//! A module's URL is written by tenants and fetched by a privileged process. So each
//! connection goes only to addresses within [`Reach`], redirects and token services
//! included; bodies are bounded while they stream; and no error repeats what a server
//! answered.

mod auth;
mod error;
mod file;
mod http;
mod images;
mod oci;
mod reach;
mod sources;
mod tls;
mod url;

use std::{path::PathBuf, sync::Arc, time::Duration};

use assent_core::digest::Digest;
use bytes::Bytes;

pub use self::{
    auth::{Auth, Error as AuthError},
    error::Error,
    images::{Images, ManifestAndConfig},
    reach::Reach,
    sources::{Error as SourcesError, Sources},
    url::{Error as UrlError, ModuleUrl},
};
use self::{http::Http, url::Location};
use crate::{
    store::MAX_MODULE_BYTES,
    verify::{Fingerprint, Keys, Rejected},
};

/// Enough for the largest module over a line of 5 Mbit/s.
const DEADLINE: Duration = Duration::from_secs(120);

/// Fetches modules by one server's sources.
#[derive(Clone)]
pub struct Puller {
    http: Arc<Http>,
    files: Files,
    limits: Limits,
    keys: Option<Arc<Keys>>,
}

/// A module as it came, with where to get the very same again.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The module.
    pub bytes: Bytes,
    /// Its digest.
    pub digest: Digest,
    /// The URL pinned by digest: a registry's by that of the manifest, any other by
    /// that of the module.
    pub resolved_url: ModuleUrl,
    /// The key that signed it, where a signature was asked for.
    pub verified_by: Option<Fingerprint>,
}

/// Bounds of one pull.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest module taken.
    pub max_bytes: usize,
    /// From the first look-up of a name to the last byte.
    pub deadline: Duration,
}

/// Whether `file://` may be used: only where the person who writes policies also owns
/// the machine.
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
    pub fn new(sources: Sources, reach: Reach) -> Result<Self, SourcesError> {
        Ok(Self {
            http: Arc::new(Http::new(sources, reach)?),
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

    /// Other bounds than the default ones.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Takes only what one of these keys signed. Nothing but a registry holds signatures:
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
        let deadline = self.limits.deadline;
        tokio::time::timeout(deadline, self.fetch(url))
            .await
            .unwrap_or_else(|_| {
                Err(Error::Deadline {
                    url: url.shown(),
                    seconds: deadline.as_secs(),
                })
            })
    }

    async fn fetch(&self, url: &ModuleUrl) -> Result<Pulled, Error> {
        let limit = self.limits.max_bytes;
        let (bytes, manifest, verified_by) = match url.location() {
            Location::Registry(reference) => {
                let keys = self.keys.as_deref();
                let found = oci::pull(&self.http, reference, keys, limit).await?;
                (found.module, Some(found.manifest), found.verified_by)
            }
            _ if self.keys.is_some() => return Err(self.unsigned(url)),
            Location::Web(address) => {
                let answer = self.http.get(address, None, None).await?.success()?;
                (answer.body(limit).await?, None, None)
            }
            Location::File(path) => (file::read(&self.files, path, limit).await?, None, None),
        };
        let digest = Digest::of(&bytes);
        check_pin(url, digest)?;
        check_wasm(url, &bytes)?;
        Ok(Pulled {
            bytes,
            digest,
            resolved_url: url.pinned(manifest.unwrap_or(digest)),
            verified_by,
        })
    }

    fn unsigned(&self, url: &ModuleUrl) -> Error {
        Error::SignatureRejected {
            url: url.shown(),
            why: Rejected::NoRegistry,
            keys: self.keys.as_deref().map(oci::named).unwrap_or_default(),
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

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: MAX_MODULE_BYTES,
            deadline: DEADLINE,
        }
    }
}

/// A registry's pin is the manifest's digest, which was checked where it was read.
fn check_pin(url: &ModuleUrl, actual: Digest) -> Result<(), Error> {
    match url.module_digest() {
        Some(expected) if expected != actual => Err(Error::Digest {
            url: url.shown(),
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
            "it is a WebAssembly component; policies are core modules"
        }
        [b'\0', b'a', b's', b'm', ..] => "its WebAssembly version is not 1",
        _ => "it does not begin like a WebAssembly module",
    };
    Err(Error::NotWasm {
        url: url.shown(),
        why,
    })
}
