#![allow(clippy::unwrap_used)]
use rcgen::{CertificateParams, KeyPair};

use super::*;

fn pair(valid: std::ops::Range<i32>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(valid.start, 1, 1);
    params.not_after = rcgen::date_time_ymd(valid.end, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_certificate_is_valid_only_within_its_validity() {
    for (valid, is) in [(2000..2001, false), (2020..4000, true), (3000..3001, false)] {
        let (chain, key) = pair(valid.clone());
        let certificates = Certificates::default();
        assert!(!certificates.is_valid());
        certificates
            .install(ServingCertificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());
        assert_eq!(certificates.is_valid(), is, "{valid:?}");
    }
}

#[test]
fn the_expiry_of_the_certificate_in_use_is_reported() {
    let expiry = Family::<CertificateLabels, Gauge>::default();
    let certificates = Certificates::new(expiry.clone());
    let labels = CertificateLabels {
        certificate: "serving",
    };
    assert!(expiry.get(&labels).is_none());
    let (chain, key) = pair(2020..2021);
    certificates.install(ServingCertificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap());
    assert_eq!(expiry.get(&labels).unwrap().get(), 1_609_459_200);
}

#[test]
fn renewal_is_at_half_life() {
    let (chain, key) = pair(2020..2022);
    let certificate = ServingCertificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    let half = certificate
        .renew_at()
        .duration_since(certificate.not_before)
        .unwrap();
    assert_eq!(half, day * (366 + 365) / 2);
}

#[test]
fn a_key_must_belong_to_its_certificate() {
    let ((chain, _), (_, key)) = (pair(2020..4000), pair(2020..4000));
    assert!(ServingCertificate::from_pem(chain.as_bytes(), key.as_bytes()).is_err());
    assert!(ServingCertificate::from_pem(b"", key.as_bytes()).is_err());
    assert!(ServingCertificate::from_pem(chain.as_bytes(), b"").is_err());
}

/// An authority and a leaf that it signed, as a chain with its key.
fn signed(name: &str) -> (String, ServingCertificate) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let authority = rcgen::CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
    let authority = authority.unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &authority).unwrap();
    let key = key.serialize_pem();
    let leaf = ServingCertificate::from_pem(leaf.pem().as_bytes(), key.as_bytes()).unwrap();
    (authority.pem(), leaf)
}

#[test]
fn a_certificate_is_compared_with_the_authorities() {
    let (own, leaf) = signed("assent");
    // The same name with another key, as after a rotation.
    let (next, _) = signed("assent");
    let (other, _) = signed("other");
    let certificates = Certificates::default();
    assert!(certificates.leads_to(next.as_bytes()));
    certificates.install(leaf);
    assert!(certificates.leads_to(own.as_bytes()));
    assert!(certificates.leads_to(format!("{next}{own}").as_bytes()));
    assert!(!certificates.leads_to(next.as_bytes()));
    assert!(!certificates.leads_to(other.as_bytes()));
    assert!(!certificates.leads_to(format!("{next}{other}").as_bytes()));
    // Nothing can be said by a file that is being written.
    assert!(certificates.leads_to(b""));
}
