//! The accept loop: handshakes side by side, each with a deadline; a bounded number of
//! connections.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::{
    conn::{Conn, KillableIo, Peer},
    tls::Tls,
};

/// A TLS handshake takes two round trips; who needs longer than this is not one of ours.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// After a failed accept (no descriptors left, say) wait a little instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Io = KillableIo<MaybeTls, OwnedSemaphorePermit>;

/// Every connection there is, for the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<Weak<Conn>>>>);

/// Plain on loopback, else TLS.
#[derive(Debug)]
pub(crate) enum MaybeTls {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What an accept loop needs.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    pub(crate) tls: Option<Tls>,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) connections: Connections,
    pub(crate) out: mpsc::Sender<Io>,
    pub(crate) stop: CancellationToken,
}

// === impl Acceptor ===

impl Acceptor {
    pub(crate) async fn run(self, listener: TcpListener) {
        let stop = self.stop.clone();
        let accept = async {
            loop {
                // Beyond the limit connections wait in the kernel's queue.
                let slot = self.slots.clone().acquire_owned().await;
                let slot = slot.expect("the semaphore must stay open");
                match listener.accept().await {
                    Ok((tcp, address)) => self.clone().greet(tcp, address, slot),
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop.cancelled() => {}
        }
    }

    fn greet(self, tcp: TcpStream, address: SocketAddr, slot: OwnedSemaphorePermit) {
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE_DEADLINE, self.handshake(tcp)).await;
            let io = match handshake {
                Ok(Ok(io)) => io,
                Ok(Err(error)) => return tracing::debug!(%address, %error, "handshake failed"),
                Err(_) => return tracing::debug!(%address, "handshake took too long"),
            };
            let conn = Arc::new(Conn::default());
            self.connections.add(&conn);
            let io = KillableIo::new(io, Peer::new(address, conn), slot);
            // A server that is ending takes no more.
            let _ = self.out.send(io).await;
        });
    }

    async fn handshake(&self, tcp: TcpStream) -> io::Result<MaybeTls> {
        // Responses are written whole; waiting for more only delays them.
        tcp.set_nodelay(true)?;
        match &self.tls {
            None => Ok(MaybeTls::Plain(tcp)),
            Some(tls) => Ok(MaybeTls::Tls(Box::new(tls.acceptor().accept(tcp).await?))),
        }
    }
}

// === impl Connections ===

impl Connections {
    pub(crate) fn kill_all(&self) {
        for conn in self.lock().drain(..).filter_map(|conn| conn.upgrade()) {
            conn.kill();
        }
    }

    fn add(&self, conn: &Arc<Conn>) {
        let mut list = self.lock();
        // Swept when it is full, so that the list is at most twice as long as needed.
        if list.len() == list.capacity() {
            list.retain(|conn| conn.strong_count() > 0);
        }
        list.push(Arc::downgrade(conn));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Conn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl MaybeTls ===

impl AsyncRead for MaybeTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTls::Plain(io) => Pin::new(io).poll_read(cx, buf),
            MaybeTls::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for MaybeTls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            MaybeTls::Plain(io) => Pin::new(io).poll_write(cx, buf),
            MaybeTls::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            MaybeTls::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            MaybeTls::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            MaybeTls::Plain(io) => io.is_write_vectored(),
            MaybeTls::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTls::Plain(io) => Pin::new(io).poll_flush(cx),
            MaybeTls::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            MaybeTls::Plain(io) => Pin::new(io).poll_shutdown(cx),
            MaybeTls::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
