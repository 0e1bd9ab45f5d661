#![allow(clippy::unwrap_used)]

use std::time::SystemTime;

use rcgen::{CertificateParams, KeyPair};

use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn mk_pair() -> CaPair {
    generate_ca(SystemTime::now(), YEAR).unwrap()
}

#[test]
fn authority_requires_its_own_key() {
    let (one, other) = (mk_pair(), mk_pair());
    assert!(Authority::from_pair(&one, LEAF_LIFETIME).is_ok());
    let mixed = CaPair {
        certificate: one.certificate.clone(),
        key: other.key,
    };
    let error = Authority::from_pair(&mixed, LEAF_LIFETIME).unwrap_err();
    assert!(error.to_string().contains("does not match"), "{error}");
    let leaf = Authority::from_pair(&one, LEAF_LIFETIME).unwrap();
    let leaf = leaf.serving_leaf(&["a".into()], &[]).unwrap();
    let no_ca = CaPair {
        certificate: leaf.chain_pem,
        key: leaf.key_pem,
    };
    let error = Authority::from_pair(&no_ca, LEAF_LIFETIME).unwrap_err();
    assert!(error.to_string().contains("not a CA"), "{error}");
}

#[test]
fn leaf_never_outlives_its_authority() {
    let pair = generate_ca(SystemTime::now(), LEAF_LIFETIME / 3).unwrap();
    let authority = Authority::from_pair(&pair, LEAF_LIFETIME).unwrap();
    let leaf = authority.serving_leaf(&["a".into()], &[]).unwrap();
    assert_eq!(leaf.not_after, authority.ends());
    assert!(leaf.renew_at < leaf.not_after);
}

#[test]
fn request_without_proof_is_refused() {
    let authority = Authority::from_pair(&mk_pair(), LEAF_LIFETIME).unwrap();
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::default().serialize_request(&key);
    let mut csr = request.unwrap().der().to_vec();
    assert!(authority.sign_csr(&csr, &["a".into()], &[]).is_ok());
    let last = csr.len() - 1;
    csr[last] ^= 1;
    for bad in [csr, Vec::new(), b"nonsense".to_vec()] {
        let error = authority.sign_csr(&bad, &["a".into()], &[]).unwrap_err();
        assert!(matches!(error, Error::Request(_)), "{error}");
    }
}
