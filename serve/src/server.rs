//! A port: accepts connections and serves them.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Limits, Listener, Peer, Transport,
    connection::{self, BoxError},
    table::Table,
};

/// A port that is about to be served.
pub struct Server {
    /// The bound socket.
    pub listener: Listener,
    /// The protocol of new connections; may change while the server runs.
    pub transport: Arc<ArcSwap<Transport>>,
    /// Bounds of the port.
    pub limits: Limits,
    /// When it ends.
    pub shutdown: Shutdown,
}

/// Ends a server in two steps.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Clients are asked to go elsewhere, and are still served.
    pub drain: CancellationToken,
    /// No more connections are accepted, and no more requests.
    pub stop: CancellationToken,
}

/// When a connection has to end.
pub(crate) struct Ending {
    pub(crate) drain: CancellationToken,
    pub(crate) stop: CancellationToken,
    /// Whether the connection was accepted while draining.
    pub(crate) late: bool,
}

/// How long to wait if accepting failed, so as not to spin.
const AFTER_ERROR: Duration = Duration::from_millis(50);

// === impl Shutdown ===

impl From<CancellationToken> for Shutdown {
    /// In one step: for clients that repeat a request that was not answered.
    fn from(stop: CancellationToken) -> Self {
        Self {
            drain: stop.clone(),
            stop,
        }
    }
}

// === impl Server ===

impl Server {
    /// Answers requests with `handler` until `shutdown.stop`; returns when the last connection has ended.
    pub async fn run<H, F, B>(self, handler: H)
    where
        H: Fn(Request<Incoming>, Arc<Peer>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let limits = self.limits.within_descriptors();
        let table = Table::new(limits);
        let connections = TaskTracker::new();
        let stop = self.shutdown.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let (stream, addr) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "failed to accept a connection");
                    // Out of file descriptors, most likely.
                    table.make_room();
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            let Some(slot) = table.admit(addr.ip().to_canonical()) else {
                tracing::debug!(peer = %addr, "no room for another connection");
                crate::listener::refuse(stream);
                continue;
            };
            let (handler, ending) = (handler.clone(), Ending::new(&self.shutdown));
            let transport = self.transport.load_full();
            connections.spawn(async move {
                connection::serve(stream, addr, &transport, handler, slot, ending, limits).await;
            });
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }
}

// === impl Ending ===

impl Ending {
    fn new(shutdown: &Shutdown) -> Self {
        Self {
            late: shutdown.drain.is_cancelled(),
            drain: shutdown.drain.clone(),
            stop: shutdown.stop.clone(),
        }
    }
}
