//! The certificate authority of a control plane outside of a cluster: kept in a directory, or in
//! memory.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use assent_pki::{Authority, CaPair, LEAF_LIFETIME, generate_ca};

use super::{Error as SignError, Signed, Signer, Subject};

#[cfg(test)]
mod tests;

/// It is not rotated: removing its files makes another one.
const CA_LIFETIME: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

const CERT_FILE: &str = "ca.crt";
const KEY_FILE: &str = "ca.key";

/// An authority that signs for every caller that the service has authenticated.
#[derive(Debug)]
pub struct SelfSignedCa {
    authority: Authority,
    names: Vec<String>,
}

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read or written.
    #[error("failed to keep the certificate authority in {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its key or certificate is not valid.
    #[error("{0}; remove {CERT_FILE} and {KEY_FILE} to create a new one")]
    Broken(#[from] assent_pki::Error),
}

// === impl SelfSignedCa ===

impl SelfSignedCa {
    /// An authority that ends with the process. Leaves get `names` and the caller's address.
    pub fn in_memory(names: Vec<String>) -> Result<Self, Error> {
        let pair = generate_ca(SystemTime::now(), CA_LIFETIME)?;
        Self::new(&pair, names)
    }

    /// The authority that is kept in `dir`; it is created if there is none.
    pub fn open(dir: &Path, names: Vec<String>) -> Result<Self, Error> {
        let (cert, key) = (dir.join(CERT_FILE), dir.join(KEY_FILE));
        if key.exists() && cert.exists() {
            let pair = CaPair {
                certificate: read(&cert)?,
                key: read(&key)?,
            };
            return Self::new(&pair, names);
        }
        let pair = generate_ca(SystemTime::now(), CA_LIFETIME)?;
        fs::create_dir_all(dir).map_err(at(dir))?;
        // The certificate last: without it the key is replaced.
        write_private(&key, &pair.key)?;
        write_private(&cert, &pair.certificate)?;
        Self::new(&pair, names)
    }

    /// PEM: the certificate that clients trust.
    pub fn certificate_pem(&self) -> &str {
        self.authority.bundle_pem()
    }

    /// A serving certificate for the key of a request; the request's own names are ignored.
    pub fn issue(
        &self,
        csr_der: &[u8],
        names: &[String],
        address: Option<IpAddr>,
    ) -> Result<Signed, SignError> {
        let signed = self.authority.sign_csr(csr_der, names, address.as_slice());
        let signed = signed.map_err(failed)?;
        Ok(Signed {
            chain_pem: signed.chain_pem,
            ca_bundle_pem: signed.bundle_pem,
            not_after: signed.not_after,
            renew_at: signed.renew_at,
        })
    }

    /// A serving certificate with a new key: chain and key as PEM. For the control plane's own
    /// endpoints.
    pub fn issue_pair(
        &self,
        names: &[String],
        address: Option<IpAddr>,
    ) -> Result<(Signed, String), SignError> {
        let leaf = self.authority.serving_leaf(names, address.as_slice());
        let leaf = leaf.map_err(failed)?;
        let signed = Signed {
            chain_pem: leaf.chain_pem,
            ca_bundle_pem: self.certificate_pem().to_owned(),
            not_after: leaf.not_after,
            renew_at: leaf.renew_at,
        };
        Ok((signed, leaf.key_pem))
    }

    fn new(pair: &CaPair, names: Vec<String>) -> Result<Self, Error> {
        let authority = Authority::from_pair(pair, LEAF_LIFETIME)?;
        Ok(Self { authority, names })
    }
}

#[tonic::async_trait]
impl Signer for SelfSignedCa {
    async fn sign(&self, csr_der: &[u8], subject: &Subject) -> Result<Signed, SignError> {
        self.issue(csr_der, &self.names, subject.peer)
    }
}

fn failed(error: assent_pki::Error) -> SignError {
    match error {
        assent_pki::Error::Request(why) => SignError::Request(why),
        other => SignError::Sign(other.to_string()),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(at(path))
}

/// Writes a temporary file and renames it, so that a crash leaves no partial file.
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
