//! Why a module could not be fetched, and whether trying again may help.

use std::{io, path::PathBuf};

use assent_core::digest::Digest;

use crate::verify::Rejected;

/// Why a module could not be fetched. Says nothing of what a server answered beyond
/// its status code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name could not be resolved, the connection failed or broke.
    #[error("failed to fetch {url}: {why}; check that the host is up and can be reached")]
    Network {
        /// What was fetched.
        url: String,
        /// What the system said.
        why: String,
    },
    /// The whole pull took too long.
    #[error("failed to fetch {url}: not done after {seconds} s; check the connection to the host")]
    Deadline {
        /// What was fetched.
        url: String,
        /// The time it had.
        seconds: u64,
    },
    /// The server answered with a status that is no success.
    #[error("failed to fetch {url}: the server answered {status}{}", status_advice(*status))]
    Status {
        /// What was fetched.
        url: String,
        /// The status code.
        status: u16,
    },
    /// The server's certificate is not trusted.
    #[error(
        "failed to fetch {url}: {why}; give the server's certificate authority in sources.secure"
    )]
    Certificate {
        /// What was fetched.
        url: String,
        /// What is wrong with the certificate.
        why: String,
    },
    /// Plain HTTP to a host that was not declared insecure.
    #[error(
        "failed to fetch {url}: plain HTTP is only used for hosts in sources.insecure; use https:// or declare {host} there"
    )]
    Plain {
        /// What was fetched.
        url: String,
        /// The host and port to declare.
        host: String,
    },
    /// An address that modules may not be fetched from.
    #[error(
        "failed to fetch {url}: {host} has {kind} address, which is only used where the PolicyServer's sources declare {host}"
    )]
    OutOfReach {
        /// What was fetched.
        url: String,
        /// The host and port to declare.
        host: String,
        /// What kind of address it is.
        kind: &'static str,
    },
    /// One redirect after another.
    #[error("failed to fetch {url}: more than {limit} redirects; use the final address")]
    Redirects {
        /// What was fetched.
        url: String,
        /// How many are followed.
        limit: usize,
    },
    /// A redirect to nowhere.
    #[error("failed to fetch {url}: the server redirects to something that is no http(s) address")]
    BadRedirect {
        /// What was fetched.
        url: String,
    },
    /// More bytes than are taken.
    #[error("failed to fetch {url}: it has more than the {limit} bytes allowed")]
    TooLarge {
        /// What was fetched.
        url: String,
        /// The most that is taken.
        limit: usize,
    },
    /// Not what the digest promises.
    #[error(
        "failed to verify {url}: expected the digest {expected}, got {actual}; the content was changed, name the digest you trust"
    )]
    Digest {
        /// What was fetched.
        url: String,
        /// The digest it should have.
        expected: Digest,
        /// The digest it has.
        actual: Digest,
    },
    /// Not a core module.
    #[error("failed to read {url} as a policy: {why}; check that the URL names a .wasm file")]
    NotWasm {
        /// What was fetched.
        url: String,
        /// What it is instead.
        why: &'static str,
    },
    /// An image or something else that is no policy.
    #[error("failed to read {url} as a policy: {why}; check that it was pushed as a policy")]
    Manifest {
        /// What was fetched.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The registry wants a login of a kind that is not spoken, or there is none.
    #[error("failed to log in for {url}: {why}; check the imagePullSecret of the PolicyServer")]
    Login {
        /// What was fetched.
        url: String,
        /// What went wrong.
        why: &'static str,
    },
    /// Not signed by whom it should be.
    #[error(
        "failed to verify the signature of {url}: {why}; trusted keys: {keys}; \
         sign it with `cosign sign --key`, or give the key of who did"
    )]
    SignatureRejected {
        /// What was fetched.
        url: String,
        /// What is wrong.
        why: Rejected,
        /// The keys that were tried, by fingerprint.
        keys: String,
    },
    /// Not the name of an image.
    #[error("failed to read {name:?} as the name of an image: {source}")]
    Name {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        source: super::UrlError,
    },
    /// Files are for standalone use.
    #[error("failed to fetch {url}: file:// works only in standalone mode; push it to a registry")]
    FilesRefused {
        /// What was fetched.
        url: String,
    },
    /// The file can't be read.
    #[error("failed to read module file {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

// === impl Error ===

impl Error {
    /// Whether the same pull may succeed later without anybody changing the policy.
    /// All others stay as they are until the policy, its server or its source changes.
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
        408 | 429 | 500..=599 => "; it will be tried again",
        _ => "; check the address of the module",
    }
}
