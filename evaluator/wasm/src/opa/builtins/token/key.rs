//! Keys that verify signatures.

use aws_lc_rs::{
    constant_time, hmac,
    signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm},
};
use regorus::Value;
use x509_parser::{
    oid_registry, parse_x509_certificate, prelude::FromDer as _, public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

use super::{decoded, field};
use crate::opa::{builtins::x509::pem, value};

/// A key of a set, with its attributes.
#[derive(Default)]
pub(super) struct NamedKey {
    pub(super) key: Key,
    pub(super) id: String,
    /// Empty if any suitable algorithm may be used.
    pub(super) algorithm: String,
}

/// A key; one that can't verify anything is kept, because a token may name it.
#[derive(Default)]
pub(in crate::opa::builtins) enum Key {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(Vec<u8>),
    Ed25519(Vec<u8>),
    Secret(Vec<u8>),
    #[default]
    Useless,
}

/// Algorithms of RFC 7518 and RFC 8037.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::opa::builtins) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

/// Keys in one set; verifying with one costs up to a millisecond.
const MAX_KEYS: usize = 64;

/// A certificate or a public key as PEM, a key or a set of keys as JSON.
pub(super) fn keys(text: &str) -> Option<Vec<NamedKey>> {
    if text.trim_start().starts_with("-----BEGIN") {
        let blocks = pem(text.as_bytes());
        let [(label, der)] = blocks.as_slice() else {
            return None;
        };
        let key = match label.as_str() {
            "CERTIFICATE" => Key::of(parse_x509_certificate(der).ok()?.1.public_key()),
            "PUBLIC KEY" => Key::of(&SubjectPublicKeyInfo::from_der(der).ok()?.1),
            _ => return None,
        };
        let key = key?;
        return Some(vec![NamedKey {
            key,
            ..NamedKey::default()
        }]);
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let set = value::parse(text.as_bytes()).ok()?;
    let keys: Vec<&Value> = match field(&set, "keys") {
        Some(Value::Array(keys)) if keys.len() <= MAX_KEYS => keys.iter().collect(),
        Some(_) => return None,
        None => vec![&set],
    };
    let keys = keys
        .into_iter()
        .map(NamedKey::read)
        .collect::<Option<Vec<_>>>()?;
    let known =
        |key: &NamedKey| key.algorithm.is_empty() || Algorithm::named(&key.algorithm).is_some();
    Some(keys.into_iter().filter(known).collect())
}

// === impl NamedKey ===

impl NamedKey {
    fn read(jwk: &Value) -> Option<Self> {
        let text = |name: &str| match field(jwk, name) {
            Some(Value::String(text)) => Some(text.to_string()),
            _ => None,
        };
        let bytes = |name: &str| decoded(&text(name)?);
        let point = || Some([vec![4], bytes("x")?, bytes("y")?].concat());
        let key = match (text("kty")?.as_str(), text("crv").as_deref()) {
            // Private keys verify nothing.
            ("RSA" | "EC" | "OKP", _) if text("d").is_some() => Key::Useless,
            ("RSA", _) => Key::Rsa {
                modulus: bytes("n")?,
                exponent: bytes("e")?,
            },
            ("EC", Some("P-256")) => Key::P256(point()?),
            ("EC", Some("P-384")) => Key::P384(point()?),
            ("EC", Some("P-521")) => Key::P521(point()?),
            ("OKP", Some("Ed25519")) => Key::Ed25519(bytes("x")?),
            ("oct", _) => Key::Secret(bytes("k")?),
            ("EC" | "OKP", _) => Key::Useless,
            _ => return None,
        };
        Some(Self {
            key,
            id: text("kid").unwrap_or_default(),
            algorithm: text("alg").unwrap_or_default(),
        })
    }
}

// === impl Key ===

impl Key {
    /// The key of a certificate.
    pub(in crate::opa::builtins) fn of(info: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let bytes = info.subject_public_key.data.to_vec();
        if info.algorithm.algorithm == oid_registry::OID_SIG_ED25519 {
            return Some(Self::Ed25519(bytes));
        }
        Some(match info.parsed().ok()? {
            PublicKey::RSA(key) => Self::Rsa {
                modulus: key.modulus.to_vec(),
                exponent: key.exponent.to_vec(),
            },
            PublicKey::EC(_) => {
                let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
                if curve == oid_registry::OID_EC_P256 {
                    Self::P256(bytes)
                } else if curve == oid_registry::OID_NIST_EC_P384 {
                    Self::P384(bytes)
                } else if curve == oid_registry::OID_NIST_EC_P521 {
                    Self::P521(bytes)
                } else {
                    Self::Useless
                }
            }
            _ => Self::Useless,
        })
    }

    /// Whether the signature is of this key; a key of another kind signed nothing.
    pub(super) fn verify(&self, algorithm: Algorithm, text: &[u8], signature: &[u8]) -> bool {
        use Algorithm::{EdDsa, Es256, Es384, Es512, Hs256, Hs384, Hs512};
        let plain = |with: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(with, key)
                .verify(text, signature)
                .is_ok()
        };
        let keyed = |with: hmac::Algorithm, key: &[u8]| {
            let tag = hmac::sign(&hmac::Key::new(with, key), text);
            constant_time::verify_slices_are_equal(tag.as_ref(), signature).is_ok()
        };
        match (self, algorithm) {
            (Self::P256(key), Es256) => plain(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Self::P384(key), Es384) => plain(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Self::P521(key), Es512) => plain(&signature::ECDSA_P521_SHA512_FIXED, key),
            (Self::Ed25519(key), EdDsa) => plain(&signature::ED25519, key),
            (Self::Secret(key), Hs256) => keyed(hmac::HMAC_SHA256, key),
            (Self::Secret(key), Hs384) => keyed(hmac::HMAC_SHA384, key),
            (Self::Secret(key), Hs512) => keyed(hmac::HMAC_SHA512, key),
            (Self::Rsa { modulus, exponent }, algorithm) => algorithm.rsa().is_some_and(|with| {
                let key = RsaPublicKeyComponents {
                    n: without_zeros(modulus),
                    e: without_zeros(exponent),
                };
                key.verify(with, text, signature).is_ok()
            }),
            _ => false,
        }
    }
}

// === impl Algorithm ===

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hs256,
            "HS384" => Self::Hs384,
            "HS512" => Self::Hs512,
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }

    pub(super) fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }

    fn rsa(self) -> Option<&'static signature::RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
