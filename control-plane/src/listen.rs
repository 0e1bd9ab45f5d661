//! The HTTP ports of the control plane. Whoever reaches one can take up only so much of it:
//! connections, in all and by address, the time that each step takes, and the memory of request
//! bodies as they arrive.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use assent_grpc::peers::{Peers, Place};
use axum::{
    Router,
    http::{Request, StatusCode},
    response::{IntoResponse as _, Response},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{ServiceExt as _, service_fn};
use tracing::debug;

mod budget;
#[cfg(test)]
mod tests;

use budget::Budget;

/// How a connection begins.
pub(crate) trait Handshake: Clone + Send + Sync + 'static {
    /// The connection afterwards.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Completes the handshake.
    fn accept(&self, socket: TcpStream) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// No TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain;

/// What a port allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For the handshake, and for the head of each HTTP/1.1 request; also how long a kept-alive
    /// connection may be silent.
    pub(crate) head: Duration,
    /// For a whole request, its body included.
    pub(crate) request: Duration,
    /// A connection without requests for this long is asked to leave.
    pub(crate) idle: Duration,
    /// More connections wait in the kernel's queue.
    pub(crate) connections: usize,
    /// More connections of one address are refused; loopback has no such limit.
    pub(crate) connections_per_peer: usize,
    /// Bytes of request bodies in memory at a time.
    pub(crate) body_bytes: usize,
}

/// A port.
#[derive(Clone)]
struct Port<H> {
    handshake: H,
    router: Router,
    limits: Limits,
    builder: Builder<TokioExecutor>,
    slots: Arc<Semaphore>,
    peers: Peers,
    budget: Budget,
    shutdown: CancellationToken,
}

/// What one connection has done.
#[derive(Debug, Default)]
struct Activity {
    running: AtomicUsize,
    begun: AtomicUsize,
}

/// A request that is being answered.
struct Running(Arc<Activity>);

/// After a failed accept, for example without file descriptors: others end and free theirs.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long pending responses may take after a connection was told to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Requests at a time on one HTTP/2 connection: what an API server allows itself.
const MAX_CONCURRENT_STREAMS: u32 = 250;

/// Serves until `shutdown`, and then until pending responses were sent.
pub(crate) async fn serve<H: Handshake>(
    listener: TcpListener,
    router: Router,
    handshake: H,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let port = Port {
        handshake,
        router,
        limits,
        builder: builder(&limits),
        slots: Arc::new(Semaphore::new(limits.connections)),
        peers: Peers::new(limits.connections_per_peer),
        budget: Budget::new(limits.body_bytes),
        shutdown: shutdown.clone(),
    };
    let tasks = TaskTracker::new();
    shutdown
        .run_until_cancelled(port.accept(listener, &tasks))
        .await;
    tasks.close();
    let _ = tokio::time::timeout(DRAIN, tasks.wait()).await;
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS);
    builder
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            // The longest time-out that a webhook may have.
            request: Duration::from_secs(30),
            idle: Duration::from_secs(5 * 60),
            connections: 2_000,
            // An API server, a kubelet or Prometheus has a few.
            connections_per_peer: 200,
            // Eighteen of the largest reviews.
            body_bytes: 128 << 20,
        }
    }
}

// === impl Plain ===

impl Handshake for Plain {
    type Io = TcpStream;

    async fn accept(&self, socket: TcpStream) -> io::Result<TcpStream> {
        Ok(socket)
    }
}

// === impl Port ===

impl<H: Handshake> Port<H> {
    async fn accept(&self, listener: TcpListener, tasks: &TaskTracker) {
        loop {
            let slot = self.slots.clone().acquire_owned().await;
            let slot = slot.expect("the semaphore must stay open");
            let (socket, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(why) => {
                    debug!("failed to accept a connection: {why}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match self.peers.enter(address.ip()) {
                Some(place) => drop(tasks.spawn(self.clone().connection(socket, (slot, place)))),
                None => debug!(%address, "refused: too many connections"),
            }
        }
    }

    async fn connection(self, socket: TcpStream, _slot: (OwnedSemaphorePermit, Place)) {
        // Responses are written whole; waiting for more only delays them.
        let _ = socket.set_nodelay(true);
        let handshake = tokio::time::timeout(self.limits.head, self.handshake.accept(socket));
        let Ok(Ok(io)) = handshake.await else {
            return debug!("a handshake failed");
        };
        let activity = Arc::<Activity>::default();
        let (port, calls) = (self.clone(), activity.clone());
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            port.clone().call(request, Running::new(&calls))
        });
        let service = TowerToHyperService::new(service);
        let connection = self.builder.serve_connection(TokioIo::new(io), service);
        let mut connection = pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => {
                return ended.unwrap_or_else(|why| debug!("a connection ended early: {why}"));
            }
            () = self.shutdown.cancelled() => {}
            () = activity.idle(&self.limits) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(DRAIN, connection).await;
    }

    async fn call(
        self,
        request: Request<hyper::body::Incoming>,
        _running: Running,
    ) -> Result<Response, Infallible> {
        let (request, reserved) = self.budget.meter(request);
        let answer = self.router.clone().oneshot(request);
        let answer = tokio::time::timeout(self.limits.request, answer).await;
        if reserved.is_exhausted() {
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        answer.unwrap_or_else(|_| Ok(StatusCode::REQUEST_TIMEOUT.into_response()))
    }
}

// === impl Activity ===

impl Activity {
    /// Returns when the connection has had no request for too long. The first one must begin as
    /// soon as the head of any other.
    async fn idle(&self, limits: &Limits) {
        let mut seen = 0;
        let mut wait = limits.head;
        loop {
            tokio::time::sleep(wait).await;
            let begun = self.begun.load(Ordering::Relaxed);
            if begun == seen && self.running.load(Ordering::Relaxed) == 0 {
                return;
            }
            (seen, wait) = (begun, limits.idle);
        }
    }
}

// === impl Running ===

impl Running {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        activity.running.fetch_add(1, Ordering::Relaxed);
        Self(activity.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
