//! The namespace `crypto`: checks whether a certificate is trusted.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject as _};
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter};

use super::{CallError, HostNamespace};

/// Answers from the certificates in the call and the system's roots.
pub(super) struct Crypto;

/// The question is about trust, not use.
struct AnyUse;

#[derive(Deserialize)]
struct Request {
    cert: Certificate,
    /// Intermediates first, the root last; the system's roots if it is absent.
    #[serde(default)]
    cert_chain: Option<Vec<Certificate>>,
    /// RFC 3339: when the certificate must be valid; now if it is absent.
    #[serde(default)]
    not_after: Option<String>,
}

#[derive(Deserialize)]
struct Certificate {
    encoding: Encoding,
    data: Vec<u8>,
}

#[derive(Deserialize)]
enum Encoding {
    #[serde(alias = "DER", alias = "der")]
    Der,
    #[serde(alias = "PEM", alias = "pem")]
    Pem,
}

#[derive(Serialize)]
struct Reply {
    trusted: bool,
    reason: String,
}

// === impl Crypto ===

impl HostNamespace for Crypto {
    fn name(&self) -> &'static str {
        "crypto"
    }

    fn operations(&self) -> &'static [&'static str] {
        &["v1/is_certificate_trusted"]
    }

    fn is_external(&self) -> bool {
        false
    }

    /// A chain takes some milliseconds, and the system's roots are loaded at the first call.
    fn waits(&self, _: &str, _: &[u8]) -> bool {
        true
    }

    fn call(&self, _: &str, payload: &[u8], _: Duration) -> Result<Vec<u8>, CallError> {
        Ok(is_trusted(payload)?)
    }
}

/// Answers `v1/is_certificate_trusted`. A payload that is no certificate is an error; a certificate that is not
/// trusted is an answer.
fn is_trusted(payload: &[u8]) -> Result<Vec<u8>, String> {
    let request: Request = serde_json::from_slice(payload)
        .map_err(|error| format!("failed to read the request: {error}"))?;
    let reason = check(&request)?.unwrap_or_default();
    serde_json::to_vec(&Reply {
        trusted: reason.is_empty(),
        reason,
    })
    .map_err(|error| error.to_string())
}

/// Why the certificate is not trusted, if so.
fn check(request: &Request) -> Result<Option<String>, String> {
    let cert = request.cert.der()?;
    let time = match &request.not_after {
        Some(time) => read_time(time)?,
        None => now(),
    };
    let Some(chain) = &request.cert_chain else {
        return verify(&cert, system_roots(), &[], time);
    };
    let chain = chain.iter().map(Certificate::der);
    let chain = chain.collect::<Result<Vec<_>, _>>()?;
    // Intermediates come with the certificate: only the root is trusted.
    let Some((root, intermediates)) = chain.split_last() else {
        return verify(&cert, &[], &[], time);
    };
    let root = webpki::anchor_from_trusted_cert(root).map_err(|error| not_a_certificate(&error))?;
    verify(&cert, &[root], intermediates, time)
}

fn verify(
    cert: &CertificateDer<'_>,
    roots: &[TrustAnchor<'_>],
    intermediates: &[CertificateDer<'_>],
    time: UnixTime,
) -> Result<Option<String>, String> {
    let entity = EndEntityCert::try_from(cert).map_err(|error| not_a_certificate(&error))?;
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    let verified =
        entity.verify_for_usage(algorithms, roots, intermediates, time, AnyUse, None, None);
    Ok(verified.err().map(|error| reason(&error)))
}

/// The messages that existing policies expect.
fn reason(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CertExpired { .. } => {
            "Certificate is being used after its expiration date".to_owned()
        }
        webpki::Error::CertNotValidYet { .. } => {
            "Certificate is being used before its validity date".to_owned()
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            "Certificate is not trusted by the provided cert chain".to_owned()
        }
        error => format!("Certificate not trusted: {error}"),
    }
}

fn read_time(text: &str) -> Result<UnixTime, String> {
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|error| format!("not_after must be a time as in RFC 3339: {error}"))?;
    let seconds = u64::try_from(time.as_second()).unwrap_or_default();
    Ok(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

fn now() -> UnixTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(now.unwrap_or_default())
}

/// Loaded once. If they can't be loaded, nothing is trusted.
fn system_roots() -> &'static [TrustAnchor<'static>] {
    static ROOTS: OnceLock<Vec<TrustAnchor<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "failed to load a certificate authority of the system");
        }
        let anchors = found.certs.iter().filter_map(|cert| {
            let anchor = webpki::anchor_from_trusted_cert(cert).ok()?;
            Some(anchor.to_owned())
        });
        anchors.collect()
    })
}

fn not_a_certificate(error: &dyn std::fmt::Display) -> String {
    format!("failed to read the certificate: {error}")
}

// === impl AnyUse ===

impl ExtendedKeyUsageValidator for AnyUse {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

// === impl Certificate ===

impl Certificate {
    fn der(&self) -> Result<CertificateDer<'_>, String> {
        match self.encoding {
            Encoding::Der => Ok(CertificateDer::from(self.data.as_slice())),
            Encoding::Pem => CertificateDer::from_pem_slice(&self.data)
                .map_err(|error| not_a_certificate(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Pki {
        root: rcgen::Certificate,
        middle: rcgen::Certificate,
        leaf: rcgen::Certificate,
    }

    fn authority() -> (rcgen::CertificateParams, rcgen::KeyPair) {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        (params, rcgen::KeyPair::generate().unwrap())
    }

    fn pki() -> Pki {
        let (mut root, root_key) = authority();
        root.distinguished_name
            .push(rcgen::DnType::CommonName, "root");
        let (mut middle, middle_key) = authority();
        middle
            .distinguished_name
            .push(rcgen::DnType::CommonName, "middle");
        let root_issuer = rcgen::Issuer::from_params(&root, &root_key);
        let middle_issuer = rcgen::Issuer::from_params(&middle, &middle_key);
        let mut leaf = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        leaf.not_before = rcgen::date_time_ymd(2020, 1, 1);
        leaf.not_after = rcgen::date_time_ymd(2100, 1, 1);
        leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
        let leaf_key = rcgen::KeyPair::generate().unwrap();
        Pki {
            leaf: leaf.signed_by(&leaf_key, &middle_issuer).unwrap(),
            middle: middle.signed_by(&middle_key, &root_issuer).unwrap(),
            root: root.self_signed(&root_key).unwrap(),
        }
    }

    fn pem(cert: &rcgen::Certificate) -> serde_json::Value {
        serde_json::json!({"encoding": "Pem", "data": cert.pem().into_bytes()})
    }

    fn der(cert: &rcgen::Certificate) -> serde_json::Value {
        serde_json::json!({"encoding": "Der", "data": cert.der().to_vec()})
    }

    fn ask(
        cert: serde_json::Value,
        chain: Option<&[&rcgen::Certificate]>,
        not_after: Option<&str>,
    ) -> Result<String, String> {
        let chain: Option<Vec<_>> = chain.map(|chain| chain.iter().map(|cert| pem(cert)).collect());
        let request =
            serde_json::json!({"cert": cert, "cert_chain": chain, "not_after": not_after});
        is_trusted(request.to_string().as_bytes()).map(|reply| String::from_utf8(reply).unwrap())
    }

    #[track_caller]
    fn check_refused(reply: Result<String, String>, expect: &str) {
        let expect = format!(r#"{{"trusted":false,"reason":"Certificate is {expect}"}}"#);
        assert_eq!(reply.unwrap(), expect);
    }

    const TRUSTED: &str = r#"{"trusted":true,"reason":""}"#;
    const BY_CHAIN: &str = "not trusted by the provided cert chain";

    #[test]
    fn a_chain_leads_to_its_root() {
        let (own, other) = (pki(), pki());
        for cert in [der(&own.leaf), pem(&own.leaf)] {
            let chain = [&own.middle, &own.root];
            assert_eq!(ask(cert, Some(&chain), None).unwrap(), TRUSTED);
        }
        for chain in [
            [&own.middle, &other.root],
            [&other.middle, &own.root],
            [&own.root, &other.root],
        ] {
            check_refused(ask(der(&own.leaf), Some(&chain), None), BY_CHAIN);
        }
        let only = [&own.middle];
        assert_eq!(ask(der(&own.leaf), Some(&only), None).unwrap(), TRUSTED);
    }

    #[test]
    fn without_a_chain_the_systems_authorities_decide() {
        let own = pki();
        check_refused(ask(der(&own.leaf), None, None), BY_CHAIN);
        check_refused(ask(der(&own.leaf), Some(&[]), None), BY_CHAIN);
    }

    #[test]
    fn validity_is_checked_at_the_time_that_is_given() {
        let own = pki();
        let at = |time| {
            let chain = [&own.middle, &own.root];
            ask(der(&own.leaf), Some(&chain), Some(time))
        };
        assert_eq!(at("2099-01-01T00:00:00Z").unwrap(), TRUSTED);
        assert_eq!(at("2021-01-01T00:00:00+02:00").unwrap(), TRUSTED);
        check_refused(
            at("2101-01-01T00:00:00Z"),
            "being used after its expiration date",
        );
        check_refused(
            at("2019-01-01T00:00:00Z"),
            "being used before its validity date",
        );
        assert!(at("tomorrow").is_err());
    }

    #[test]
    fn an_invalid_certificate_is_an_error() {
        let own = pki();
        let garbage = serde_json::json!({"encoding": "Der", "data": [1, 2, 3]});
        assert!(ask(garbage.clone(), Some(&[&own.root]), None).is_err());
        assert!(ask(garbage, None, None).is_err());
        let garbage = serde_json::json!({"encoding": "Pem", "data": [1]});
        assert!(ask(garbage, None, None).is_err());
        assert!(is_trusted(b"{}").is_err());
    }
}
