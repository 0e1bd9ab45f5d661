//! Checks the review port as a client does: a port that accepts nobody is not ready, whatever else is in place.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use assent_serve::Transport;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{admission::READYZ, readiness::Readiness, tls::Certificates};

/// The review port, as it is reached from here.
pub(crate) struct SelfCheck {
    pub(crate) port: SocketAddr,
    pub(crate) transport: Arc<ArcSwap<Transport>>,
    pub(crate) certificates: Certificates,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) every: Duration,
}

/// Why the port gave no response.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("failed to send a request: {0}")]
    Http(#[from] hyper::Error),
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] crate::tls::Error),
    #[error("there was no response within {} s", PATIENCE.as_secs())]
    Slow,
}

/// An answer takes less than a millisecond; a process that has no time for it in 5 s has none for API servers.
const PATIENCE: Duration = Duration::from_secs(5);

/// Failures in a row after which the port counts as silent. One may be due to a moment of overload.
const FAILURES: u32 = 3;

// === impl SelfCheck ===

impl SelfCheck {
    /// Checks until it is aborted.
    pub(crate) async fn run(self) {
        let mut failures = 0;
        loop {
            tokio::time::sleep(self.every).await;
            if matches!(**self.transport.load(), Transport::Tls(_)) && !self.certificates.is_valid()
            {
                // There is nothing to answer with, which readiness reports by itself.
                continue;
            }
            let checked = tokio::time::timeout(PATIENCE, self.check()).await;
            match checked.unwrap_or(Err(Error::Slow)) {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "the review port did not answer its own evaluator");
                }
            }
            self.readiness.set_answering(failures < FAILURES);
        }
    }

    /// Any response will do: whether the evaluator is ready is another question.
    async fn check(&self) -> Result<(), Error> {
        let stream = TcpStream::connect(reached(self.port)).await?;
        if matches!(**self.transport.load(), Transport::Plain) {
            return request(stream).await;
        }
        let config: Arc<ClientConfig> = self.certificates.own_client_config()?;
        let name = ServerName::from(reached(self.port).ip());
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        request(stream).await
    }
}

async fn request(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<(), Error> {
    let (mut sender, connection) = handshake(TokioIo::new(io)).await?;
    let request = Request::get(READYZ)
        .header(header::HOST, "localhost")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("the request must be valid");
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    connection.abort();
    response?;
    Ok(())
}

/// Where a port that is bound to any address is reached.
fn reached(port: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match port.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, port.port())
}
