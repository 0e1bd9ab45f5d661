//! The certificate of the review port, replaced while connections are served.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwapOption;
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::metrics::CertificateLabels;

pub(crate) mod client;
pub(crate) mod csr;
pub(crate) mod files;
#[cfg(test)]
mod tests;

/// The certificate in use. Cheap to clone; clones see the same one.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    certificate: Arc<ArcSwapOption<ServingCertificate>>,
    expiry: Family<CertificateLabels, Gauge>,
}

/// A chain with its key and the time in which it is valid.
pub(crate) struct ServingCertificate {
    key: Arc<CertifiedKey>,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to read the certificate: {0}")]
    Certificate(String),
    #[error("failed to read the private key: {0}")]
    Key(String),
    #[error("failed to use the certificate: {0}")]
    Unusable(String),
    #[error("failed to use the authorities of clients: {0}")]
    ClientCa(String),
    #[error("failed to set up TLS: {0}")]
    Setup(#[from] rustls::Error),
}

// === impl Certificates ===

impl Certificates {
    /// Without a certificate; `expiry` reports when the one in use expires.
    pub(crate) fn new(expiry: Family<CertificateLabels, Gauge>) -> Self {
        Self {
            expiry,
            ..Self::default()
        }
    }

    pub(crate) fn install(&self, certificate: ServingCertificate) {
        let labels = CertificateLabels {
            certificate: "serving",
        };
        self.expiry
            .get_or_create(&labels)
            .set(seconds(certificate.not_after));
        self.certificate.store(Some(Arc::new(certificate)));
    }

    /// Whether there is a certificate that is valid now.
    pub(crate) fn is_valid(&self) -> bool {
        let now = SystemTime::now();
        self.certificate
            .load()
            .as_ref()
            .is_some_and(|certificate| certificate.is_valid(now))
    }

    /// Whether this is the certificate in use.
    pub(crate) fn is_leaf(&self, leaf: &CertificateDer<'_>) -> bool {
        let certificate = self.certificate.load();
        let own = certificate.as_ref().and_then(|own| own.key.cert.first());
        own.is_some_and(|own| own == leaf)
    }

    /// Whether the certificate in use was signed by one of the authorities in `bundle`, PEM. True without a certificate,
    /// and if the bundle has none: nothing can be said then.
    pub(crate) fn leads_to(&self, bundle: &[u8]) -> bool {
        let certificate = self.certificate.load();
        let Some([leaf, issuers @ ..]) = certificate.as_ref().map(|own| own.key.cert.as_slice())
        else {
            return true;
        };
        let roots: Vec<_> = CertificateDer::pem_slice_iter(bundle).flatten().collect();
        let anchors: Vec<_> = roots
            .iter()
            .filter_map(|root| webpki::anchor_from_trusted_cert(root).ok())
            .collect();
        let Ok(leaf) = webpki::EndEntityCert::try_from(leaf) else {
            return true;
        };
        let verified = leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            issuers,
            UnixTime::now(),
            webpki::KeyUsage::server_auth(),
            None,
            None,
        );
        let stranger = matches!(
            verified,
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey)
        );
        anchors.is_empty() || !stranger
    }

    /// TLS 1.2 and 1.3, HTTP/2 and 1.1.
    /// With `clients`, those who present a certificate are known by it.
    pub(crate) fn server_config(
        &self,
        clients: Option<RootCertStore>,
    ) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match clients {
            Some(roots) => builder.with_client_cert_verifier(client::verifier(roots)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate
            .load()
            .as_ref()
            .map(|certificate| certificate.key.clone())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

// === impl ServingCertificate ===

impl ServingCertificate {
    /// Reads PEM; the key must belong to the first certificate.
    pub(crate) fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let leaf = chain
            .first()
            .ok_or_else(|| Error::Certificate("there is none in the file".into()))?;
        let (not_before, not_after) = validity(leaf)?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| Error::Key(error.to_string()))?;
        let key = provider().key_provider.load_private_key(key)?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match()
            .map_err(|error| Error::Unusable(error.to_string()))?;
        Ok(Self {
            key: Arc::new(key),
            not_before,
            not_after,
        })
    }

    pub(crate) fn is_valid(&self, now: SystemTime) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Half of its lifetime: late enough to be cheap, early enough for many retries.
    pub(crate) fn renew_at(&self) -> SystemTime {
        let life = self
            .not_after
            .duration_since(self.not_before)
            .unwrap_or_default();
        self.not_before + life / 2
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn validity(leaf: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(leaf)
        .map_err(|error| Error::Certificate(error.to_string()))?;
    let validity = parsed.validity();
    let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Ok((
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    ))
}

/// Named, not taken from the process: an embedded evaluator sets nothing global.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
