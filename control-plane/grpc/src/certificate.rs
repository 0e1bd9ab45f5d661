//! `CertificateService`: serving certificates for evaluators.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use assent_core::policy::is_dns_subdomain;
use assent_proto::v1::{self, certificate_service_server};
use tonic::{Request, Response, Status};

use crate::{
    auth::{Access, Authenticator, Gate},
    from_proto,
    hub::Hub,
    to_proto::timestamp,
};

mod ca;

pub use assent_proto::v1::certificate_service_server::CertificateServiceServer;
pub use ca::{Error as CaError, SelfSignedCa};

/// A request for a P-256 key has a few hundred bytes; one for a large RSA key a few thousand.
const MAX_CSR_BYTES: usize = 16 << 10;

/// Signs certificate requests.
#[tonic::async_trait]
pub trait Signer: Send + Sync + 'static {
    /// A certificate for the key of `csr_der`, with the names that `subject` may have; names
    /// in the request are ignored.
    async fn sign(&self, csr_der: &[u8], subject: &Subject) -> Result<Signed, Error>;
}

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The replica.
    pub replica: String,
    /// Its PolicyServer.
    pub server: String,
    /// The addresses that its credential proves.
    pub addresses: Vec<IpAddr>,
    /// The address of its connection, which may be that of a proxy or of its node.
    pub peer: Option<IpAddr>,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// PEM: the leaf first, then its issuers.
    pub chain_pem: String,
    /// PEM: the certificates that clients trust.
    pub ca_bundle_pem: String,
    /// When it expires.
    pub not_after: SystemTime,
    /// When to request the next one.
    pub renew_at: SystemTime,
}

/// Why nothing was signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request is not valid.
    #[error("failed to read the certificate request: {0}")]
    Request(String),
    /// The caller may not have a certificate.
    #[error("no certificate for this caller: {0}")]
    Forbidden(String),
    /// The content of the certificate is not known yet.
    #[error("no certificate yet: {0}; retry")]
    Unavailable(String),
    /// The control plane failed.
    #[error("failed to sign: {0}")]
    Sign(String),
}

/// The service.
#[derive(Clone)]
pub struct Certificates {
    hub: Hub,
    gate: Gate,
    signer: Arc<dyn Signer>,
}

// === impl Certificates ===

impl Certificates {
    /// Signs with `signer` for callers known to `authenticator`.
    pub fn new(
        hub: Hub,
        authenticator: Arc<dyn Authenticator>,
        signer: Arc<dyn Signer>,
    ) -> CertificateServiceServer<Self> {
        CertificateServiceServer::new(Self {
            hub,
            gate: Gate::new(authenticator),
            signer,
        })
    }
}

#[tonic::async_trait]
impl certificate_service_server::CertificateService for Certificates {
    async fn sign_certificate(
        &self,
        request: Request<v1::SignCertificateRequest>,
    ) -> Result<Response<v1::SignCertificateResponse>, Status> {
        self.hub.check_serving()?;
        let caller = self.gate.admit_request(&request, Access::Stream).await?;
        let request = request.into_inner();
        if !is_dns_subdomain(&request.id) {
            return Err(Status::invalid_argument(
                from_proto::Error::BadId.to_string(),
            ));
        }
        let server = from_proto::server_or_default(request.policy_server);
        caller.principal.check(&request.id, &server)?;
        if request.csr_der.len() > MAX_CSR_BYTES {
            let text = format!("`csr_der` has more than {MAX_CSR_BYTES} bytes");
            return Err(Status::invalid_argument(text));
        }
        let subject = Subject {
            replica: request.id,
            server,
            addresses: caller.principal.addresses().to_vec(),
            peer: caller.peer.map(|peer| peer.address().ip().to_canonical()),
        };
        let signed = self.signer.sign(&request.csr_der, &subject).await?;
        Ok(Response::new(v1::SignCertificateResponse {
            certificate_chain_pem: signed.chain_pem,
            ca_bundle_pem: signed.ca_bundle_pem,
            not_after: Some(timestamp(signed.not_after)),
            renew_at: Some(timestamp(signed.renew_at)),
        }))
    }
}

// === impl Error ===

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Request(_) => Status::invalid_argument(text),
            Error::Forbidden(_) => Status::permission_denied(text),
            Error::Unavailable(_) => Status::unavailable(text),
            Error::Sign(_) => Status::internal(text),
        }
    }
}
