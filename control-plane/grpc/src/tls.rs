//! TLS of the discovery endpoint. Certificates can be replaced without a restart.

use std::{io, path::Path, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;

/// A TLS configuration that new connections use from the moment it is replaced.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ArcSwap<ServerConfig>>);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is not PEM.
    #[error("failed to read PEM: {0}")]
    Pem(String),
    /// The key does not belong to the certificate.
    #[error("failed to use the certificate with its key: {0}")]
    Pair(#[from] rustls::Error),
}

// === impl Tls ===

impl Tls {
    /// Starts with this configuration. HTTP/2 is always offered by ALPN.
    pub fn new(config: ServerConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(with_http2(config))))
    }

    /// Reads a certificate chain and its key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        Ok(Self::new(server_config(chain, key)?))
    }

    /// Reads a certificate chain and its key from files.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Self, Error> {
        Self::from_pem(&read(chain)?, &read(key)?)
    }

    /// Uses another configuration for new connections.
    pub fn replace(&self, config: ServerConfig) {
        self.0.store(Arc::new(with_http2(config)));
    }

    /// Uses another certificate for new connections.
    pub fn replace_pem(&self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        self.replace(server_config(chain, key)?);
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.load_full())
    }
}

fn server_config(chain: &[u8], key: &[u8]) -> Result<ServerConfig, Error> {
    let pem = |error: rustls::pki_types::pem::Error| Error::Pem(error.to_string());
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(key).map_err(pem)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder
        .with_no_client_auth()
        .with_single_cert(chain.map_err(pem)?, key)?)
}

fn with_http2(mut config: ServerConfig) -> ServerConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Read {
        path: path.display().to_string(),
        source,
    })
}
