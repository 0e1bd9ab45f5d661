//! Public keys and their signatures.

use std::fmt;

use assent_core::digest::Digest;
use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};
use webpki::RawPublicKeyEntity;

/// One trusted key.
#[derive(Clone)]
pub(super) struct Key {
    spki: SubjectPublicKeyInfoDer<'static>,
}

/// The name of a key in messages: the start of the SHA-256 of its DER form, as
/// `openssl pkey -pubin -in cosign.pub -outform der | sha256sum` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(Digest);

/// Why a key can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no key.
    #[error("there is no public key; at least one is required, as PEM")]
    None,
    /// It is not a public key in PEM.
    #[error(
        "invalid public key: it must be PEM that begins with -----BEGIN PUBLIC KEY-----; \
         `cosign generate-key-pair` writes such a file as cosign.pub"
    )]
    Pem,
    /// Its algorithm is not supported.
    #[error(
        "the algorithm of the public key {0} is not supported; \
         use ECDSA (P-256, P-384, P-521), Ed25519 or RSA of 2048 bits or more"
    )]
    Unsupported(Fingerprint),
}

// === impl Key ===

impl Key {
    /// The keys of a PEM text, at least one.
    pub(super) fn all_from_pem(pem: &str) -> Result<Vec<Self>, Error> {
        let found = SubjectPublicKeyInfoDer::pem_slice_iter(pem.as_bytes());
        let keys = found.map(|spki| Self::new(spki.map_err(|_| Error::Pem)?));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        match keys.is_empty() {
            true => Err(Error::Pem),
            false => Ok(keys),
        }
    }

    fn new(spki: SubjectPublicKeyInfoDer<'static>) -> Result<Self, Error> {
        let key = Self { spki };
        match key.is_supported() {
            true => Ok(key),
            false => Err(Error::Unsupported(key.fingerprint())),
        }
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Digest::of(&self.spki))
    }

    /// Whether this key made the signature of the message, with any hash function: tools of
    /// different versions use different ones with the same key.
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(entity) = RawPublicKeyEntity::try_from(&self.spki) else {
            return false;
        };
        let mut algorithms = webpki::ALL_VERIFICATION_ALGS.iter();
        algorithms.any(|algorithm| {
            entity
                .verify_signature(*algorithm, message, signature)
                .is_ok()
        })
    }

    /// Whether any supported algorithm accepts the key.
    fn is_supported(&self) -> bool {
        let Ok(entity) = RawPublicKeyEntity::try_from(&self.spki) else {
            return false;
        };
        let mut algorithms = webpki::ALL_VERIFICATION_ALGS.iter();
        // An RSA key of 2048 bits has 294 bytes; shorter ones fail every signature.
        let weak_rsa = is_rsa(&self.spki) && self.spki.len() < 294;
        !weak_rsa
            && algorithms.any(|algorithm| {
                let outcome = entity.verify_signature(*algorithm, b"", b"");
                matches!(outcome, Err(webpki::Error::InvalidSignatureForPublicKey))
            })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fingerprint(), f)
    }
}

// === impl Fingerprint ===

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 64 bits distinguish the keys of one server, and fit into a message.
        f.write_str(&self.0.hex()[..16])
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether the key's algorithm is rsaEncryption, by its object identifier in DER.
fn is_rsa(spki: &[u8]) -> bool {
    const RSA_ENCRYPTION: &[u8] = &[6, 9, 42, 134, 72, 134, 247, 13, 1, 1, 1];
    let head = &spki[..spki.len().min(24)];
    head.windows(RSA_ENCRYPTION.len())
        .any(|w| w == RSA_ENCRYPTION)
}
