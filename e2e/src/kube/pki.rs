//! The certificates and keys of a cluster.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Signs what the parts of a cluster know each other by.
struct Authority<'a> {
    dir: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

/// Writes `ca.pem`, a certificate and a key for each part (`apiserver`, `admin`,
/// `controllers`), and the key pair of service account tokens (`accounts.key`, `accounts.pub`).
pub(super) fn write(dir: &Path) {
    let authority = Authority::new(dir);
    authority.server("apiserver");
    authority.client("admin", "admin");
    authority.client("controllers", "system:kube-controller-manager");
    let accounts = new_key();
    write_file(dir, "accounts.key", &accounts.serialize_pem());
    write_file(dir, "accounts.pub", &accounts.public_key_pem());
}

// === impl Authority ===

impl<'a> Authority<'a> {
    fn new(dir: &'a Path) -> Self {
        let key = new_key();
        let mut params = named("cluster", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params
            .self_signed(&key)
            .expect("certificate must be signed");
        write_file(dir, "ca.pem", &certificate.pem());
        Self {
            dir,
            issuer: Issuer::new(params, key),
        }
    }

    fn server(&self, name: &str) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names must be valid");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params);
    }

    /// Everything is allowed to all of them: what is tested is Assent's rights.
    fn client(&self, name: &str, user: &str) {
        let mut params = named(user, Some("system:masters"));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, params);
    }

    fn sign(&self, name: &str, mut params: CertificateParams) {
        let key = new_key();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("certificate must be signed");
        write_file(self.dir, &format!("{name}.pem"), &certificate.pem());
        write_file(self.dir, &format!("{name}.key"), &key.serialize_pem());
    }
}

fn named(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, group);
    }
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("key must be made")
}

fn write_file(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).expect("file must be written");
}
