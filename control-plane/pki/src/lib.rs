//! The certificate authority of evaluators' and the control plane's serving certificates.
//!
//! Where its key is stored, and when it is replaced, is decided elsewhere: in a Secret by
//! `assent-k8s`, in a directory by `assent-grpc`. Nothing here reads or writes anything.

mod authority;
mod sign;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

pub use authority::{Authority, ServingLeaf, Signed};
pub use sign::{CaPair, Certificate, generate_ca, read, split};

/// Clocks differ: a certificate is valid from a little before it was made.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// Long enough to survive a long weekend without the control plane after half of it.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it was made.
    pub made: SystemTime,
    /// When it ends.
    pub ends: SystemTime,
}

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request for a certificate is not valid.
    #[error("failed to read the certificate request: {0}")]
    Request(String),
    /// The authority's certificate and key can't sign.
    #[error("failed to use the certificate authority: {0}")]
    Authority(String),
    /// Making a key or a certificate failed.
    #[error("failed to sign: {0}")]
    Sign(#[from] rcgen::Error),
}
