//! A web server that answers as a test says, over TCP or TLS.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What a request looked like.
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
    scheme: &'static str,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

/// A proxy that connects to one server, whatever it is asked for.
pub(crate) struct ForwardProxy {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

type Handler = Arc<dyn Fn(&Seen) -> Response<Body> + Send + Sync>;

// === impl Server ===

impl Server {
    pub(crate) async fn plain(
        handler: impl Fn(&Seen) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Arc::new(handler), None).await
    }

    pub(crate) async fn tls(
        handler: impl Fn(&Seen) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Arc::new(handler), Some(certificates(&[]))).await
    }

    /// Like [`Server::tls`], and offers HTTP/2.
    pub(crate) async fn http2(
        handler: impl Fn(&Seen) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Arc::new(handler), Some(certificates(&["h2", "http/1.1"]))).await
    }

    async fn start(handler: Handler, tls: Option<(String, TlsAcceptor)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (ca_pem, acceptor) = tls.unzip();
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            acceptor,
            handler,
            connections.clone(),
            seen.clone(),
        ));
        Self {
            address,
            ca_pem: ca_pem.unwrap_or_default(),
            scheme,
            connections,
            seen,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// Connections taken, whether or not a request came.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

// === impl ForwardProxy ===

impl ForwardProxy {
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let seen = heads.clone();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                open.spawn(forward(client, upstream, seen.clone()));
            }
        });
        Self {
            address,
            heads,
            _tasks: tasks,
        }
    }

    /// The head of the first request of each connection.
    pub(crate) fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

async fn forward(mut client: TcpStream, upstream: SocketAddr, heads: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match client.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let text = String::from_utf8(head.clone()).unwrap();
    let is_tunnel = text.starts_with("CONNECT ");
    heads.lock().unwrap().push(text);
    let mut server = TcpStream::connect(upstream).await.unwrap();
    match is_tunnel {
        true => client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap(),
        false => server.write_all(&head).await.unwrap(),
    }
    // Either side may go away at any time.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

// === impl Seen ===

impl Seen {
    pub(crate) fn authorization(&self) -> Option<&str> {
        Some(self.headers.get("authorization")?.to_str().unwrap())
    }
}

pub(crate) fn ok(body: impl Into<Bytes>) -> Response<Body> {
    answer(200, body)
}

pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let response = Response::builder().status(status);
    response.body(body.boxed_unsync()).unwrap()
}

pub(crate) fn redirect(to: &str) -> Response<Body> {
    let mut response = answer(302, "");
    response
        .headers_mut()
        .insert("location", to.parse().unwrap());
    response
}

/// A body without an end, and without a length.
pub(crate) fn endless() -> Response<Body> {
    let chunk = || Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[0; 4096])));
    let body = StreamBody::new(stream::repeat_with(chunk));
    Response::new(body.boxed_unsync())
}

/// A body that stops in the middle.
pub(crate) fn broken() -> Response<Body> {
    let start = stream::iter([Ok(Frame::data(Bytes::from_static(b"\0asm")))]);
    let end = stream::iter([Err(std::io::Error::other("cut"))]);
    Response::new(StreamBody::new(start.chain(end)).boxed_unsync())
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    handler: Handler,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let mut open = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        connections.fetch_add(1, Ordering::SeqCst);
        let (handler, seen, acceptor) = (handler.clone(), seen.clone(), acceptor.clone());
        open.spawn(async move {
            match acceptor {
                None => serve(tcp, handler, seen).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        serve(stream, handler, seen).await;
                    }
                }
            }
        });
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Handler,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, seen) = (handler.clone(), seen.clone());
        async move {
            let (head, body) = request.into_parts();
            let one = Seen {
                version: head.version,
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                headers: head.headers,
                body: body.collect().await.unwrap().to_bytes(),
            };
            if one.path == "/never" {
                std::future::pending::<()>().await;
            }
            let response = handler(&one);
            seen.lock().unwrap().push(one);
            Ok::<_, std::io::Error>(response)
        }
    });
    // A client that goes away is no concern of the server's.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// An authority of the test's own and a server that it vouches for.
fn certificates(protocols: &[&str]) -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(names).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], private)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    (issuer.pem(), TlsAcceptor::from(Arc::new(config)))
}
