//! A port under clients that hold connections.

#![allow(clippy::unwrap_used)]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use assent_serve::{Limits, Peer, Server, Shutdown, Transport};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// Ends a test that hangs; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything of the loopback network is local: a client may have any of its addresses.
fn client(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// A server that answers with the path, or never for the path `/wait`.
async fn start(limits: Limits) -> SocketAddr {
    start_with(limits, CancellationToken::new()).await
}

async fn start_with(limits: Limits, drain: CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = Server {
        listener: listener.into(),
        transport: Arc::new(ArcSwap::from_pointee(Transport::Plain)),
        limits,
        shutdown: Shutdown {
            drain,
            stop: CancellationToken::new(),
        },
    };
    let answer = |request: Request<Incoming>, _: Arc<Peer>| async move {
        let path = request.uri().path().to_owned();
        if path == "/wait" {
            std::future::pending::<()>().await;
        }
        Response::new(Full::new(Bytes::from(path)))
    };
    tokio::spawn(server.run(answer));
    addr
}

async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    socket.connect(to).await.unwrap()
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
}

/// Whether the request is answered; else the connection was closed.
async fn answered(stream: &mut TcpStream, path: &str) -> bool {
    ask(stream, path).await;
    let mut status = [0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut status)).await;
    read.unwrap().is_ok() && status.ends_with(b"200")
}

async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is as good as an end.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("the connection stays open");
}

#[tokio::test]
async fn draining_port_answers_and_asks_to_close() {
    let drain = CancellationToken::new();
    let port = start_with(small(), drain.clone()).await;
    let mut open = connect(client(1), port).await;
    assert!(answered(&mut open, "/before").await);
    let mut rest = [0; 1024];
    let read = open.read(&mut rest).await.unwrap();
    assert!(!String::from_utf8_lossy(&rest[..read]).contains("connection: close"));

    drain.cancel();
    // Whoever has just sent a request is answered, on an old connection and on a new one.
    for stream in [&mut open, &mut connect(client(2), port).await] {
        ask(stream, "/after").await;
        let mut response = String::new();
        let read = stream.read_to_string(&mut response);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
}

fn small() -> Limits {
    Limits {
        connections: 8,
        connections_per_peer: 4,
        ..Limits::reviews()
    }
}

#[tokio::test]
async fn idle_connections_never_stop_others() {
    let port = start(small()).await;
    let mut quiet = connect(client(1), port).await;
    assert!(answered(&mut quiet, "/first").await);
    let mut idle = Vec::new();
    for round in 0..5 {
        for attacker in 2..6 {
            idle.push(connect(client(attacker), port).await);
        }
        let mut honest = connect(client(100), port).await;
        assert!(answered(&mut honest, "/new").await, "{round}");
    }
    closed(&mut idle[0]).await;
    // A client with one connection keeps it, though it was silent for longest.
    let mut rest = [0; 1024];
    let _ = quiet.read(&mut rest).await.unwrap();
    assert!(answered(&mut quiet, "/again").await);
}

#[tokio::test]
async fn a_client_with_all_its_connections_busy_gets_no_more() {
    let port = start(small()).await;
    let mut busy = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(client(2), port).await;
        ask(&mut stream, "/wait").await;
        busy.push(stream);
    }
    // Connections are busy once their request was read, which takes a moment.
    loop {
        let mut more = connect(client(2), port).await;
        let mut byte = [0];
        let wait = tokio::time::timeout(Duration::from_millis(50), more.read(&mut byte)).await;
        if matches!(wait, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    let mut other = connect(client(3), port).await;
    assert!(answered(&mut other, "/other").await);
}

#[tokio::test]
async fn a_connection_without_a_request_ends() {
    let limits = Limits {
        first_request: Duration::from_millis(50),
        ..small()
    };
    let port = start(limits).await;
    let mut silent = connect(client(2), port).await;
    closed(&mut silent).await;
    let mut slow = connect(client(2), port).await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
    closed(&mut slow).await;
}

#[tokio::test]
async fn a_connection_without_another_request_ends() {
    let limits = Limits {
        idle: Duration::from_millis(50),
        ..small()
    };
    let port = start(limits).await;
    let mut once = connect(client(2), port).await;
    assert!(answered(&mut once, "/once").await);
    closed(&mut once).await;
}
