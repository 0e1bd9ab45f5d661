//! The accept loop: handshakes side by side, each with a deadline; a bounded number of
//! connections. Whoever does not begin to speak HTTP/2 in time gives its place back.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    conn::{Conn, KillableIo, PREFACE, Peer},
    connection::Http2,
    metrics::{Metrics, Unserved},
    peers::{Peers, Place},
    tls::Tls,
};

/// After a failed accept (no descriptors left, say) wait a little instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Io = KillableIo<MaybeTls, Slot>;

/// What a connection takes up, given back when it ends.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

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
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) tls: Option<Tls>,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) peers: Peers,
    pub(crate) connections: Connections,
    pub(crate) tasks: TaskTracker,
    pub(crate) deadline: Duration,
    pub(crate) http2: Http2,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

// === impl Acceptor ===

impl Acceptor {
    pub(crate) async fn run(self, listener: TcpListener) {
        let stop = self.stop.clone();
        let accept = async {
            loop {
                // Beyond the limit connections wait in the kernel's queue.
                let permit = self.slots.clone().acquire_owned().await;
                let permit = permit.expect("the semaphore must stay open");
                match listener.accept().await {
                    Ok((tcp, address)) => self.accepted(tcp, address, permit),
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

    /// Closed at once if its address has too many already.
    fn accepted(&self, tcp: TcpStream, address: SocketAddr, permit: OwnedSemaphorePermit) {
        let Some(place) = self.peers.enter(address.ip()) else {
            self.metrics.unserved(Unserved::TooMany);
            return tracing::debug!(%address, "refused: too many connections");
        };
        let slot = Slot {
            _permit: permit,
            _place: place,
        };
        self.tasks.spawn(self.clone().greet(tcp, address, slot));
    }

    /// Serves a connection whose handshake is good. That runs in a task of its own, which
    /// is no larger than it has to be for all the time that follows.
    async fn greet(self, tcp: TcpStream, address: SocketAddr, slot: Slot) {
        let handshake = tokio::time::timeout(self.deadline, self.handshake(tcp));
        let handshake = tokio::select! {
            handshake = handshake => handshake.unwrap_or(Err(Unserved::TooSlow)),
            // A server that is ending takes no more.
            () = self.stop.cancelled() => return,
        };
        let io = match handshake {
            Ok(io) => io,
            Err(why) => {
                self.metrics.unserved(why);
                return tracing::debug!(%address, ?why, "not served");
            }
        };
        let conn = Arc::new(Conn::default());
        self.connections.add(&conn);
        let peer = Peer::new(address, conn);
        let io = KillableIo::new(io, peer.clone(), slot);
        self.tasks.spawn(self.http2.serve(io, peer, self.stop));
    }

    async fn handshake(&self, tcp: TcpStream) -> Result<MaybeTls, Unserved> {
        // Responses are written whole; waiting for more only delays them.
        tcp.set_nodelay(true).map_err(|_| Unserved::Closed)?;
        let mut io = match &self.tls {
            None => MaybeTls::Plain(tcp),
            Some(tls) => {
                let accepted = tls.acceptor().accept(tcp).await;
                MaybeTls::Tls(Box::new(accepted.map_err(|e| Unserved::from_tls(&e))?))
            }
        };
        read_preface(&mut io).await?;
        Ok(io)
    }
}

/// Reads what every HTTP/2 connection begins with, and not a byte more: whoever serves the
/// connection is given it again.
async fn read_preface(io: &mut (impl AsyncRead + Unpin)) -> Result<(), Unserved> {
    let mut expected = PREFACE;
    let mut buffer = [0; PREFACE.len()];
    while !expected.is_empty() {
        let read = io.read(&mut buffer[..expected.len()]).await;
        let read = read.map_err(|_| Unserved::Closed)?;
        if read == 0 {
            return Err(Unserved::Closed);
        }
        expected = expected
            .strip_prefix(&buffer[..read])
            .ok_or(Unserved::NotHttp2)?;
    }
    Ok(())
}

// === impl Unserved ===

impl Unserved {
    fn from_tls(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Unserved::Closed,
            _ => Unserved::Tls,
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
