//! Certificates from the control plane: the key is made here and never leaves.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use assent_proto::v1::{
    SignCertificateRequest, certificate_service_client::CertificateServiceClient,
};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tonic::Code;

use super::{Certificates, ServingCertificate};
use crate::{client::Connector, store::Store, sync::backoff::Backoff, sync::backoff::Ended};

/// Keeps a certificate from the control plane up to date.
pub(crate) struct Renewer {
    pub(crate) connector: Connector,
    pub(crate) id: String,
    pub(crate) policy_server: String,
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) certificates: Certificates,
    /// How often the certificate is compared with the bundle.
    pub(crate) poll: Duration,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SignOutcome {
    Signed,
    /// This control plane signs no certificates.
    Unsupported,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Connect(#[from] crate::client::Error),
    #[error("failed to make a key or a request: {0}")]
    Make(#[from] rcgen::Error),
    #[error("failed to have the certificate signed: {}", .0.message())]
    Sign(Box<tonic::Status>),
    #[error("the signed certificate does not lead to the authorities in the file of --ca")]
    Untrusted,
    #[error("failed to use the signed certificate: {0}")]
    Use(#[from] super::Error),
}

const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Signing takes milliseconds, unless there is no leader.
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Renewer ===

impl Renewer {
    /// Uses the certificate that the last process saved, if it is still valid.
    pub(crate) fn restore(&self) -> Option<SystemTime> {
        let store = self.store.as_ref()?;
        let certificate =
            ServingCertificate::from_pem(&store.read(CHAIN)?, &store.read(KEY)?).ok()?;
        let renew_at = certificate.renew_at();
        certificate
            .is_valid(SystemTime::now())
            .then(|| self.certificates.install(certificate))?;
        Some(renew_at)
    }

    /// Renews until the control plane reports that it signs no certificates.
    pub(crate) async fn run(self) {
        let mut due = self.restore();
        let mut backoff = Backoff::default();
        // Whether a certificate that does not lead to the bundle is a reason to ask for another one.
        let mut compare = true;
        loop {
            self.wait(due, compare).await;
            let error = match self.request().await {
                Ok((SignOutcome::Unsupported, _)) => return,
                Ok((SignOutcome::Signed, renew_at)) if self.is_trusted() => {
                    backoff = Backoff::default();
                    (due, compare) = (renew_at, true);
                    continue;
                }
                Ok((SignOutcome::Signed, _)) => Error::Untrusted,
                Err(error) => error,
            };
            tracing::warn!(%error, "failed to get a serving certificate; retrying");
            let wait = backoff.after(Ended::Failed, rand::random());
            // A floor, because a refusal may come at once.
            due = Some(SystemTime::now() + wait.max(Duration::from_millis(250)));
            compare = false;
        }
    }

    /// Waits until a certificate is due, or until the authorities change so that API servers no longer trust the one
    /// in use.
    async fn wait(&self, due: Option<SystemTime>, compare: bool) {
        loop {
            let left = due.and_then(|due| due.duration_since(SystemTime::now()).ok());
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return;
            };
            if compare && !self.is_trusted() {
                tracing::info!("the authority has changed; asking for another serving certificate");
                return;
            }
            tokio::time::sleep(left.min(self.poll)).await;
        }
    }

    /// Whether the certificate in use leads to the control plane's bundle, by which webhooks are configured, too. A
    /// bundle that can't be read says nothing.
    fn is_trusted(&self) -> bool {
        match self.connector.authorities() {
            Ok(Some(bundle)) => self.certificates.leads_to(&bundle),
            _ => true,
        }
    }

    /// One key, one request, one certificate.
    pub(crate) async fn request(&self) -> Result<(SignOutcome, Option<SystemTime>), Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let request = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
        let request = SignCertificateRequest {
            id: self.id.clone(),
            policy_server: self.policy_server.clone(),
            csr_der: request.der().to_vec(),
        };
        let chain = match self.sign(request).await {
            Ok(chain) => chain,
            Err(Error::Sign(status)) if status.code() == Code::Unimplemented => {
                return Ok((SignOutcome::Unsupported, None));
            }
            Err(error) => return Err(error),
        };
        let key = key.serialize_pem();
        let certificate = ServingCertificate::from_pem(chain.as_bytes(), key.as_bytes())?;
        let renew_at = certificate.renew_at();
        self.certificates.install(certificate);
        self.keep(&chain, &key);
        tracing::info!("serving certificate signed");
        Ok((SignOutcome::Signed, Some(renew_at)))
    }

    async fn sign(&self, request: SignCertificateRequest) -> Result<String, Error> {
        let mut leader = None;
        loop {
            let connection = self.connector.connect(leader.as_deref()).await?;
            let mut client = CertificateServiceClient::new(connection);
            let call =
                tokio::time::timeout(SIGN_TIMEOUT, client.sign_certificate(request.clone())).await;
            let silent = |_| tonic::Status::deadline_exceeded("no answer");
            match call.map_err(silent).and_then(|answer| answer) {
                Ok(answer) => return Ok(answer.into_inner().certificate_chain_pem),
                Err(status) => match crate::sync::leader_of(&status) {
                    Some(next) if leader.is_none() => leader = Some(next),
                    _ => return Err(Error::Sign(Box::new(status))),
                },
            }
        }
    }

    fn keep(&self, chain: &str, key: &str) {
        let Some(store) = &self.store else {
            return;
        };
        // The key first: a chain without its key is not taken at start.
        let kept = store
            .write(KEY, key.as_bytes())
            .and_then(|()| store.write(CHAIN, chain.as_bytes()));
        if let Err(error) = kept {
            tracing::warn!(%error, "failed to save the certificate; a restart will request a new one");
        }
    }
}
