//! How the review port is secured.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use assent_serve::Transport;
use tokio::task::JoinHandle;

use super::Error;
use crate::{
    client::Connector,
    config::{Timings, TlsFiles},
    readiness::Readiness,
    store::Store,
    tls::{self, Certificates, csr::Renewer},
};

/// What decides how the review port is secured.
pub(super) struct Security {
    pub(super) listen: SocketAddr,
    pub(super) certificates: Certificates,
    pub(super) files: Option<TlsFiles>,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) store: Option<Arc<Store>>,
    pub(super) connector: Connector,
    pub(super) id: String,
    pub(super) policy_server: String,
}

/// The protocol of the review port, which may change, and the scheme of its address.
type Secured = (Arc<ArcSwap<Transport>>, &'static str);

// === impl Security ===

impl Security {
    /// Certificate files if given, else a certificate from the control plane, else plain HTTP on the loopback
    /// interface.
    pub(super) fn set_up(
        mut self,
        readiness: &Arc<Readiness>,
        timings: Timings,
        tasks: &mut Vec<JoinHandle<()>>,
    ) -> Result<Secured, Error> {
        let failed = |error: tls::Error| Error::Tls(error.to_string());
        let certificates = self.certificates.clone();
        let every = timings.certificate_poll;
        if self.files.is_none() && !self.connector.is_tls() {
            return self.plain();
        }
        let clients = self.client_ca.as_deref().map(tls::client::roots);
        let (roots, seen) = clients.transpose().map_err(failed)?.unzip();
        let config = certificates.server_config(roots).map_err(failed)?;
        let transport = Arc::new(ArcSwap::from_pointee(Transport::Tls(config)));
        if let Some((path, seen)) = self.client_ca.clone().zip(seen) {
            let (certificates, transport) = (certificates.clone(), transport.clone());
            let watch = tls::client::watch(path, certificates, transport, seen, every);
            tasks.push(tokio::spawn(watch));
        }
        if let Some(files) = self.files.take() {
            certificates.install(tls::files::load(&files).map_err(failed)?);
            tasks.push(tokio::spawn(tls::files::watch(
                files,
                certificates.clone(),
                every,
            )));
        } else {
            let renew = self.renew(readiness.clone(), transport.clone(), timings);
            tasks.push(tokio::spawn(renew));
        }
        readiness.require(certificates);
        Ok((transport, "https"))
    }

    fn plain(&self) -> Result<Secured, Error> {
        if !self.listen.ip().is_loopback() {
            return Err(Error::Insecure(self.listen));
        }
        if self.client_ca.is_some() {
            return Err(Error::ClientCertificates(self.listen));
        }
        Ok((Arc::new(ArcSwap::from_pointee(Transport::Plain)), "http"))
    }

    /// Keeps a certificate from the control plane. One that signs none leaves plain HTTP, on the loopback interface
    /// and without certificates of clients only.
    fn renew(
        self,
        readiness: Arc<Readiness>,
        transport: Arc<ArcSwap<Transport>>,
        timings: Timings,
    ) -> impl Future<Output = ()> + Send + 'static {
        let plain = self.plain();
        let renewer = Renewer {
            connector: self.connector,
            id: self.id,
            policy_server: self.policy_server,
            store: self.store,
            certificates: self.certificates,
            poll: timings.certificate_poll,
        };
        async move {
            renewer.run().await;
            match plain {
                Ok((plain, _)) => {
                    readiness.waive();
                    transport.store(plain.load_full());
                }
                Err(error) => tracing::error!(
                    %error,
                    "the control plane signs no certificates: give --tls-cert and --tls-key"
                ),
            }
        }
    }
}
