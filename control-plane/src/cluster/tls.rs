//! HTTPS for the control plane's own webhooks, with a certificate that is renewed while it runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use assent_k8s::certificates::ServingLeaf;
use assent_serve::{Shutdown, Transport};
use axum::Router;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{net::TcpListener, sync::watch};
use tracing::{error, warn};

use crate::listen::{self, Limits};

/// Serves until `shutdown.stop`.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    mut leaf: watch::Receiver<Arc<ServingLeaf>>,
    shutdown: Shutdown,
) {
    let first = config(&leaf.borrow_and_update());
    let tls = match first {
        Ok(config) => Arc::new(ArcSwap::from_pointee(Transport::Tls(config))),
        Err(why) => return error!("failed to set up TLS for --webhook: {why}"),
    };
    let serve = listen::serve(listener, router, tls.clone(), Limits::default(), shutdown);
    let follow = async {
        while leaf.changed().await.is_ok() {
            match config(&leaf.borrow_and_update()) {
                Ok(config) => tls.store(Arc::new(Transport::Tls(config))),
                Err(why) => {
                    warn!("failed to use the renewed certificate; keeping the current one: {why}");
                }
            }
        }
        // Nobody renews it any more.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serve => {}
        () = follow => {}
    }
}

fn config(leaf: &ServingLeaf) -> Result<Arc<ServerConfig>, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(leaf.chain_pem.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).map_err(|e| e.to_string())?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain.map_err(|e| e.to_string())?, key)
        .map_err(|e| e.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
