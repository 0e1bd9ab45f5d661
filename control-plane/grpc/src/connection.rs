//! One connection: HTTP/2 until its client leaves, or until the server ends.

use std::{convert::Infallible, error::Error as _, pin::pin, sync::Arc, time::Duration};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service as _;

use crate::{
    accept::Io,
    conn::Peer,
    metrics::{Metrics, Unserved},
    serve::Options,
};

/// What a stream may queue before the socket takes it: a few frames. The list of queued
/// frames never shrinks, so with the default a client that was once sent a large set would
/// cost a third more memory for as long as it is connected.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// How long a client may take to read GOAWAY before its connection is cut.
const LEAVE: Duration = Duration::from_secs(1);

/// Why a connection is told to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Useless {
    /// No call on it was authenticated in time.
    Unauthenticated,
    /// Nothing happens on it.
    Idle,
}

/// Serves connections.
#[derive(Clone)]
pub(crate) struct Http2(Arc<Inner>);

struct Inner {
    builder: http2::Builder<TokioExecutor>,
    routes: Routes,
    metrics: Metrics,
    authentication_deadline: Duration,
    idle_limit: Duration,
}

/// Marks a response whose refusal was counted by whoever made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted;

// === impl Http2 ===

impl Http2 {
    pub(crate) fn new(options: &Options, routes: Routes, metrics: Metrics) -> Self {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(options.keepalive_interval)
            .keep_alive_timeout(options.keepalive_timeout)
            .max_concurrent_streams(options.max_concurrent_streams)
            .max_send_buf_size(SEND_BUFFER_BYTES);
        Self(Arc::new(Inner {
            builder,
            routes: routes.prepare(),
            metrics,
            authentication_deadline: options.authentication_deadline,
            idle_limit: options.idle_limit,
        }))
    }

    /// Serves until the client leaves. It is told to (GOAWAY, and no new calls) after `stop`, and
    /// if it is of no use.
    pub(crate) async fn serve(self, io: Io, peer: Peer, stop: CancellationToken) {
        let Self(inner) = self;
        let calls = inner.clone();
        let caller = peer.clone();
        let service = service_fn(move |request| calls.clone().call(request, caller.clone()));
        let connection = inner.builder.serve_connection(TokioIo::new(io), service);
        let mut connection = pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            useless = inner.useless(&peer) => {
                connection.as_mut().graceful_shutdown();
                inner.part(connection, &peer, useless).await
            }
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            if is_broken(&error) {
                inner.metrics.unserved(Unserved::Broken);
            }
            tracing::debug!(%error, "connection failed");
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Returns when the connection has no reason to stay.
    async fn useless(&self, peer: &Peer) -> Useless {
        tokio::time::sleep(self.authentication_deadline).await;
        let mut seen = peer.authenticated();
        if seen == 0 {
            return Useless::Unauthenticated;
        }
        loop {
            tokio::time::sleep(self.idle_limit).await;
            let calls = peer.authenticated();
            if calls == seen && !peer.is_streaming() {
                return Useless::Idle;
            }
            seen = calls;
        }
    }

    /// Waits for the end of a connection that was told to leave. Calls without a token are not
    /// waited for: a health watch never ends.
    async fn part<T>(&self, connection: impl Future<Output = T>, peer: &Peer, why: Useless) -> T {
        let mut connection = pin!(connection);
        if why == Useless::Unauthenticated {
            self.metrics.unserved(Unserved::Unauthenticated);
            tracing::debug!(address = %peer.address(), "closed: no call was authenticated");
            tokio::select! {
                ended = connection.as_mut() => return ended,
                () = tokio::time::sleep(LEAVE) => peer.kill(),
            }
        }
        connection.await
    }

    async fn call(
        self: Arc<Self>,
        mut request: http::Request<Incoming>,
        peer: Peer,
    ) -> Result<http::Response<Body>, Infallible> {
        request.extensions_mut().insert(peer);
        let response = self.routes.clone().call(request).await?;
        if let Some(code) = refusal(&response) {
            self.metrics.refused_call(code);
        }
        Ok(response)
    }
}

/// How a call was refused that nobody has counted yet. Only one that ends before it begins
/// has its status in the headers.
fn refusal(response: &http::Response<Body>) -> Option<Code> {
    let code = Status::from_header_map(response.headers())?.code();
    let counted = response.extensions().get::<Counted>().is_some();
    (code != Code::Ok && !counted).then_some(code)
}

/// Whether the client broke the rules of HTTP/2, rather than the network its connection.
fn is_broken(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|s| s.downcast_ref::<h2::Error>());
    source.is_some_and(h2::Error::is_library)
}
