#![allow(clippy::unwrap_used)]

use tokio_util::sync::CancellationToken;

use std::net::SocketAddr;

use axum::{
    body::Bytes,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;

/// Well above what anything here takes.
const LONG: Duration = Duration::from_secs(30);

fn impatient() -> Limits {
    Limits {
        connections: assent_serve::Limits {
            first_request: Duration::from_millis(200),
            idle: Duration::from_millis(200),
            ..assent_serve::Limits::reviews()
        },
        request: Duration::from_millis(400),
        ..Limits::default()
    }
}

async fn start(limits: Limits) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { "ok" })).route(
        "/",
        post(|body: Bytes| async move { body.len().to_string() }),
    );
    let shutdown = CancellationToken::new();
    let end = shutdown.clone().into();
    tokio::spawn(serve(listener, router, plain(), limits, end));
    (address, shutdown)
}

/// What comes back until the other side closes the connection.
async fn exchange(address: SocketAddr, parts: &[&[u8]]) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    for part in parts {
        socket.write_all(part).await.unwrap();
    }
    rest(&mut socket).await
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(LONG, socket.read_to_end(&mut text)).await;
    // A reset is an end as well.
    let _ = read.expect("the connection must be closed");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn whoever_says_nothing_or_half_a_head_is_closed() {
    let (address, _shutdown) = start(impatient()).await;
    for parts in [
        &[] as &[&[u8]],
        &[b"GET / HT"],
        &[b"GET / HTTP/1.1\r\na: b\r\n"],
    ] {
        let answer = exchange(address, parts).await;
        assert!(!answer.contains("200"), "{answer}");
    }
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let (address, _shutdown) = start(impatient()).await;
    let answer = exchange(address, &[b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // HTTP/2: the preface and empty settings, and nothing after that.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    exchange(address, &[preface, &[0, 0, 0, 4, 0, 0, 0, 0, 0]]).await;
}

#[tokio::test]
async fn body_that_does_not_come_is_not_waited_for() {
    let (address, _shutdown) = start(impatient()).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc";
    let answer = exchange(address, &[head]).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn bodies_share_a_budget_by_what_has_arrived() {
    let limits = Limits {
        body_bytes: 100_000,
        ..Limits::default()
    };
    let (address, _shutdown) = start(limits).await;
    // Many that announce much and send little leave room.
    let slow = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99000\r\n\r\nabc";
    let mut sockets = Vec::new();
    for _ in 0..20 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(slow).await.unwrap();
        sockets.push(socket);
    }
    let head = |length: usize| {
        format!(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let small = exchange(address, &[head(50_000).as_bytes(), &[b'a'; 50_000]]).await;
    assert!(small.ends_with("50000"), "{small}");
    // One that is too large does not take anybody else's place.
    let large = exchange(address, &[head(200_000).as_bytes(), &[b'a'; 200_000]]).await;
    assert!(!large.contains("200 OK"), "{large}");
    let again = exchange(address, &[head(50_000).as_bytes(), &[b'a'; 50_000]]).await;
    assert!(again.ends_with("50000"), "{again}");
}

#[tokio::test]
async fn pending_answers_are_sent_after_the_shutdown() {
    let (address, shutdown) = start(Limits::default()).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n";
    socket.write_all(head).await.unwrap();
    // It is being answered by now, or is a moment later: both must do.
    tokio::task::yield_now().await;
    socket.write_all(b"abc").await.unwrap();
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    shutdown.cancel();
    rest(&mut socket).await;
    assert!(TcpStream::connect(address).await.is_err());
}
