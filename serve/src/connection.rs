//! One connection: TLS or not, HTTP/1.1 or HTTP/2, until it ends or has to.

use std::{convert::Infallible, error::Error, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, Version, header};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::{
    Limits,
    listener::{self, Stream},
    server::Ending,
    table::Slot,
};

/// The protocol of connections.
#[derive(Clone)]
pub enum Transport {
    /// Plain HTTP.
    Plain,
    /// HTTPS.
    Tls(Arc<ServerConfig>),
}

/// The other side of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it connects from.
    pub addr: SocketAddr,
    /// The client certificate, if one was asked for and given. The handshake has verified it.
    pub certificate: Option<CertificateDer<'static>>,
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// A peer that is gone is noticed within the sum of both.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that makes room has no requests in flight: it only has to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Deadlines of requests are seconds at most: a response that is not written by then is given up.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

/// Room for headers. The default is more than six times as much, for each connection.
const BUFFER: usize = 64 << 10;

/// Serves one connection.
pub(crate) async fn serve<H, F, B>(
    stream: Stream,
    addr: SocketAddr,
    transport: &Transport,
    handler: H,
    slot: Slot,
    ending: Ending,
    limits: Limits,
) where
    H: Fn(Request<Incoming>, Arc<Peer>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    listener::set_nodelay(&stream);
    let mut peer = Peer {
        addr,
        certificate: None,
    };
    let Transport::Tls(config) = transport else {
        return http(stream, peer, handler, slot, ending, limits, false).await;
    };
    let accept = TlsAcceptor::from(config.clone()).accept(stream);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limits.first_request, accept) => accepted,
        () = slot.evicted() => return,
        () = ending.stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let tls = stream.get_ref().1;
            let http2 = tls.alpn_protocol() == Some(b"h2");
            let chain = tls.peer_certificates().unwrap_or_default();
            peer.certificate = chain.first().map(|leaf| leaf.clone().into_owned());
            http(stream, peer, handler, slot, ending, limits, http2).await;
        }
        Ok(Err(error)) => tracing::debug!(peer = %addr, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(peer = %addr, "TLS handshake took too long"),
    }
}

/// HTTP/1 connections are closed with their next response. HTTP/2 connections get a GOAWAY at once, unless they
/// were accepted while draining: they would be closed before their first response.
async fn http<H, F, B>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    handler: H,
    slot: Slot,
    ending: Ending,
    limits: Limits,
    http2: bool,
) where
    H: Fn(Request<Incoming>, Arc<Peer>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let peer = Arc::new(peer);
    // Cloning a token takes a lock that all connections share.
    let drain = Arc::new(ending.drain.clone());
    let service = service_fn(|request: Request<Incoming>| {
        let busy = slot.busy();
        let http1 = request.version() < Version::HTTP_2;
        let response = handler(request, peer.clone());
        let drain = drain.clone();
        async move {
            let mut response = response.await;
            drop(busy);
            // The client closes the connection itself. If the server closed it between two requests, a client that
            // has just sent the next one could not know whether it was processed, and would report an error.
            if http1 && drain.is_cancelled() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(limits);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let mut announced = !http2 || ending.late;
    let patience = loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = ending.drain.cancelled(), if !announced => {
                announced = true;
                connection.as_mut().graceful_shutdown();
            }
            () = ending.stop.cancelled() => break LAST_RESPONSES,
            () = slot.evicted() => break GOODBYE,
            () = tokio::time::sleep(slot.left()) => {
                if slot.left().is_zero() {
                    break GOODBYE;
                }
            }
        }
    };
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(patience, connection).await;
}

fn builder(limits: Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_buf_size(BUFFER)
        // Also runs while a connection is idle; a first request has less time.
        .header_read_timeout(limits.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_concurrent_streams(limits.streams);
    builder
}
