//! Trust in the servers that modules come from.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// Makes client configurations that share one cryptographic provider.
pub(super) struct Trust {
    provider: Arc<CryptoProvider>,
    system: RootCertStore,
}

/// For hosts that were declared insecure: any certificate will do.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

// === impl Trust ===

impl Trust {
    /// Reads the system's authorities. One that can't be read is left out: what needs
    /// it fails with a message of its own.
    pub(super) fn load() -> Self {
        let mut system = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "failed to load a certificate authority of the system");
        }
        system.add_parsable_certificates(found.certs);
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            system,
        }
    }

    /// Trusts the system's authorities.
    pub(super) fn system(&self) -> Result<Arc<ClientConfig>, String> {
        self.rooted(self.system.clone())
    }

    /// Trusts those of a PEM bundle, too.
    pub(super) fn with_bundle(&self, pem: &[u8]) -> Result<Arc<ClientConfig>, String> {
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

    /// Trusts anybody.
    pub(super) fn anybody(&self) -> Result<Arc<ClientConfig>, String> {
        let verifier = Arc::new(AnyCertificate(self.provider.clone()));
        let builder = self.builder()?.dangerous();
        Ok(Arc::new(
            builder
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth(),
        ))
    }

    fn rooted(&self, roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
        let builder = self.builder()?.with_root_certificates(roots);
        Ok(Arc::new(builder.with_no_client_auth()))
    }

    fn builder(
        &self,
    ) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
        ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())
    }
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
