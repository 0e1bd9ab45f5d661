#![allow(clippy::unwrap_used)]
use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::*;

fn mk_csr(names: &[&str]) -> Vec<u8> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::new(names)
        .unwrap()
        .serialize_request(&key)
        .unwrap();
    request.der().to_vec()
}

/// Whether who trusts the authority accepts the certificate for `name`.
fn accepts(signed: &Signed, name: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(signed.ca_bundle_pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
    let verifier = verifier.build().unwrap();
    let chain = CertificateDer::pem_slice_iter(signed.chain_pem.as_bytes());
    let chain: Vec<_> = chain.collect::<Result<_, _>>().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let now = UnixTime::now();
    verifier
        .verify_server_cert(&chain[0], &chain[1..], &name, &[], now)
        .is_ok()
}

#[test]
fn leaf_ignores_names_of_the_request() {
    let ca = SelfSignedCa::in_memory(vec!["policy-server.assent.svc".into()]).unwrap();
    let address = "10.0.0.7".parse().ok();
    let signed = ca
        .issue(&mk_csr(&["kubernetes.default.svc"]), &ca.names, address)
        .unwrap();
    assert!(accepts(&signed, "policy-server.assent.svc"));
    assert!(accepts(&signed, "10.0.0.7"));
    assert!(!accepts(&signed, "kubernetes.default.svc"));
    assert!(!accepts(&signed, "10.0.0.8"));
    assert!(signed.renew_at < signed.not_after);
}

#[test]
fn request_must_be_signed_by_its_key() {
    let ca = SelfSignedCa::in_memory(Vec::new()).unwrap();
    let mut csr = mk_csr(&[]);
    let last = csr.len() - 1;
    csr[last] ^= 1;
    for bad in [csr, Vec::new(), b"nonsense".to_vec()] {
        assert!(matches!(
            ca.issue(&bad, &[], None),
            Err(SignError::Request(_))
        ));
    }
}

#[test]
fn authority_is_stored_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let first = SelfSignedCa::open(dir.path(), Vec::new()).unwrap();
    let again = SelfSignedCa::open(dir.path(), vec!["a".into()]).unwrap();
    assert_eq!(first.certificate_pem(), again.certificate_pem());
    let mode = fs::metadata(dir.path().join(KEY_FILE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // What the second one signs is trusted by who trusts the first.
    let mut signed = again.issue(&mk_csr(&[]), &["a".into()], None).unwrap();
    signed.ca_bundle_pem = first.certificate_pem().to_owned();
    assert!(accepts(&signed, "a"));
    fs::write(dir.path().join(KEY_FILE), "nonsense").unwrap();
    assert!(matches!(
        SelfSignedCa::open(dir.path(), Vec::new()),
        Err(Error::Broken(_))
    ));
}
