//! Certificates as objects, with the names and numbers that Go has for their fields.

use std::net::IpAddr;

use regorus::Value;
use x509_parser::{
    asn1_rs::{Any, FromDer as _, Oid, Sequence, Tag},
    certificate::X509Certificate,
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::X509Extension,
    oid_registry,
    signature_algorithm::SignatureAlgorithm,
    x509::{AlgorithmIdentifier, SubjectPublicKeyInfo, X509Name},
};

use super::{base64, big, object, private::halves};
use crate::opa::builtins::token;

mod extensions;

use extensions::{Described, Names};

/// All of a certificate.
pub(super) fn certificate(certificate: &X509Certificate<'_>, with_uris: bool) -> Option<Value> {
    let tbs = &certificate.tbs_certificate;
    let Described { mut fields, names } = Described::of(tbs.extensions())?;
    let time = |seconds: i64| {
        let time = jiff::Timestamp::from_second(seconds).ok()?;
        Some(Value::from(time.to_string()))
    };
    let info = tbs.public_key();
    fields.extend([
        ("Raw", base64(certificate.as_raw())),
        ("RawTBSCertificate", base64(tbs.as_ref())),
        ("RawSubjectPublicKeyInfo", base64(info.raw)),
        ("RawSubject", base64(tbs.subject.as_raw())),
        ("RawIssuer", base64(tbs.issuer.as_raw())),
        ("Signature", base64(&certificate.signature_value.data)),
        (
            "SignatureAlgorithm",
            signature_algorithm(&certificate.signature_algorithm),
        ),
        ("PublicKeyAlgorithm", key_algorithm(info)),
        ("PublicKey", public_key(info)),
        ("Version", Value::from(u64::from(tbs.version.0) + 1)),
        ("SerialNumber", big(tbs.raw_serial())),
        ("Issuer", name(&tbs.issuer)),
        ("Subject", name(&tbs.subject)),
        ("NotBefore", time(tbs.validity.not_before.timestamp())?),
        ("NotAfter", time(tbs.validity.not_after.timestamp())?),
        ("Extensions", list(tbs.extensions().iter().map(extension))),
        ("ExtraExtensions", Value::Null),
    ]);
    if with_uris {
        fields.push((
            "URIStrings",
            list(names.uris.iter().map(|uri| Value::from(*uri))),
        ));
    }
    Some(build(fields, &names))
}

/// All of a request for a certificate.
pub(super) fn request(request: &X509CertificationRequest<'_>, raw: &[u8]) -> Option<Value> {
    let inner = &request.certification_request_info;
    let mut asked: Vec<&X509Extension<'_>> = Vec::new();
    let mut attributes = Vec::new();
    for attribute in inner.attributes() {
        if let ParsedCriAttribute::ExtensionRequest(extensions) = attribute.parsed_attribute() {
            asked.extend(&extensions.extensions);
            attributes.push(object([
                ("Type", oid(&attribute.oid)?),
                (
                    "Value",
                    Value::from(vec![list(extensions.extensions.iter().map(pair))]),
                ),
            ]));
        }
    }
    let Described { names, .. } = Described::of_all(asked.iter().copied())?;
    let info = &inner.subject_pki;
    let fields = vec![
        ("Raw", base64(raw)),
        ("RawTBSCertificateRequest", base64(inner.raw)),
        ("RawSubjectPublicKeyInfo", base64(info.raw)),
        ("RawSubject", base64(inner.subject.as_raw())),
        ("Version", Value::from(u64::from(inner.version.0))),
        ("Signature", base64(&request.signature_value.data)),
        (
            "SignatureAlgorithm",
            signature_algorithm(&request.signature_algorithm),
        ),
        ("PublicKeyAlgorithm", key_algorithm(info)),
        ("PublicKey", public_key(info)),
        ("Subject", name(&inner.subject)),
        ("Attributes", list(attributes.into_iter())),
        ("Extensions", list(asked.iter().map(|one| extension(one)))),
        ("ExtraExtensions", Value::Null),
    ];
    Some(build(fields, &names))
}

fn build(mut fields: Vec<(&'static str, Value)>, names: &Names<'_>) -> Value {
    fields.extend([
        (
            "DNSNames",
            list(names.dns.iter().map(|name| Value::from(*name))),
        ),
        (
            "EmailAddresses",
            list(names.mail.iter().map(|name| Value::from(*name))),
        ),
        (
            "IPAddresses",
            list(names.addresses.iter().map(|ip| Value::from(ip.to_string()))),
        ),
        ("URIs", list(names.uris.iter().map(|text| uri(text)))),
    ]);
    let fields = fields
        .into_iter()
        .map(|(name, value)| (Value::from(name), value));
    Value::from(fields.collect::<std::collections::BTreeMap<_, _>>())
}

/// A list; Go has no difference between none and empty ones that were never made.
fn list(items: impl Iterator<Item = Value>) -> Value {
    let items: Vec<Value> = items.collect();
    if items.is_empty() {
        Value::Null
    } else {
        Value::from(items)
    }
}

fn oid(oid: &Oid<'_>) -> Option<Value> {
    let parts: Vec<Value> = oid.iter()?.map(Value::from).collect();
    Some(Value::from(parts))
}

fn extension(extension: &X509Extension<'_>) -> Value {
    object([
        ("Id", oid(&extension.oid).unwrap_or(Value::Null)),
        ("Critical", Value::Bool(extension.critical)),
        ("Value", base64(extension.value)),
    ])
}

/// Go reads the extensions of a request as pairs too; of three parts the second counts.
fn pair(extension: &X509Extension<'_>) -> Value {
    let value = match extension.critical {
        true => Value::Bool(true),
        false => base64(extension.value),
    };
    object([
        ("Type", oid(&extension.oid).unwrap_or(Value::Null)),
        ("Value", value),
    ])
}

fn name(name: &X509Name<'_>) -> Value {
    let all: Vec<(Vec<u64>, Value)> = name
        .iter_attributes()
        .filter_map(|attribute| {
            let kind: Vec<u64> = attribute.attr_type().iter()?.collect();
            Some((kind, text(attribute.attr_value())))
        })
        .collect();
    let of = |number: u64| {
        let kind = [2, 5, 4, number];
        all.iter()
            .filter(move |(found, _)| *found == kind)
            .map(|(_, value)| value.clone())
    };
    let last = |number: u64| of(number).next_back().unwrap_or(Value::from(""));
    let names = all.iter().map(|(kind, value)| {
        let kind: Vec<Value> = kind.iter().map(|part| Value::from(*part)).collect();
        object([("Type", Value::from(kind)), ("Value", value.clone())])
    });
    object([
        ("CommonName", last(3)),
        ("SerialNumber", last(5)),
        ("Country", list(of(6))),
        ("Locality", list(of(7))),
        ("Province", list(of(8))),
        ("StreetAddress", list(of(9))),
        ("Organization", list(of(10))),
        ("OrganizationalUnit", list(of(11))),
        ("PostalCode", list(of(17))),
        ("Names", list(names)),
        ("ExtraNames", Value::Null),
    ])
}

/// The text of a name's part; two old kinds have letters of their own width.
fn text(value: &Any<'_>) -> Value {
    let text = match value.tag() {
        Tag::T61String => value.data.iter().map(|byte| char::from(*byte)).collect(),
        Tag::BmpString => {
            let units: Vec<u16> = value
                .data
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                .collect();
            String::from_utf16_lossy(&units)
        }
        _ => String::from_utf8_lossy(value.data).into_owned(),
    };
    Value::from(text)
}

fn signature_algorithm(algorithm: &AlgorithmIdentifier<'_>) -> Value {
    use oid_registry as known;
    let oid = &algorithm.algorithm;
    let numbers = [
        (known::OID_PKCS1_MD5WITHRSAENC, 2),
        (known::OID_PKCS1_SHA1WITHRSA, 3),
        (known::OID_PKCS1_SHA256WITHRSA, 4),
        (known::OID_PKCS1_SHA384WITHRSA, 5),
        (known::OID_PKCS1_SHA512WITHRSA, 6),
        (known::OID_SIG_ECDSA_WITH_SHA256, 10),
        (known::OID_SIG_ECDSA_WITH_SHA384, 11),
        (known::OID_SIG_ECDSA_WITH_SHA512, 12),
        (known::OID_SIG_ED25519, 16),
    ];
    let plain = numbers
        .iter()
        .find(|(known, _)| known == oid)
        .map(|(_, number)| *number);
    let number = match (plain, SignatureAlgorithm::try_from(algorithm)) {
        (Some(number), _) => number,
        (None, Ok(SignatureAlgorithm::RSASSA_PSS(parameters))) => {
            let hash = parameters.hash_algorithm_oid();
            [
                known::OID_NIST_HASH_SHA256,
                known::OID_NIST_HASH_SHA384,
                known::OID_NIST_HASH_SHA512,
            ]
            .iter()
            .zip(13_u64..)
            .find(|(known, _)| *known == hash)
            .map_or(0, |(_, number)| number)
        }
        _ => 0,
    };
    Value::from(number)
}

fn key_algorithm(info: &SubjectPublicKeyInfo<'_>) -> Value {
    use token::Key;
    let oid = &info.algorithm.algorithm;
    Value::from(match token::Key::of(info) {
        Some(Key::Rsa { .. }) => 1_u64,
        _ if *oid == oid_registry::OID_KEY_TYPE_DSA => 2,
        Some(Key::P256(_) | Key::P384(_) | Key::P521(_)) => 3,
        Some(Key::Ed25519(_)) => 4,
        _ => 0,
    })
}

fn public_key(info: &SubjectPublicKeyInfo<'_>) -> Value {
    use token::Key;
    match token::Key::of(info) {
        Some(Key::Rsa { modulus, exponent }) => {
            object([("N", big(&modulus)), ("E", big(&exponent))])
        }
        Some(Key::P256(point) | Key::P384(point) | Key::P521(point)) => {
            let (x, y) = halves(&point);
            object([("Curve", Value::new_object()), ("X", big(x)), ("Y", big(y))])
        }
        Some(Key::Ed25519(key)) => base64(&key),
        _ => Value::Null,
    }
}

/// A URI in its parts.
fn uri(text: &str) -> Value {
    let Some(uri) = crate::opa::builtins::uri::Uri::parse(text) else {
        return Value::Null;
    };
    object([
        ("Scheme", Value::from(uri.scheme)),
        ("Opaque", Value::from(uri.opaque)),
        // Go shows that there is one, and nothing of it.
        (
            "User",
            uri.user.map_or(Value::Null, |_| Value::new_object()),
        ),
        ("Host", Value::from(uri.host)),
        ("Path", Value::from(uri.path)),
        ("RawPath", Value::from(uri.raw_path)),
        ("OmitHost", Value::Bool(uri.omit_host)),
        ("ForceQuery", Value::Bool(uri.force_query)),
        ("RawQuery", Value::from(uri.raw_query)),
        ("Fragment", Value::from(uri.fragment)),
        ("RawFragment", Value::from(uri.raw_fragment)),
    ])
}

/// An address out of its bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The identifiers in a sequence of them, in their order.
fn oids(der: &[u8]) -> Option<Vec<Oid<'_>>> {
    let (_, sequence) = Sequence::from_der(der).ok()?;
    let offset = der.len() - sequence.content.len();
    let mut rest = der.get(offset..)?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (after, oid) = Oid::from_der(rest).ok()?;
        found.push(oid);
        rest = after;
    }
    Some(found)
}
