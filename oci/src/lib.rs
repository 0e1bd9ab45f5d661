//! A client of OCI registries, shared by the control plane, the evaluators and the command line.
//!
//! [`Puller`] fetches policy modules, [`Images`] reads manifests and configurations, and
//! [`verify`] checks signatures.
//!
//! URLs of modules are written by tenants and fetched by a privileged process. Therefore
//! every connection, including those for redirects and token services, goes only to
//! addresses that the [`AddressPolicy`] or the declared [`Sources`] allow; bodies are
//! bounded while they stream; and no error repeats the content of a response.

mod address;
mod auth;
mod error;
mod file;
mod images;
mod module_url;
mod puller;
mod pusher;
mod repository;
mod sources;
mod tls;
mod transport;
pub mod verify;

pub use self::{
    address::AddressPolicy,
    auth::{Auth, Error as AuthError},
    error::Error,
    images::{Images, ManifestAndConfig},
    module_url::{ConfigMapKey, Error as UrlError, ModuleUrl},
    puller::{Files, Limits, Located, MAX_MODULE_BYTES, Pulled, Puller},
    pusher::Pusher,
    repository::copy::{CopiedManifest, Copy},
    sources::{Error as SourcesError, Sources},
};
