//! A small client: one connection, one request at a time.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// An open connection.
pub(crate) struct Client(SendRequest<Full<Bytes>>);

impl Client {
    pub(crate) async fn plain(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        Self::over(TokioIo::new(stream)).await
    }

    pub(crate) async fn tls(addr: SocketAddr, config: Arc<rustls::ClientConfig>) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(config);
        let stream = connector.connect(name, stream).await.unwrap();
        Self::over(TokioIo::new(stream)).await
    }

    async fn over(io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static) -> Self {
        let (sender, connection) = handshake(io).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// Over a connection whose handshake is done.
    pub(crate) async fn over_tls(stream: tokio_rustls::client::TlsStream<TcpStream>) -> Self {
        Self::over(TokioIo::new(stream)).await
    }

    /// The status of a review; none if the server closes the connection.
    pub(crate) async fn try_review(&mut self, path: &str) -> Option<u16> {
        self.0.ready().await.ok()?;
        let response = self.0.send_request(post(path, &pod("CREATE"))).await;
        response.ok().map(|response| response.status().as_u16())
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> (StatusCode, Value) {
        let response = self.exchange(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        (
            status,
            serde_json::from_slice(&body).unwrap_or(Value::String(text)),
        )
    }

    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Response<hyper::body::Incoming> {
        self.0.ready().await.unwrap();
        self.0.send_request(request).await.unwrap()
    }

    /// Asks for a verdict on a pod.
    pub(crate) async fn review(&mut self, path: &str) -> (StatusCode, Value) {
        self.send(post(path, &pod("CREATE"))).await
    }
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    post_bytes(path, body.to_string().into())
}

pub(crate) fn post_bytes(path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "localhost");
    let request = request.header("content-type", "application/json");
    request.body(Full::new(body)).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "localhost");
    request.body(Full::default()).unwrap()
}

/// An AdmissionReview of the usual size.
pub(crate) fn pod(operation: &str) -> Value {
    let padding = "x".repeat(4096);
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": operation, "object": {"kind": "Pod"}, "padding": padding},
    })
}

/// The revision that a decision names.
pub(crate) fn revision(answer: &Value) -> &str {
    answer["response"]["auditAnnotations"]["revision"]
        .as_str()
        .unwrap_or("none")
}
