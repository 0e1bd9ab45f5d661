//! Certificates of clients, and the evaluator as its own client.

use std::{path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use assent_core::Digest;
use assent_serve::Transport;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{Certificates, Error, provider};

/// Reads the authorities that sign certificates of clients.
pub(crate) fn roots(path: &Path) -> Result<(RootCertStore, Digest), Error> {
    let failed = |why: String| Error::ClientCa(format!("{}: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("there is no certificate in it".into()));
    }
    Ok((roots, Digest::of(&pem)))
}

/// Verifies the certificates of clients that have one. Others are refused when they ask for something, with a reason:
/// a handshake that fails has none.
pub(super) fn verifier(roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| Error::ClientCa(error.to_string()))
}

/// Polls the file of authorities. New connections are checked by its newest valid content.
pub(crate) async fn watch(
    path: std::path::PathBuf,
    certificates: Certificates,
    transport: Arc<ArcSwap<Transport>>,
    mut seen: Digest,
    every: Duration,
) {
    loop {
        tokio::time::sleep(every).await;
        let reloaded = roots(&path).and_then(|(roots, digest)| {
            if digest != seen {
                let config = certificates.server_config(Some(roots))?;
                transport.store(Arc::new(Transport::Tls(config)));
                tracing::info!(path = %path.display(), "authorities of clients reloaded");
                seen = digest;
            }
            Ok(())
        });
        if let Err(error) = reloaded {
            tracing::warn!(%error, "failed to reload the authorities of clients; the last ones stay");
        }
    }
}

/// Accepts the certificate that this evaluator serves with, and no other.
#[derive(Debug)]
struct OwnCertificate(Certificates);

// === impl Certificates ===

impl Certificates {
    /// For connections to the evaluator's own port.
    pub(crate) fn own_client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OwnCertificate(self.clone())))
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

// === impl OwnCertificate ===

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.0.is_leaf(end_entity) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
