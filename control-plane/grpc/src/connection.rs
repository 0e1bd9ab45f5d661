//! One connection: HTTP/2 until its client leaves, or until the server ends.

use std::{convert::Infallible, error::Error as _, sync::Arc};

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

/// Serves connections.
#[derive(Clone)]
pub(crate) struct Http2(Arc<Inner>);

struct Inner {
    builder: http2::Builder<TokioExecutor>,
    routes: Routes,
    metrics: Metrics,
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
        }))
    }

    /// Serves until the client leaves. After `stop` it is told to: GOAWAY, and no new calls.
    pub(crate) async fn serve(self, io: Io, peer: Peer, stop: CancellationToken) {
        let Self(inner) = self;
        let calls = inner.clone();
        let service = service_fn(move |request| calls.clone().call(request, peer.clone()));
        let connection = inner.builder.serve_connection(TokioIo::new(io), service);
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
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
