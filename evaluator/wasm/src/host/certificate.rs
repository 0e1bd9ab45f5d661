//! Checks a certificate for a guest.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject as _};
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, KeyUsage};

/// Object identifiers of the uses that a certificate may be limited to, in DER: servers, clients, code,
/// mail, time stamps. The question is about trust, not use, so any of them will do.
const USES: [&[u8]; 5] = [
    &[43, 6, 1, 5, 5, 7, 3, 1],
    &[43, 6, 1, 5, 5, 7, 3, 2],
    &[43, 6, 1, 5, 5, 7, 3, 3],
    &[43, 6, 1, 5, 5, 7, 3, 4],
    &[43, 6, 1, 5, 5, 7, 3, 8],
];

#[derive(Deserialize)]
struct Request {
    cert: Certificate,
    #[serde(default)]
    cert_chain: Option<Vec<Certificate>>,
    /// RFC 3339: the certificate must not have expired by then.
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

/// Answers `crypto/v1/is_certificate_trusted`. What is no certificate is an error; one that is not trusted is
/// an answer.
pub(super) fn is_trusted(payload: &[u8]) -> Result<Vec<u8>, String> {
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
    if let Some(limit) = &request.not_after
        && expires_before(&cert, limit)?
    {
        return Ok(Some(
            "Certificate is being used after its expiration date".to_owned(),
        ));
    }
    let Some(chain) = &request.cert_chain else {
        return Ok(None);
    };
    let chain = chain
        .iter()
        .map(Certificate::der)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(verify(&cert, &chain)?.err())
}

fn expires_before(cert: &CertificateDer<'_>, limit: &str) -> Result<bool, String> {
    let limit: jiff::Timestamp = limit
        .parse()
        .map_err(|error| format!("not_after must be a time as in RFC 3339: {error}"))?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(cert).map_err(|error| not_a_certificate(&error))?;
    Ok(parsed.validity().not_after.timestamp() < limit.as_second())
}

/// Any certificate of the chain is an anchor: the guest says whom it trusts.
fn verify(
    cert: &CertificateDer<'_>,
    chain: &[CertificateDer<'_>],
) -> Result<Result<(), String>, String> {
    let anchors = chain
        .iter()
        .map(|cert| {
            webpki::anchor_from_trusted_cert(cert).map_err(|error| not_a_certificate(&error))
        })
        .collect::<Result<Vec<TrustAnchor<'_>>, _>>()?;
    let entity = EndEntityCert::try_from(cert).map_err(|error| not_a_certificate(&error))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let check = |usage: &'static [u8]| {
        let usage = KeyUsage::required_if_present(usage);
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        entity
            .verify_for_usage(
                algorithms,
                &anchors,
                chain,
                UnixTime::since_unix_epoch(now),
                usage,
                None,
                None,
            )
            .map(drop)
            .map_err(|error| format!("Certificate is not trusted: {error}"))
    };
    let mut outcome = Ok(());
    for usage in USES {
        outcome = check(usage);
        if outcome.is_ok() {
            break;
        }
    }
    Ok(outcome)
}

fn not_a_certificate(error: &dyn std::fmt::Display) -> String {
    format!("failed to read the certificate: {error}")
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
        ca: rcgen::Certificate,
        leaf: rcgen::Certificate,
    }

    fn pki() -> Pki {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::from_params(&params, &ca_key);
        let leaf_key = rcgen::KeyPair::generate().unwrap();
        let mut leaf = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        leaf.not_after = rcgen::date_time_ymd(2100, 1, 1);
        Pki {
            ca,
            leaf: leaf.signed_by(&leaf_key, &issuer).unwrap(),
        }
    }

    fn ask(
        cert: serde_json::Value,
        chain: Option<&rcgen::Certificate>,
        not_after: Option<&str>,
    ) -> Result<String, String> {
        let chain = chain.map(|cert| {
            vec![serde_json::json!({"encoding": "Pem", "data": cert.pem().into_bytes()})]
        });
        let request =
            serde_json::json!({"cert": cert, "cert_chain": chain, "not_after": not_after});
        is_trusted(request.to_string().as_bytes()).map(|reply| String::from_utf8(reply).unwrap())
    }

    fn der(cert: &rcgen::Certificate) -> serde_json::Value {
        serde_json::json!({"encoding": "Der", "data": cert.der().to_vec()})
    }

    #[test]
    fn a_certificate_of_the_chain_is_trusted() {
        let (own, other) = (pki(), pki());
        assert_eq!(
            ask(der(&own.leaf), Some(&own.ca), None).unwrap(),
            r#"{"trusted":true,"reason":""}"#
        );
        let reply = ask(der(&own.leaf), Some(&other.ca), None).unwrap();
        assert!(
            reply.starts_with(r#"{"trusted":false,"reason":"Certificate is not trusted"#),
            "{reply}"
        );
    }

    #[test]
    fn expiry_is_checked_when_asked_for() {
        let own = pki();
        assert!(
            ask(der(&own.leaf), None, Some("2099-01-01T00:00:00Z"))
                .unwrap()
                .contains("true")
        );
        assert!(
            ask(der(&own.leaf), None, Some("2101-01-01T00:00:00Z"))
                .unwrap()
                .contains("expiration")
        );
        assert!(ask(der(&own.leaf), None, Some("tomorrow")).is_err());
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let own = pki();
        let garbage = serde_json::json!({"encoding": "Der", "data": [1, 2, 3]});
        assert!(ask(garbage.clone(), Some(&own.ca), None).is_err());
        assert!(ask(garbage, None, Some("2099-01-01T00:00:00Z")).is_err());
        assert!(
            ask(
                serde_json::json!({"encoding": "Pem", "data": [1]}),
                None,
                None
            )
            .is_err()
        );
        assert!(is_trusted(b"{}").is_err());
    }
}
