//! Signs, and says whom to trust.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use rcgen::{Issuer, KeyPair};

use super::{
    Error, Lives,
    sign::{self, Names},
};

/// An authority as of one moment. Immutable: a rotation makes another one.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The signing certificate and what leads from it to a trusted one.
    issuer_pem: String,
    bundle_pem: String,
    ends: SystemTime,
    lives: Lives,
}

/// A certificate for somebody's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// PEM: the leaf first, then its issuers.
    pub chain_pem: String,
    /// PEM: whom to trust.
    pub bundle_pem: String,
    /// When it ends.
    pub not_after: SystemTime,
    /// When to ask for the next one.
    pub renew_at: SystemTime,
}

/// A certificate with its key, for our own listeners.
#[derive(Clone, PartialEq, Eq)]
pub struct ServingLeaf {
    /// PEM: the leaf first, then its issuers.
    pub chain_pem: String,
    /// PEM: its key.
    pub key_pem: String,
    /// When it ends.
    pub not_after: SystemTime,
    /// When to make the next one.
    pub renew_at: SystemTime,
}

// === impl Authority ===

impl Authority {
    /// Signs with a key and the first certificate of `issuer_pem`, which the key belongs to.
    pub(super) fn new(
        issuer_pem: String,
        key: KeyPair,
        bundle_pem: String,
        ends: SystemTime,
        lives: Lives,
    ) -> Result<Self, Error> {
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&issuer_pem, key)?,
            issuer_pem,
            bundle_pem,
            ends,
            lives,
        })
    }

    /// PEM: whom to trust, during a rotation the old one and the new one.
    pub fn bundle_pem(&self) -> &str {
        &self.bundle_pem
    }

    /// When the certificate that signs ends.
    pub fn ends(&self) -> SystemTime {
        self.ends
    }

    /// A serving certificate for the key of a request, with these names and addresses. Names
    /// in the request are ignored.
    pub fn sign_csr(
        &self,
        csr_der: &[u8],
        dns_names: &[String],
        ip_addresses: &[IpAddr],
    ) -> Result<Signed, Error> {
        let now = SystemTime::now();
        let key = sign::requested_key(csr_der)?;
        let names = Names {
            common: "assent-evaluator",
            dns: dns_names,
            addresses: ip_addresses,
        };
        let not_after = self.not_after(now);
        let leaf = sign::leaf(&names, now, not_after)?.signed_by(&key, &self.issuer)?;
        Ok(Signed {
            chain_pem: self.chain(&leaf.pem()),
            bundle_pem: self.bundle_pem.clone(),
            not_after,
            renew_at: half(now, not_after),
        })
    }

    /// A serving certificate with a key of its own, for our own listeners.
    pub fn serving_leaf(
        &self,
        dns_names: &[String],
        ip_addresses: &[IpAddr],
    ) -> Result<ServingLeaf, Error> {
        let now = SystemTime::now();
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let names = Names {
            common: "assent-control-plane",
            dns: dns_names,
            addresses: ip_addresses,
        };
        let not_after = self.not_after(now);
        let leaf = sign::leaf(&names, now, not_after)?.signed_by(&key, &self.issuer)?;
        Ok(ServingLeaf {
            chain_pem: self.chain(&leaf.pem()),
            key_pem: key.serialize_pem(),
            not_after,
            renew_at: half(now, not_after),
        })
    }

    /// Whether both sign with the same certificate.
    pub(super) fn signs_like(&self, other: &Authority) -> bool {
        self.issuer_pem == other.issuer_pem
    }

    /// A leaf does not outlive who signed it: nobody would trust it then.
    fn not_after(&self, now: SystemTime) -> SystemTime {
        (now + self.lives.leaf).min(self.ends)
    }

    fn chain(&self, leaf_pem: &str) -> String {
        format!("{leaf_pem}{}", self.issuer_pem)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Authority");
        out.field("ends", &self.ends).finish_non_exhaustive()
    }
}

// === impl ServingLeaf ===

impl fmt::Debug for ServingLeaf {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ServingLeaf");
        out.field("renew_at", &self.renew_at)
            .finish_non_exhaustive()
    }
}

fn half(now: SystemTime, not_after: SystemTime) -> SystemTime {
    let life: Duration = not_after.duration_since(now).unwrap_or_default();
    now + life / 2
}
