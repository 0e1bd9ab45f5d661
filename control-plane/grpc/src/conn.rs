//! Connections that can be ended from outside: the last resort against a client that does
//! not read.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client sends first on an HTTP/2 connection.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Who is at the other end; in the extensions of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    conn: Arc<Conn>,
}

/// A connection's handle.
#[derive(Debug, Default)]
pub(crate) struct Conn {
    killed: AtomicBool,
    streams: AtomicUsize,
    /// Calls whose caller was authenticated.
    authenticated: AtomicUsize,
    waker: AtomicWaker,
}

/// Counts one discovery stream of a connection while it lives.
#[derive(Debug)]
pub(crate) struct Use(Arc<Conn>);

/// IO that fails once its handle says so. `guard` is kept as long as the connection.
#[derive(Debug)]
pub(crate) struct KillableIo<IO, G> {
    io: IO,
    /// What of the preface, which was read before, is still to be handed out.
    preface: &'static [u8],
    peer: Peer,
    _guard: G,
}

// === impl Peer ===

impl Peer {
    pub(crate) fn new(address: SocketAddr, conn: Arc<Conn>) -> Self {
        Self { address, conn }
    }

    /// Where the connection comes from.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn use_stream(&self) -> Use {
        self.conn.streams.fetch_add(1, Ordering::Relaxed);
        Use(self.conn.clone())
    }

    /// A call on the connection was authenticated.
    pub(crate) fn count_authenticated(&self) {
        self.conn.authenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls were.
    pub(crate) fn authenticated(&self) -> usize {
        self.conn.authenticated.load(Ordering::Relaxed)
    }

    /// Whether discovery streams live on the connection.
    pub(crate) fn is_streaming(&self) -> bool {
        self.conn.streams.load(Ordering::Relaxed) > 0
    }

    /// Ends the connection, whatever lives on it.
    pub(crate) fn kill(&self) {
        self.conn.kill();
    }

    /// Ends the connection, unless other streams live on it.
    pub(crate) fn kill_if_unused(&self) {
        if !self.is_streaming() {
            self.kill();
        }
    }
}

// === impl Conn ===

impl Conn {
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Fails once the connection was ended; whoever polls is woken for that.
    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waker.register(cx.waker());
        if self.killed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

// === impl Use ===

impl Drop for Use {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl KillableIo ===

impl<IO, G> KillableIo<IO, G> {
    /// `io` is at the end of the preface.
    pub(crate) fn new(io: IO, peer: Peer, guard: G) -> Self {
        Self {
            io,
            preface: PREFACE,
            peer,
            _guard: guard,
        }
    }
}

impl<IO: AsyncRead + Unpin, G: Unpin> AsyncRead for KillableIo<IO, G> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.peer.conn.check(cx)?;
        if !self.preface.is_empty() {
            let (now, later) = self
                .preface
                .split_at(buf.remaining().min(self.preface.len()));
            buf.put_slice(now);
            self.preface = later;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin, G: Unpin> AsyncWrite for KillableIo<IO, G> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.peer.conn.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.peer.conn.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.conn.check(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.conn.check(cx)?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
