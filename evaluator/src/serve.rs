//! The review port: HTTP and HTTPS, bounded in every direction.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod answer;
pub(crate) mod fuzz;
mod handler;
mod review;
#[cfg(test)]
mod tests;

pub(crate) use handler::Handler;

/// How connections are spoken to; may change once, when nobody signs certificates.
#[derive(Clone)]
pub(crate) enum Transport {
    /// Plain HTTP, on the loopback interface only.
    Plain,
    Tls(Arc<ServerConfig>),
}

/// The port and what answers it.
pub(crate) struct Server {
    pub(crate) handler: Arc<Handler>,
    pub(crate) transport: Arc<ArcSwap<Transport>>,
}

/// API servers keep some connections each; a thousand of them still fit.
const CONNECTIONS: usize = 8_192;

/// Handshakes and headers take milliseconds; a peer that takes longer holds a slot.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Vanished peers are noticed within both together.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Server ===

impl Server {
    /// Accepts until `stop`; connections are told to end at `drain` and are closed at `stop`.
    pub(crate) async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        drain: CancellationToken,
        stop: CancellationToken,
    ) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let Ok((stream, peer)) = accepted else {
                // Out of file descriptors, most likely: do not spin.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (this, drain, stop) = (self.clone(), drain.clone(), stop.clone());
            connections.spawn(async move {
                let _slot = slot;
                tokio::select! {
                    () = this.connection(stream, peer, drain) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
        connections.close();
        connections.wait().await;
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr, drain: CancellationToken) {
        // Answers are single small writes: waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        match &**self.transport.load() {
            Transport::Plain => self.http(stream, drain).await,
            Transport::Tls(config) => {
                let accept = TlsAcceptor::from(config.clone()).accept(stream);
                match tokio::time::timeout(HANDSHAKE, accept).await {
                    Ok(Ok(stream)) => self.http(stream, drain).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
                }
            }
        }
    }

    async fn http(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        drain: CancellationToken,
    ) {
        let service = service_fn(|request| {
            let handler = self.handler.clone();
            async move { Ok::<_, Infallible>(handler.handle(request).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            // Twice what an API server has in flight on one connection by default.
            .max_concurrent_streams(500);
        let connection = builder.serve_connection(TokioIo::new(io), service);
        tokio::pin!(connection);
        let mut told = false;
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = drain.cancelled(), if !told => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
