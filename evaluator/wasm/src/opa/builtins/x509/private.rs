//! Private keys.

use aws_lc_rs::{
    agreement,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use regorus::Value;
use x509_parser::{
    asn1_rs::{Any, FromDer, Integer, OctetString, Oid, Sequence},
    num_bigint::BigUint,
    oid_registry,
    x509::SubjectPublicKeyInfo,
};

use super::{BEGIN, base64, big, object, pem, standard};
use crate::opa::builtins::token;

/// A key, its numbers most significant byte first.
pub(super) enum Key {
    Rsa(Rsa),
    Ec {
        curve: Curve,
        private: Vec<u8>,
        point: Vec<u8>,
    },
    Ed25519 {
        seed: Vec<u8>,
        public: Vec<u8>,
    },
}

/// In the order of RFC 8017.
pub(super) struct Rsa {
    n: Vec<u8>,
    e: Vec<u8>,
    d: Vec<u8>,
    p: Vec<u8>,
    q: Vec<u8>,
    dp: Vec<u8>,
    dq: Vec<u8>,
    qi: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    P521,
}

// === impl Key ===

impl Key {
    /// Keys of PEM blocks; other blocks are passed over.
    pub(super) fn read_all(text: &str) -> Option<Vec<Self>> {
        let bytes = standard(text).unwrap_or_else(|| text.as_bytes().to_vec());
        if !bytes.starts_with(BEGIN) {
            return Some(Vec::new());
        }
        let mut keys = Vec::new();
        for (label, der) in pem(&bytes) {
            match label.as_str() {
                "RSA PRIVATE KEY" => keys.push(Self::Rsa(Rsa::read(&der)?)),
                "PRIVATE KEY" => keys.push(Self::pkcs8(&der)?),
                "EC PRIVATE KEY" => keys.push(Self::sec1(&der, None)?),
                _ => {}
            }
        }
        Some(keys)
    }

    /// A key in whatever form.
    pub(super) fn read_any(der: &[u8]) -> Option<Self> {
        Rsa::read(der)
            .map(Self::Rsa)
            .or_else(|| Self::pkcs8(der))
            .or_else(|| Self::sec1(der, None))
    }

    fn pkcs8(der: &[u8]) -> Option<Self> {
        let (_, outer) = Sequence::from_der(der).ok()?;
        let (rest, _version) = Integer::from_der(&outer.content).ok()?;
        let (rest, algorithm) = Sequence::from_der(rest).ok()?;
        let (_, inner) = OctetString::from_der(rest).ok()?;
        let (parameters, oid) = Oid::from_der(&algorithm.content).ok()?;
        let inner = inner.as_ref();
        if oid == oid_registry::OID_PKCS1_RSAENCRYPTION {
            return Rsa::read(inner).map(Self::Rsa);
        }
        if oid == oid_registry::OID_KEY_TYPE_EC_PUBLIC_KEY {
            let (_, curve) = Oid::from_der(parameters).ok()?;
            return Self::sec1(inner, Some(Curve::named(&curve)?));
        }
        if oid == oid_registry::OID_SIG_ED25519 {
            let (_, seed) = OctetString::from_der(inner).ok()?;
            let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).ok()?;
            return Some(Self::Ed25519 {
                seed: seed.as_ref().to_vec(),
                public: pair.public_key().as_ref().to_vec(),
            });
        }
        None
    }

    /// RFC 5915; the curve may be named outside.
    fn sec1(der: &[u8], curve: Option<Curve>) -> Option<Self> {
        let (_, outer) = Sequence::from_der(der).ok()?;
        let (rest, _version) = Integer::from_der(&outer.content).ok()?;
        let (rest, private) = OctetString::from_der(rest).ok()?;
        let inside = || {
            let (_, tagged) = Any::from_der(rest).ok()?;
            let (_, oid) = Oid::from_der(tagged.data).ok()?;
            Curve::named(&oid)
        };
        let curve = curve.or_else(inside)?;
        let private = private.as_ref().to_vec();
        let point = curve.point(&private)?;
        Some(Self::Ec {
            curve,
            private,
            point,
        })
    }

    /// Whether the certificate's key is the public half.
    pub(super) fn fits(&self, info: &SubjectPublicKeyInfo<'_>) -> bool {
        match (self, token::Key::of(info)) {
            (Self::Rsa(rsa), Some(token::Key::Rsa { modulus, exponent })) => {
                let same =
                    |a: &[u8], b: &[u8]| BigUint::from_bytes_be(a) == BigUint::from_bytes_be(b);
                same(&rsa.n, &modulus) && same(&rsa.e, &exponent)
            }
            (
                Self::Ec {
                    curve: Curve::P256,
                    point,
                    ..
                },
                Some(token::Key::P256(other)),
            )
            | (
                Self::Ec {
                    curve: Curve::P384,
                    point,
                    ..
                },
                Some(token::Key::P384(other)),
            )
            | (
                Self::Ec {
                    curve: Curve::P521,
                    point,
                    ..
                },
                Some(token::Key::P521(other)),
            ) => *point == other,
            (Self::Ed25519 { public, .. }, Some(token::Key::Ed25519(other))) => *public == other,
            _ => false,
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Self::Rsa(rsa) => rsa.value(),
            Self::Ec { private, point, .. } => {
                let (x, y) = halves(point);
                object([
                    ("Curve", Value::new_object()),
                    ("D", big(private)),
                    ("X", big(x)),
                    ("Y", big(y)),
                ])
            }
            Self::Ed25519 { seed, public } => base64(&[seed.as_slice(), public].concat()),
        }
    }

    pub(super) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| Value::from(BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let number = |bytes: &[u8]| text(&BigUint::from_bytes_be(bytes).to_bytes_be());
        match self {
            Self::Rsa(rsa) => object([
                ("kty", Value::from("RSA")),
                ("n", number(&rsa.n)),
                ("e", number(&rsa.e)),
                ("d", number(&rsa.d)),
                ("p", number(&rsa.p)),
                ("q", number(&rsa.q)),
                ("dp", number(&rsa.dp)),
                ("dq", number(&rsa.dq)),
                ("qi", number(&rsa.qi)),
            ]),
            Self::Ec {
                curve,
                private,
                point,
            } => {
                let (x, y) = halves(point);
                object([
                    ("kty", Value::from("EC")),
                    ("crv", Value::from(curve.name())),
                    ("d", text(private)),
                    ("x", text(x)),
                    ("y", text(y)),
                ])
            }
            Self::Ed25519 { seed, public } => object([
                ("kty", Value::from("OKP")),
                ("crv", Value::from("Ed25519")),
                ("d", text(seed)),
                ("x", text(public)),
            ]),
        }
    }
}

// === impl Rsa ===

impl Rsa {
    /// PKCS #1, with two primes.
    fn read(der: &[u8]) -> Option<Self> {
        let (_, outer) = Sequence::from_der(der).ok()?;
        let (mut rest, _version) = Integer::from_der(&outer.content).ok()?;
        let mut next = || {
            let (after, number) = Integer::from_der(rest).ok()?;
            rest = after;
            Some(number.as_ref().to_vec())
        };
        Some(Self {
            n: next()?,
            e: next()?,
            d: next()?,
            p: next()?,
            q: next()?,
            dp: next()?,
            dq: next()?,
            qi: next()?,
        })
    }

    fn value(&self) -> Value {
        let precomputed = object([
            ("CRTValues", Value::new_array()),
            ("Dp", big(&self.dp)),
            ("Dq", big(&self.dq)),
            ("Qinv", big(&self.qi)),
        ]);
        object([
            ("N", big(&self.n)),
            ("E", big(&self.e)),
            ("D", big(&self.d)),
            ("Primes", Value::from(vec![big(&self.p), big(&self.q)])),
            ("Precomputed", precomputed),
        ])
    }
}

// === impl Curve ===

impl Curve {
    fn named(oid: &Oid<'_>) -> Option<Self> {
        if *oid == oid_registry::OID_EC_P256 {
            Some(Self::P256)
        } else if *oid == oid_registry::OID_NIST_EC_P384 {
            Some(Self::P384)
        } else if *oid == oid_registry::OID_NIST_EC_P521 {
            Some(Self::P521)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        }
    }

    /// The public half of a private key.
    fn point(self, private: &[u8]) -> Option<Vec<u8>> {
        let curve = match self {
            Self::P256 => &agreement::ECDH_P256,
            Self::P384 => &agreement::ECDH_P384,
            Self::P521 => &agreement::ECDH_P521,
        };
        let key = agreement::PrivateKey::from_private_key(curve, private).ok()?;
        Some(key.compute_public_key().ok()?.as_ref().to_vec())
    }
}

/// The coordinates of an uncompressed point.
pub(super) fn halves(point: &[u8]) -> (&[u8], &[u8]) {
    let numbers = point.get(1..).unwrap_or_default();
    numbers.split_at(numbers.len() / 2)
}
