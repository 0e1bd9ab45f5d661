//! Sockets that connections are accepted from.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket. Its peers have no address: they count as one, on the loopback interface.
    Unix(UnixListener),
}

/// An accepted connection.
pub(crate) type Stream = Either<TcpStream, UnixStream>;

const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

// === impl Listener ===

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                Ok((Either::Left(stream), addr))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Either::Right(stream), UNIX_PEER))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// Responses are single small writes: waiting for more only delays them.
pub(crate) fn set_nodelay(stream: &Stream) {
    if let Either::Left(tcp) = stream {
        let _ = tcp.set_nodelay(true);
    }
}

/// Closes the connection with a reset: the client learns at once, and the kernel keeps nothing of it.
pub(crate) fn refuse(stream: Stream) {
    if let Either::Left(tcp) = &stream {
        let _ = tcp.set_zero_linger();
    }
    drop(stream);
}
