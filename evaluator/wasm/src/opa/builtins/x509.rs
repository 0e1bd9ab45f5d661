//! Certificates, requests for them and private keys, in the form that Go gives them.

use std::time::{Duration, UNIX_EPOCH};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use regorus::Value;
use x509_parser::{
    certificate::X509Certificate, certification_request::X509CertificationRequest,
    parse_x509_certificate, pem::Pem, prelude::FromDer as _,
};

use super::{Own, Timed, string};
use crate::opa::deadline;

mod chain;
mod describe;
mod private;

use chain::Options;

const BEGIN: &[u8] = b"-----BEGIN";

/// Certificates in one call: verifying takes some milliseconds for each.
const MAX_CERTIFICATES: usize = 64;

pub(super) fn find(name: &str) -> Option<Own> {
    Some(match name {
        "crypto.parse_private_keys" => private_keys,
        "crypto.x509.parse_certificate_request" => |args| request(string(args, 0)?),
        "crypto.x509.parse_certificates" => parse_certificates,
        "crypto.x509.parse_keypair" => |args| key_pair(string(args, 0)?, string(args, 1)?),
        "crypto.x509.parse_rsa_private_key" => private_jwk,
        _ => return None,
    })
}

pub(super) fn find_timed(name: &str) -> Option<Timed> {
    Some(match name {
        "crypto.x509.parse_and_verify_certificates" => |context, args| {
            let options = Options::default_at(context.now?);
            Some(verified(string(args, 0)?, &options, true))
        },
        "crypto.x509.parse_and_verify_certificates_with_options" => |context, args| {
            let options = Options::read(args.get(1)?, context.now?)?;
            Some(verified(string(args, 0)?, &options, false))
        },
        _ => return None,
    })
}

/// PEM blocks with their labels, up to the first that is none.
pub(super) fn pem(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    Pem::iter_from_buffer(text)
        .map_while(Result::ok)
        .map(|block| (block.label, block.contents))
        .collect()
}

fn parse_certificates(args: &[Value]) -> Option<Value> {
    let certificates = certificates(string(args, 0)?)?;
    let described = described(&certificates, true)?;
    Some(Value::from(described))
}

fn described(certificates: &[Vec<u8>], with_uris: bool) -> Option<Vec<Value>> {
    certificates
        .iter()
        .map(|der| {
            deadline::check();
            describe::certificate(&parsed(der)?, with_uris)
        })
        .collect()
}

/// Whether the first of the certificates vouches for the last, and the chain from the last to the first.
fn verified(text: &str, options: &Options, with_uris: bool) -> Value {
    let chain = certificates(text)
        .and_then(|certificates| chain::verify(&certificates, options))
        .and_then(|chain| described(&chain, with_uris));
    let (valid, chain) = match chain {
        Some(chain) => (true, chain),
        None => (false, Vec::new()),
    };
    Value::from(vec![Value::Bool(valid), Value::from(chain)])
}

/// PEM, or base64 of PEM or DER, each with any number of certificates.
fn certificates(text: &str) -> Option<Vec<Vec<u8>>> {
    let bytes = if text.as_bytes().starts_with(BEGIN) {
        text.as_bytes().to_vec()
    } else {
        standard(text)?
    };
    let mut der = bytes;
    if der.starts_with(BEGIN) {
        let blocks = pem(&der);
        if blocks.iter().any(|(label, _)| label != "CERTIFICATE") {
            return None;
        }
        der = blocks.into_iter().flat_map(|(_, der)| der).collect();
    }
    let mut found = Vec::new();
    let mut rest = der.as_slice();
    while !rest.is_empty() {
        deadline::check();
        let (after, certificate) = parse_x509_certificate(rest).ok()?;
        found.push(certificate.as_raw().to_vec());
        rest = after;
    }
    (found.len() <= MAX_CERTIFICATES).then_some(found)
}

fn parsed(der: &[u8]) -> Option<X509Certificate<'_>> {
    parse_x509_certificate(der)
        .ok()
        .map(|(_, certificate)| certificate)
}

fn request(text: &str) -> Option<Value> {
    let bytes = if text.starts_with("-----BEGIN CERTIFICATE REQUEST-----") {
        text.as_bytes().to_vec()
    } else {
        standard(text)?
    };
    let der = match pem(&bytes).into_iter().next() {
        Some((label, der)) if label == "CERTIFICATE REQUEST" => der,
        Some(_) => return None,
        None => bytes,
    };
    let (rest, request) = X509CertificationRequest::from_der(&der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    describe::request(&request, &der)
}

/// Certificates and the private key of the first.
fn key_pair(certificates: &str, key: &str) -> Option<Value> {
    let blocks = |text: &str, label: &str| {
        let bytes = if text.starts_with("-----BEGIN ") {
            text.as_bytes().to_vec()
        } else {
            standard(text)?
        };
        Some(if bytes.starts_with(BEGIN) {
            pem(&bytes)
        } else {
            vec![(label.to_owned(), bytes)]
        })
    };
    let certificates: Vec<Vec<u8>> = blocks(certificates, "CERTIFICATE")?
        .into_iter()
        .filter(|(label, _)| label == "CERTIFICATE")
        .map(|(_, der)| der)
        .collect();
    let is_key = |label: &str| label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY");
    let (_, key) = blocks(key, "PRIVATE KEY")?
        .into_iter()
        .find(|(label, _)| is_key(label))?;
    let key = private::Key::read_any(&key)?;
    let leaf = parsed(certificates.first()?)?;
    if !key.fits(leaf.public_key()) {
        return None;
    }
    let ders = certificates
        .iter()
        .map(|der| base64(der))
        .collect::<Vec<_>>();
    Some(object([
        ("Certificate", Value::from(ders)),
        ("PrivateKey", key.value()),
        ("SupportedSignatureAlgorithms", Value::Null),
        ("OCSPStaple", Value::Null),
        ("SignedCertificateTimestamps", Value::Null),
        ("Leaf", describe::certificate(&leaf, false)?),
    ]))
}

fn private_keys(args: &[Value]) -> Option<Value> {
    let text = string(args, 0)?;
    if text.is_empty() {
        return Some(Value::Null);
    }
    let keys = private::Key::read_all(text)?;
    Some(Value::from(
        keys.iter().map(private::Key::value).collect::<Vec<_>>(),
    ))
}

/// The first private key, as a JSON web key.
fn private_jwk(args: &[Value]) -> Option<Value> {
    let text = string(args, 0)?;
    if text.is_empty() || !text.as_bytes().starts_with(BEGIN) && standard(text).is_none() {
        return None;
    }
    let keys = private::Key::read_all(text)?;
    Some(keys.first().map_or(Value::Null, private::Key::jwk))
}

fn standard(text: &str) -> Option<Vec<u8>> {
    // As in Go, line ends are not seen.
    let text: String = text
        .chars()
        .filter(|char| !matches!(char, '\r' | '\n'))
        .collect();
    BASE64_STANDARD.decode(text).ok()
}

fn base64(bytes: &[u8]) -> Value {
    Value::from(BASE64_STANDARD.encode(bytes))
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields
        .into_iter()
        .map(|(name, value)| (Value::from(name), value));
    Value::from(fields.collect::<std::collections::BTreeMap<_, _>>())
}

/// An unsigned number, most significant byte first, with all its digits.
fn big(bytes: &[u8]) -> Value {
    let digits = x509_parser::num_bigint::BigUint::from_bytes_be(bytes).to_string();
    Value::from_numeric_string(&digits).unwrap_or(Value::Null)
}

fn since_epoch(time: std::time::SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
