//! HTTPS for the control plane's own webhooks, with a certificate that is renewed while it runs.

use std::{sync::Arc, time::Duration};

use assent_k8s::certificates::ServingLeaf;
use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

/// An API server that does not finish its handshake in this time has vanished.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long pending responses may take after the shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `shutdown`.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    mut leaf: watch::Receiver<Arc<ServingLeaf>>,
    shutdown: CancellationToken,
) {
    let first = config(&leaf.borrow_and_update());
    let mut acceptor = match first {
        Ok(config) => TlsAcceptor::from(config),
        Err(why) => return error!("failed to set up TLS for --webhook: {why}"),
    };
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30));
    loop {
        let socket = tokio::select! {
            () = shutdown.cancelled() => break,
            Ok(()) = leaf.changed() => {
                match config(&leaf.borrow_and_update()) {
                    Ok(config) => acceptor = TlsAcceptor::from(config),
                    Err(why) => warn!("failed to use the renewed certificate; keeping the current one: {why}"),
                }
                continue;
            }
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(why) => {
                    // File descriptors may be exhausted: other connections end and free theirs.
                    debug!("failed to accept a connection: {why}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        let (builder, watcher) = (builder.clone(), graceful.watcher());
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await;
            let Ok(Ok(stream)) = handshake else {
                return debug!("a TLS handshake failed");
            };
            let service = TowerToHyperService::new(router);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            if let Err(why) = watcher.watch(connection.into_owned()).await {
                debug!("a connection ended early: {why}");
            }
        });
    }
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
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
