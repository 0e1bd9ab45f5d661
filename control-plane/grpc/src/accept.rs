//! The accept loop. Handshakes run concurrently, each with a deadline. The number of connections
//! is limited, and a client that does not start HTTP/2 in time is disconnected.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::server::TlsStream;
use tokio_util::{either::Either, sync::CancellationToken, task::TaskTracker};

use crate::{
    conn::{Conn, KillableIo, PREFACE, Peer},
    connection::Http2,
    metrics::{Metrics, Unserved},
    peers::{Peers, Place},
    tls::Tls,
};

/// The delay after a failed accept, for example because no file descriptors are left: retrying at
/// once would use all of the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Io = KillableIo<MaybeTls, Slot>;

/// The resources of a connection, released when it ends.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

/// All open connections, which are closed at shutdown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<Weak<Conn>>>>);

/// Plaintext on loopback, TLS otherwise.
pub(crate) type MaybeTls = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The state of an accept loop.
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
                // Connections beyond the limit wait in the kernel's queue.
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

    /// Closes the connection if its address has too many.
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

    /// Serves a connection after its handshake, in a task of its own: the task of the handshake
    /// is larger than a connection needs for the rest of its life.
    async fn greet(self, tcp: TcpStream, address: SocketAddr, slot: Slot) {
        let handshake = tokio::time::timeout(self.deadline, self.handshake(tcp));
        let handshake = tokio::select! {
            handshake = handshake => handshake.unwrap_or(Err(Unserved::TooSlow)),
            // A server that is shutting down accepts no more.
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
            None => Either::Left(tcp),
            Some(tls) => {
                let accepted = tls.acceptor().accept(tcp).await;
                Either::Right(Box::new(accepted.map_err(|e| Unserved::from_tls(&e))?))
            }
        };
        read_preface(&mut io).await?;
        Ok(io)
    }
}

/// Reads the preface of an HTTP/2 connection and nothing beyond it. It is passed on to the server
/// of the connection.
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
        // Ended connections are removed when the list is full, so that it is at most twice as long
        // as needed.
        if list.len() == list.capacity() {
            list.retain(|conn| conn.strong_count() > 0);
        }
        list.push(Arc::downgrade(conn));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Conn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
