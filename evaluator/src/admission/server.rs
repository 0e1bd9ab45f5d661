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

use super::Handler;

/// The protocol of connections; changes once at most, when the control plane signs no certificates.
#[derive(Clone)]
pub(crate) enum Transport {
    /// Plain HTTP, on the loopback interface only.
    Plain,
    Tls(Arc<ServerConfig>),
}

/// The review port.
pub(crate) struct Server {
    pub(crate) handler: Arc<Handler>,
    pub(crate) transport: Arc<ArcSwap<Transport>>,
}

/// When a connection has to end.
struct Shutdown {
    drain: CancellationToken,
    stop: CancellationToken,
    /// Whether the connection was accepted while draining.
    late: bool,
}

/// An API server keeps a few connections: this is enough for a thousand of them.
const CONNECTIONS: usize = 8_192;

/// Handshakes and headers take milliseconds; a peer that takes longer holds a slot.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A peer that is gone is noticed within the sum of both.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Deadlines are seconds at most: a response that is not written by then is given up.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

// === impl Server ===

impl Server {
    /// Accepts until `stop`, drains from `drain` on.
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
            let (this, shutdown) = (self.clone(), Shutdown::new(&drain, &stop));
            connections.spawn(async move {
                let _slot = slot;
                this.connection(stream, peer, shutdown).await;
            });
        }
        connections.close();
        connections.wait().await;
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr, shutdown: Shutdown) {
        // Responses are single small writes: waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        let transport = self.transport.load_full();
        match &*transport {
            Transport::Plain => self.http(stream, shutdown, false).await,
            Transport::Tls(config) => {
                let accept = TlsAcceptor::from(config.clone()).accept(stream);
                let accepted = tokio::select! {
                    accepted = tokio::time::timeout(HANDSHAKE, accept) => accepted,
                    () = shutdown.stop.cancelled() => return,
                };
                match accepted {
                    Ok(Ok(stream)) => {
                        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        self.http(stream, shutdown, http2).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
                }
            }
        }
    }

    /// HTTP/1 connections are closed with their next response. HTTP/2 connections get a GOAWAY at once, unless they
    /// were accepted while draining: they would be closed before their first response.
    async fn http(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        shutdown: Shutdown,
        http2: bool,
    ) {
        let service = service_fn(|request| {
            let handler = self.handler.clone();
            async move { Ok::<_, Infallible>(handler.handle(request).await) }
        });
        let builder = builder();
        let connection = builder.serve_connection(TokioIo::new(io), service);
        tokio::pin!(connection);
        let mut announced = !http2 || shutdown.late;
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = shutdown.drain.cancelled(), if !announced => {
                    announced = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = shutdown.stop.cancelled() => break,
            }
        }
        connection.as_mut().graceful_shutdown();
        // Requests in flight may complete.
        let _ = tokio::time::timeout(LAST_RESPONSES, connection).await;
    }
}

// === impl Shutdown ===

impl Shutdown {
    fn new(drain: &CancellationToken, stop: &CancellationToken) -> Self {
        Self {
            late: drain.is_cancelled(),
            drain: drain.clone(),
            stop: stop.clone(),
        }
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
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
    builder
}
