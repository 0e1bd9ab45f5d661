//! The HTTP ports of the control plane. Whoever reaches one can take up only so much of it:
//! connections, in all and by address, the time that each step takes, and the memory of request
//! bodies as they arrive.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use assent_serve::{Server, Shutdown, Transport};
use axum::{
    Router,
    http::{Request, StatusCode},
    response::{IntoResponse as _, Response},
};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tower::ServiceExt as _;

mod budget;
#[cfg(test)]
mod tests;

use budget::Budget;

/// What a port allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections, in all and by address, and how long they may send nothing.
    pub(crate) connections: assent_serve::Limits,
    /// For a whole request, its body included.
    pub(crate) request: Duration,
    /// Bytes of request bodies in memory at a time.
    pub(crate) body_bytes: usize,
}

/// No TLS.
pub(crate) fn plain() -> Arc<ArcSwap<Transport>> {
    Arc::new(ArcSwap::from_pointee(Transport::Plain))
}

/// Serves until `shutdown.stop`, and then until pending responses were sent.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    transport: Arc<ArcSwap<Transport>>,
    limits: Limits,
    shutdown: Shutdown,
) {
    let server = Server {
        listener: listener.into(),
        transport,
        limits: limits.connections,
        shutdown,
    };
    let budget = Budget::new(limits.body_bytes);
    let answer = move |request, _| {
        let (router, budget) = (router.clone(), budget.clone());
        async move { call(router, &budget, limits.request, request).await }
    };
    server.run(answer).await;
}

async fn call(
    router: Router,
    budget: &Budget,
    limit: Duration,
    request: Request<Incoming>,
) -> Response {
    let (request, reserved) = budget.meter(request);
    let answer = tokio::time::timeout(limit, router.oneshot(request)).await;
    if reserved.is_exhausted() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match answer {
        Ok(Ok(answer)) => answer,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: assent_serve::Limits::reviews(),
            // The longest time-out that a webhook may have.
            request: Duration::from_secs(30),
            // Eighteen of the largest reviews.
            body_bytes: 128 << 20,
        }
    }
}
