//! Errors of pulls, and whether a retry may help.

use std::{io, path::PathBuf};

use assent_core::digest::Digest;

use crate::{UrlError, verify::Rejected};

/// Why a module could not be fetched. Of a server's response, messages contain the status
/// code only: tenants must not read internal services through them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name could not be resolved, the connection failed or broke.
    #[error("failed to fetch {url}: {why}; check that the host is up and can be reached")]
    Network {
        /// The URL.
        url: String,
        /// The cause.
        why: String,
    },
    /// The whole pull took too long.
    #[error("failed to fetch {url}: timed out after {seconds} s; check the connection to the host")]
    Deadline {
        /// The URL.
        url: String,
        /// The deadline.
        seconds: u64,
    },
    /// The server did not answer with success.
    #[error("failed to fetch {url}: the server answered {status}{}", status_advice(*status))]
    Status {
        /// The URL.
        url: String,
        /// The status code.
        status: u16,
    },
    /// The server's certificate is not trusted.
    #[error(
        "failed to fetch {url}: {why}; add the server's certificate authority to sources.secure"
    )]
    Certificate {
        /// The URL.
        url: String,
        /// What is wrong with the certificate.
        why: String,
    },
    /// Plain HTTP to a host that was not declared insecure.
    #[error(
        "failed to fetch {url}: plain HTTP is used only for hosts in sources.insecure; use https:// or add {host} there"
    )]
    Plain {
        /// The URL.
        url: String,
        /// The host and port, as they would be declared.
        host: String,
    },
    /// The host has an address that is not allowed.
    #[error(
        "failed to fetch {url}: {host} has {kind} address, which is allowed only if the PolicyServer's sources declare {host}"
    )]
    AddressRefused {
        /// The URL.
        url: String,
        /// The host and port, as they would be declared.
        host: String,
        /// The kind of the address.
        kind: &'static str,
    },
    /// Too many redirects.
    #[error("failed to fetch {url}: more than {limit} redirects; use the final address")]
    Redirects {
        /// The URL.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// A redirect without a usable target.
    #[error("failed to fetch {url}: the server redirects to something other than an http(s) URL")]
    BadRedirect {
        /// The URL.
        url: String,
    },
    /// The response is too large.
    #[error("failed to fetch {url}: it is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The URL.
        url: String,
        /// The limit.
        limit: usize,
    },
    /// The content does not match its digest.
    #[error(
        "failed to verify {url}: expected the digest {expected}, got {actual}; the content has changed: update the digest if you trust the new content"
    )]
    Digest {
        /// The URL.
        url: String,
        /// The expected digest.
        expected: Digest,
        /// The digest of the content.
        actual: Digest,
    },
    /// The content is not a core WebAssembly module.
    #[error("failed to read {url} as a policy: {why}; check that the URL names a .wasm file")]
    NotWasm {
        /// The URL.
        url: String,
        /// The reason.
        why: &'static str,
    },
    /// The artifact is an image or something else that is not a policy.
    #[error("failed to read {url} as a policy: {why}; check that it was pushed as a policy")]
    Manifest {
        /// The URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The registry asks for credentials that are missing or of an unsupported kind.
    #[error("failed to log in for {url}: {why}; check the imagePullSecret of the PolicyServer")]
    Login {
        /// The URL.
        url: String,
        /// The reason.
        why: &'static str,
    },
    /// The signatures do not satisfy the trusted keys.
    #[error(
        "failed to verify the signature of {url}: {why}; trusted keys: {keys}; \
         sign it with `cosign sign --key`, or add the public key of the signer"
    )]
    SignatureRejected {
        /// The URL.
        url: String,
        /// The reason.
        why: Rejected,
        /// The fingerprints of the trusted keys.
        keys: String,
    },
    /// The image reference is invalid.
    #[error("invalid image reference {name:?}: {source}")]
    Name {
        /// The reference.
        name: String,
        /// The reason.
        source: UrlError,
    },
    /// A ConfigMap, and no cluster to read it from.
    #[error("failed to fetch {url}: ConfigMaps can be read in a cluster only; use file://")]
    ConfigMap {
        /// The URL.
        url: String,
    },
    /// `file://` outside standalone mode.
    #[error("failed to fetch {url}: file:// works only in standalone mode; push it to a registry")]
    FilesRefused {
        /// The URL.
        url: String,
    },
    /// The file can not be read.
    #[error("failed to read module file {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

// === impl Error ===

impl Error {
    /// Whether the same pull may succeed later although neither the policy, nor its server,
    /// nor its source changes.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Network { .. } | Self::Deadline { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

fn status_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => "; check the imagePullSecret of the PolicyServer, and that the module exists",
        404 | 410 => "; check the name, tag or digest of the module",
        408 | 429 | 500..=599 => "; try again later",
        _ => "; check the URL of the module",
    }
}
