//! `--http`: metrics and probes.

use std::{sync::Arc, time::Duration};

use assent_k8s::lease::LeaderCheck;
use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{
    control::{Control, Query},
    listen::{self, Limits},
    responses::{self, error},
};

/// What handlers share.
#[derive(Clone)]
pub(super) struct Web {
    pub(super) control: Control,
    pub(super) registry: Arc<Registry>,
    /// Whether this replica can do its part.
    pub(super) ready: watch::Receiver<Readiness>,
    /// Whether it leads.
    pub(super) leader_check: LeaderCheck,
}

/// What keeps a replica from being ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness {
    /// The objects that Assent's own webhooks look at were listed.
    pub(super) listed: bool,
    /// It leads, and has not yet read all objects or written Assent's own webhooks.
    pub(super) beginning: bool,
}

/// Serves until `shutdown`.
pub(super) async fn serve(listener: TcpListener, web: Web, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(web);
    listen::serve(
        listener,
        router,
        listen::plain(),
        Limits::default(),
        shutdown.into(),
    )
    .await;
}

async fn metrics(State(web): State<Web>) -> Response {
    // A standby has nothing to measure, and nobody to ask.
    if web.leader_check.leads().is_some() {
        let measured = web.control.ask(Query::Measure);
        let _ = tokio::time::timeout(Duration::from_secs(1), measured).await;
    }
    responses::metrics(&web.registry)
}

async fn ready(State(web): State<Web>) -> Response {
    match *web.ready.borrow() {
        Readiness {
            listed: true,
            beginning: false,
        } => "ok".into_response(),
        Readiness { listed: false, .. } => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "policies and policy servers were not listed yet",
        ),
        Readiness { .. } => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the leader has not yet read all objects or written Assent's own webhooks",
        ),
    }
}
