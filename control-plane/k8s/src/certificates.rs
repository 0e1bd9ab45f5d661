//! The certificate authority in a cluster: stored in a Secret and rotated with an overlap, or
//! provided by cert-manager and only read.

use std::time::Duration;

use crate::names;

mod manager;
mod plan;
mod provided;
mod publish;
mod secret;
mod serving;
#[cfg(test)]
mod tests;

pub use assent_pki::{Authority, Error as SignError, Life, ServingLeaf, Signed};
use assent_pki::{CLOCK_SKEW, LEAF_LIFETIME};
pub use manager::CaManager;
pub use plan::{Dates, Step, plan};
pub use publish::publish_bundle;
pub use serving::keep_serving;

/// Where the authority comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The control plane creates and rotates it.
    SelfManaged,
    /// cert-manager does, in the Secret of this name: `tls.crt`, `tls.key` and `ca.crt`. The
    /// control plane only reads it.
    CertManager {
        /// The Secret.
        secret: String,
    },
}

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    /// An authority. It is replaced after two thirds of that.
    pub authority: Duration,
    /// What it signs, renewed at half of that.
    pub leaf: Duration,
    /// A new authority is published for this long before it signs: it may take that long until
    /// every client trusts it.
    pub overlap: Duration,
}

/// Why there is no authority, or no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error("failed to store the certificate authority: {0}")]
    Api(#[from] kube::Error),
    /// The Secret that cert-manager should write does not exist.
    #[error("failed to read the certificate authority: there is no Secret {0}")]
    Absent(String),
    /// What is in the Secret is no authority.
    #[error("failed to use {key} of the certificate authority in the Secret: {why}{heal}")]
    Broken {
        /// Which key of the Secret.
        key: &'static str,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        heal: &'static str,
    },
    /// Making a key or a certificate failed.
    #[error(transparent)]
    Sign(#[from] SignError),
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

// === impl Lives ===

impl Default for Lives {
    fn default() -> Self {
        Self {
            authority: DAY * 365,
            leaf: LEAF_LIFETIME,
            // Kubelets bring a changed ConfigMap in minutes; an evaluator that was cut off
            // needs longer.
            overlap: DAY,
        }
    }
}

// === impl Mode ===

impl Mode {
    fn secret(&self) -> &str {
        match self {
            Mode::SelfManaged => names::CA,
            Mode::CertManager { secret } => secret,
        }
    }
}
