//! Certificates for tests.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Writes `ca.pem`, `tls.pem` and `tls.key` for the loopback interface into a directory.
pub fn write_certificates(dir: &Path) {
    let ca_key = KeyPair::generate().expect("key must be made");
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).expect("certificate must be signed");
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("key must be made");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let leaf = CertificateParams::new(names).expect("names must be valid");
    let leaf = leaf
        .signed_by(&key, &issuer)
        .expect("certificate must be signed");
    let write = |name: &str, text: String| {
        fs::write(dir.join(name), text).expect("file must be written");
    };
    write("ca.pem", ca_certificate.pem());
    write("tls.pem", leaf.pem());
    write("tls.key", key.serialize_pem());
}
