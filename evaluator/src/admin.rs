//! Probes and metrics, on a port of their own.

use std::sync::Arc;

use arc_swap::ArcSwap;
use assent_serve::{Limits, Server, Shutdown, Transport};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{metrics, readiness::Readiness};

/// What the port answers from.
pub(crate) struct Admin {
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) registry: Registry,
}

// === impl Admin ===

impl Admin {
    /// Serves until stopped; probes must work through a drain.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let server = Server {
            listener: listener.into(),
            transport: Arc::new(ArcSwap::from_pointee(Transport::Plain)),
            limits: Limits::probes(),
            shutdown: Shutdown {
                drain: CancellationToken::new(),
                stop,
            },
        };
        let answer = move |request: Request<Incoming>, _| {
            let answer = self.answer(&request);
            async move { answer }
        };
        server.run(answer).await;
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET is answered here\n",
            );
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match self.readiness.check() {
                Ok(()) => text(StatusCode::OK, "ok\n"),
                Err(why) => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("not ready: {why}\n"),
                ),
            },
            "/metrics" => self.metrics(),
            _ => text(StatusCode::NOT_FOUND, "try /livez, /readyz or /metrics\n"),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        match metrics::render(&self.registry) {
            Ok(body) => {
                let mut response = text(StatusCode::OK, body);
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
                response
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
