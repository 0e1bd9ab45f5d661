//! A certificate authority of our own.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateSigningRequestDer;

use super::{Error as SignError, Signed, Signer, Subject};

#[cfg(test)]
mod tests;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Long enough to survive a long weekend without the control plane after half-life.
const LEAF_LIFE: Duration = DAY.saturating_mul(30);

const CA_LIFE: Duration = DAY.saturating_mul(3_650);

/// Clocks differ: a certificate is good from a little before it was made.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

const CERT_FILE: &str = "ca.crt";
const KEY_FILE: &str = "ca.key";

/// An ECDSA P-256 authority that signs for whoever the service let through.
#[derive(Debug)]
pub struct SelfSignedCa {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    names: Vec<String>,
}

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("failed to keep the certificate authority in {path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its key or certificate is broken.
    #[error(
        "failed to use the certificate authority: {0}; remove {CERT_FILE} and {KEY_FILE} to make a new one"
    )]
    Broken(#[from] rcgen::Error),
}

// === impl SelfSignedCa ===

impl SelfSignedCa {
    /// An authority that ends with the process. Leaves get `names` and the caller's address.
    pub fn in_memory(names: Vec<String>) -> Result<Self, Error> {
        let (certificate_pem, key) = generate()?;
        Self::new(certificate_pem, key, names)
    }

    /// The authority that is kept in `dir`, made where there is none.
    pub fn open(dir: &Path, names: Vec<String>) -> Result<Self, Error> {
        let (cert, key) = (dir.join(CERT_FILE), dir.join(KEY_FILE));
        if key.exists() && cert.exists() {
            let key = KeyPair::from_pem(&read(&key)?)?;
            return Self::new(read(&cert)?, key, names);
        }
        let (certificate_pem, pair) = generate()?;
        fs::create_dir_all(dir).map_err(at(dir))?;
        // The certificate last: without it the key is made anew.
        write_private(&key, &pair.serialize_pem())?;
        write_private(&cert, &certificate_pem)?;
        Self::new(certificate_pem, pair, names)
    }

    /// PEM: whom to trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A serving certificate for the key of a request; the request's own names are ignored.
    pub fn issue(
        &self,
        csr_der: &[u8],
        names: &[String],
        address: Option<IpAddr>,
    ) -> Result<Signed, SignError> {
        let csr = CertificateSigningRequestDer::from(csr_der);
        let mut request = CertificateSigningRequestParams::from_der(&csr)
            .map_err(|error| SignError::Request(error.to_string()))?;
        let now = SystemTime::now();
        request.params = leaf(names, address, now).map_err(failed)?;
        let leaf = request.signed_by(&self.issuer).map_err(failed)?;
        Ok(self.signed(&leaf.pem(), now))
    }

    /// A serving certificate with a new key: chain and key as PEM. For our own endpoints.
    pub fn issue_pair(
        &self,
        names: &[String],
        address: Option<IpAddr>,
    ) -> Result<(Signed, String), SignError> {
        let now = SystemTime::now();
        let key = KeyPair::generate().map_err(failed)?;
        let params = leaf(names, address, now).map_err(failed)?;
        let leaf = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok((self.signed(&leaf.pem(), now), key.serialize_pem()))
    }

    fn new(certificate_pem: String, key: KeyPair, names: Vec<String>) -> Result<Self, Error> {
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&certificate_pem, key)?,
            certificate_pem,
            names,
        })
    }

    fn signed(&self, leaf_pem: &str, now: SystemTime) -> Signed {
        Signed {
            chain_pem: format!("{leaf_pem}{}", self.certificate_pem),
            ca_bundle_pem: self.certificate_pem.clone(),
            not_after: now + LEAF_LIFE,
            renew_at: now + LEAF_LIFE / 2,
        }
    }
}

#[tonic::async_trait]
impl Signer for SelfSignedCa {
    async fn sign(&self, csr_der: &[u8], subject: &Subject) -> Result<Signed, SignError> {
        self.issue(csr_der, &self.names, subject.address)
    }
}

fn leaf(
    names: &[String],
    address: Option<IpAddr>,
    now: SystemTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params
        .subject_alt_names
        .extend(address.map(SanType::IpAddress));
    params.distinguished_name = common_name("assent-evaluator");
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + LEAF_LIFE).into();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn generate() -> Result<(String, KeyPair), rcgen::Error> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("assent-ca");
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + CA_LIFE).into();
    // It signs leaves and nothing that signs again.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params.self_signed(&key)?.pem(), key))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn failed(error: rcgen::Error) -> SignError {
    SignError::Sign(error.to_string())
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(at(path))
}

/// Written aside and renamed, so that a crash leaves no half of it.
fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let aside = path.with_extension("tmp");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&aside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)
    });
    written.map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::File { path, source }
}
