//! Makes and reads keys and certificates.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

use super::{CLOCK_SKEW, Error, Life};

/// The certificate and the key of an authority, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CaPair {
    /// The certificate, which others trust.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// The parts of a certificate that matter here.
pub struct Certificate {
    /// When it is valid.
    pub life: Life,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// Its public key, DER.
    pub public_key: Vec<u8>,
}

/// The subject of a leaf.
pub(super) struct Names<'a> {
    pub(super) common: &'a str,
    pub(super) dns: &'a [String],
    pub(super) addresses: &'a [IpAddr],
}

/// Shorter keys are weak; longer ones cost the control plane too much time.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Makes an authority that is valid for `lifetime`.
pub fn generate_ca(now: SystemTime, lifetime: Duration) -> Result<CaPair, Error> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    // A unique name: during a rotation clients do not try the wrong one.
    let mark = hex::encode(Sha256::digest(key.public_key_raw()));
    params.distinguished_name = common_name(&format!("assent-ca-{}", &mark[..8]));
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + lifetime).into();
    // It signs leaves only, not other authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(CaPair {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

/// The content of a leaf. Names in a request are never used.
pub(super) fn leaf(
    names: &Names<'_>,
    now: SystemTime,
    ends: SystemTime,
) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    for name in names.dns {
        let name = name.as_str().try_into()?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    let addresses = names.addresses.iter().copied().map(SanType::IpAddress);
    params.subject_alt_names.extend(addresses);
    params.distinguished_name = common_name(names.common);
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = ends.into();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// The key of a request, after the request has proven to possess it.
pub(super) fn requested_key(csr_der: &[u8]) -> Result<SubjectPublicKeyInfo, Error> {
    let wrong = |why: &dyn std::fmt::Display| Error::Request(why.to_string());
    let der = CertificateSigningRequestDer::from(csr_der);
    CertificateSigningRequestParams::from_der(&der).map_err(|error| wrong(&error))?;
    // The kind of the key is read from the key itself: the signature may suggest another.
    let (_, csr) = X509CertificationRequest::from_der(csr_der).map_err(|error| wrong(&error))?;
    let info = &csr.certification_request_info.subject_pki;
    let key = SubjectPublicKeyInfo::from_der(info.raw).map_err(|error| wrong(&error))?;
    let elliptic = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
    ];
    if elliptic.contains(&key.algorithm()) {
        return Ok(key);
    }
    match info.parsed() {
        Ok(x509_parser::public_key::PublicKey::RSA(rsa)) if RSA_BITS.contains(&rsa.key_size()) => {
            Ok(key)
        }
        _ => Err(wrong(
            &"its key must be ECDSA P-256 or P-384, or RSA of 2048 to 8192 bits",
        )),
    }
}

/// The certificates in a PEM text, each as PEM.
pub fn split(pem: &str) -> Result<Vec<String>, String> {
    const END: &str = "-----END CERTIFICATE-----";
    let mut all = Vec::new();
    let mut rest = pem;
    while let Some(end) = rest.find(END) {
        let (one, more) = rest.split_at(end + END.len());
        let begin = one.find("-----BEGIN CERTIFICATE-----");
        let begin = begin.ok_or_else(|| "a certificate has no beginning".to_owned())?;
        all.push(format!("{}\n", &one[begin..]));
        rest = more;
    }
    if all.is_empty() {
        return Err("it contains no certificate".to_owned());
    }
    Ok(all)
}

/// Reads one certificate.
pub fn read(pem: &str) -> Result<Certificate, String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|e| e.to_string())?;
    let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = parsed.validity();
    Ok(Certificate {
        life: Life {
            made: time(validity.not_before.timestamp()) + CLOCK_SKEW,
            ends: time(validity.not_after.timestamp()),
        },
        is_ca: parsed.is_ca(),
        public_key: parsed.public_key().raw.to_vec(),
    })
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
