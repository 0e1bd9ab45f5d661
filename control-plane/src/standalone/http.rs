//! `--http`: admission, status, metrics and probes of a standalone control plane.

use std::{net::IpAddr, sync::Arc};

use assent_local::dispatch::{Dispatcher, Table};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request, State},
    http::{StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use super::endpoints::Endpoints;
use crate::{
    control::{Control, Ended, Query},
    listen::{self, Limits},
    responses::{self, error},
};

/// An UPDATE carries two objects of at most 3 MiB each, and their envelope.
const MAX_BODY: usize = 7 << 20;

/// What handlers share.
#[derive(Clone)]
pub(super) struct Web {
    pub(super) control: Control,
    pub(super) registry: Arc<Registry>,
    pub(super) routes: watch::Receiver<Table>,
    pub(super) dispatcher: Arc<Dispatcher<Endpoints>>,
    pub(super) readiness: watch::Receiver<Readiness>,
}

/// How far the start of the process is. A request that is answered too early would be allowed
/// by policies that nobody has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The directory has not been read.
    #[default]
    Reading,
    /// Policies that this process sees for the first time are vetted and loaded.
    Vetting,
    /// There are manifests, and none of them is valid.
    Broken,
    /// Policies are enforced, rejected, or late.
    Ready,
}

// === impl Readiness ===

impl Readiness {
    fn problem(self) -> Option<&'static str> {
        match self {
            Readiness::Reading => {
                Some("the directory of policies has not been read yet; does it exist?")
            }
            Readiness::Vetting => Some("policies are being checked and loaded for the first time"),
            Readiness::Broken => {
                Some("no manifest in the directory of policies is valid; `assent up` shows why")
            }
            Readiness::Ready => None,
        }
    }
}

/// Serves until `shutdown`.
pub(super) async fn serve(listener: TcpListener, web: Web, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/admit", post(admit))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(check_host))
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

/// Refuses requests for other hosts. A page in a browser can reach this port under a name of its
/// own that resolves to a loopback address, and could read what it answers.
async fn check_host(request: Request, next: Next) -> Response {
    let host = match request.headers().get(header::HOST) {
        Some(host) => host.to_str().ok(),
        // HTTP/2, or a client that is no browser.
        None => Some(
            request
                .uri()
                .authority()
                .map_or("localhost", |a| a.as_str()),
        ),
    };
    if host.is_some_and(is_own_host) {
        return next.run(request).await;
    }
    error(
        StatusCode::MISDIRECTED_REQUEST,
        "this port answers requests for localhost and loopback addresses only",
    )
}

/// Whether a `Host` header names this machine as it is seen from itself.
fn is_own_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

async fn admit(State(web): State<Web>, body: Bytes) -> Response {
    if let Some(why) = web.readiness.borrow().problem() {
        let message = format!("{why}; try again in a moment");
        return error(StatusCode::SERVICE_UNAVAILABLE, &message);
    }
    let table = web.routes.borrow().clone();
    match web.dispatcher.admit(&table, &body).await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(why) => error(StatusCode::BAD_REQUEST, &why.to_string()),
    }
}

async fn status(State(web): State<Web>) -> Response {
    match web.control.objects().await {
        Ok(objects) => Json(objects).into_response(),
        Err(Ended) => ended(),
    }
}

async fn metrics(State(web): State<Web>) -> Response {
    if web.control.ask(Query::Measure).await.is_err() {
        return ended();
    }
    responses::metrics(&web.registry)
}

async fn ready(State(web): State<Web>) -> Response {
    match web.readiness.borrow().problem() {
        None => "ok".into_response(),
        Some(why) => error(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

fn ended() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, &Ended.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_its_own() {
        for own in [
            "localhost",
            "LOCALHOST:15014",
            "127.0.0.1:15014",
            "127.8.8.8",
            "[::1]:15014",
            "[::1]",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:15014",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[fe80::1]",
            "localhost@evil.example",
            "a b",
        ] {
            assert!(!is_own_host(other), "{other}");
        }
    }
}
