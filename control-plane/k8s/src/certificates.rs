//! Our certificate authority: kept in a Secret, rotated with an overlap, or given by
//! cert-manager and only read.

use std::time::Duration;

use crate::names;

mod authority;
mod keeper;
mod plan;
mod publish;
mod secret;
mod serving;
mod sign;
#[cfg(test)]
mod tests;

pub use authority::{Authority, ServingLeaf, Signed};
pub use keeper::Keeper;
pub use plan::{Dates, Life, Step, plan};
pub use publish::publish_bundle;
pub use serving::keep_serving;

/// Where the authority comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// We make it and rotate it.
    SelfManaged,
    /// Somebody else does, in the Secret of this name: `tls.crt`, `tls.key` and `ca.crt`, as
    /// cert-manager writes them. We only read it.
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
    /// A new authority is published for this long before it signs: so long may it take until
    /// everyone trusts it.
    pub overlap: Duration,
}

/// Why there is no authority, or no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error("failed to keep the certificate authority: {0}")]
    Api(#[from] kube::Error),
    /// The Secret is not there, and not ours to make.
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
    /// The request for a certificate is wrong.
    #[error("failed to read the certificate request: {0}")]
    Request(String),
    /// Making a key or a certificate failed.
    #[error("failed to sign: {0}")]
    Sign(#[from] rcgen::Error),
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Clocks differ: a certificate is good from a little before it was made.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

// === impl Lives ===

impl Default for Lives {
    fn default() -> Self {
        Self {
            authority: DAY * 365,
            // Long enough to survive a long weekend without the control plane after half-life.
            leaf: DAY * 30,
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
