//! TLS configurations for declared and undeclared hosts.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// Creates client configurations that share one cryptographic provider.
pub(crate) struct Trust {
    provider: Arc<CryptoProvider>,
    system: RootCertStore,
}

/// Accepts any certificate, for hosts that are declared insecure.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

// === impl Trust ===

impl Trust {
    /// Reads the system's authorities. Unreadable ones are left out: connections that need
    /// them fail with an error of their own.
    pub(crate) fn load() -> Self {
        let mut system = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "failed to load a system certificate authority");
        }
        system.add_parsable_certificates(found.certs);
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            system,
        }
    }

    /// Trusts the system's authorities.
    pub(crate) fn system(&self) -> Result<Arc<ClientConfig>, String> {
        self.rooted(self.system.clone())
    }

    /// Trusts those of a PEM bundle as well.
    pub(crate) fn with_bundle(&self, pem: &[u8]) -> Result<Arc<ClientConfig>, String> {
        let mut roots = self.system.clone();
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
            count += 1;
        }
        if count == 0 {
            return Err("it contains no certificate".to_owned());
        }
        self.rooted(roots)
    }

    /// Accepts any certificate.
    pub(crate) fn any_certificate(&self) -> Result<Arc<ClientConfig>, String> {
        let verifier = Arc::new(AnyCertificate(self.provider.clone()));
        let builder = self.builder()?.dangerous();
        let builder = builder.with_custom_certificate_verifier(verifier);
        Ok(negotiating(builder.with_no_client_auth()))
    }

    fn rooted(&self, roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
        let builder = self.builder()?.with_root_certificates(roots);
        Ok(negotiating(builder.with_no_client_auth()))
    }

    fn builder(
        &self,
    ) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
        ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())
    }
}

/// Offers HTTP/2 before HTTP/1.1.
fn negotiating(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

// === impl AnyCertificate ===

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
