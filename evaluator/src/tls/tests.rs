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
