//! A certificate for this machine, for as long as the run lasts.

use std::{fs, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tempfile::TempDir;

/// Files for servers and trust for clients.
pub(crate) struct Certificate {
    dir: TempDir,
    client: Arc<ClientConfig>,
}

/// The one name that it is for.
pub(crate) const NAME: &str = "localhost";

// === impl Certificate ===

impl Certificate {
    /// Makes one that signs itself.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("tls.crt"), made.cert.pem())?;
        fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            dir,
            client: Arc::new(client),
        })
    }

    /// The chain as PEM.
    pub(crate) fn chain(&self) -> PathBuf {
        self.dir.path().join("tls.crt")
    }

    /// The key as PEM.
    pub(crate) fn key(&self) -> PathBuf {
        self.dir.path().join("tls.key")
    }

    /// Trusts it and nothing else.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }
}
