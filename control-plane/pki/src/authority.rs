//! Signs certificates.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use rcgen::{Issuer, KeyPair, PublicKeyData as _};

use super::{
    CaPair, Error,
    sign::{self, Names},
};

/// An authority at one moment. A rotation makes another one.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The signing certificate, and the chain to a trusted one.
    issuer_pem: String,
    bundle_pem: String,
    ends: SystemTime,
    leaf_lifetime: Duration,
}

/// A certificate for the key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// PEM: the leaf first, then its issuers.
    pub chain_pem: String,
    /// PEM: the certificates that clients trust.
    pub bundle_pem: String,
    /// When it expires.
    pub not_after: SystemTime,
    /// When to request the next one.
    pub renew_at: SystemTime,
}

/// A certificate with its key, for the control plane's own listeners.
#[derive(Clone, PartialEq, Eq)]
pub struct ServingLeaf {
    /// PEM: the leaf first, then its issuers.
    pub chain_pem: String,
    /// PEM: its key.
    pub key_pem: String,
    /// When it expires.
    pub not_after: SystemTime,
    /// When to make the next one.
    pub renew_at: SystemTime,
}

// === impl Authority ===

impl Authority {
    /// An authority that signs with `key`, which belongs to the first certificate of
    /// `issuer_pem`. Clients trust `bundle_pem`.
    pub fn new(
        issuer_pem: String,
        key: KeyPair,
        bundle_pem: String,
        ends: SystemTime,
        leaf_lifetime: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&issuer_pem, key)?,
            issuer_pem,
            bundle_pem,
            ends,
            leaf_lifetime,
        })
    }

    /// An authority that consists of one certificate and its key.
    pub fn from_pair(pair: &CaPair, leaf_lifetime: Duration) -> Result<Self, Error> {
        let broken = |why: &str| Error::Authority(why.to_owned());
        let read = sign::read(&pair.certificate).map_err(|why| broken(&why))?;
        if !read.is_ca {
            return Err(broken("the certificate is not a CA certificate"));
        }
        let key = KeyPair::from_pem(&pair.key).map_err(|e| broken(&e.to_string()))?;
        if key.subject_public_key_info() != read.public_key {
            return Err(broken("the key does not match the certificate"));
        }
        let (issuer, bundle) = (pair.certificate.clone(), pair.certificate.clone());
        Self::new(issuer, key, bundle, read.life.ends, leaf_lifetime)
    }

    /// The certificates that clients trust, PEM: during a rotation the old and the new one.
    pub fn bundle_pem(&self) -> &str {
        &self.bundle_pem
    }

    /// When the signing certificate expires.
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

    /// A serving certificate with a new key, for the control plane's own listeners.
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
    pub fn signs_like(&self, other: &Authority) -> bool {
        self.issuer_pem == other.issuer_pem
    }

    /// A leaf never outlives its issuer: no client would trust it.
    fn not_after(&self, now: SystemTime) -> SystemTime {
        (now + self.leaf_lifetime).min(self.ends)
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
