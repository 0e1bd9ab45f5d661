//! Clients that hold what they do not use: the review port stays open for the others.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use assent_core::RouteState::Active;
use assent_evaluator::{Handle, Listen};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{
    PATIENCE, eventually, guests,
    http::{Client, get},
    peer::{Peer, Stream},
    set::{Revision, full, snapshot},
    start_with,
};

/// Everything of the loopback network is local: a client may have any of its addresses.
const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 66));

async fn serving(one: &Revision) -> (Handle, Peer, Stream) {
    let mut peer = Peer::start().await;
    peer.serve(one);
    let evaluator = start_with(&peer, |_| {}).await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&snapshot(&[(one, Active)]), "n1"))
        .await;
    (evaluator, peer, stream)
}

async fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// The head of a review and the beginning of its body.
async fn begin_review(stream: &mut TcpStream, path: &str, length: &str, begin: &[u8]) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(begin).await.unwrap();
}

#[tokio::test]
async fn slow_bodies_leave_room_for_honest_requests() {
    let one = Revision::new("a", 1, &guests::accept());
    let (evaluator, _peer, _stream) = serving(&one).await;
    let path = format!("/validate/{}", one.path());
    let mut slow = Vec::new();
    for index in 0..124 {
        let mut stream = connect_from(ATTACKER, evaluator.listen_addr()).await;
        let (length, begin): (_, &[u8]) = match index % 2 {
            0 => ("transfer-encoding: chunked", b"1\r\n{\r\n"),
            _ => ("content-length: 7000000", b"{"),
        };
        begin_review(&mut stream, &path, length, begin).await;
        slow.push(stream);
    }
    for _ in 0..20 {
        let mut client = Client::plain(evaluator.listen_addr()).await;
        let (status, answer) = client.review(&path).await;
        assert_eq!(status.as_u16(), 200, "{answer}");
    }
}

#[tokio::test]
async fn large_unfinished_bodies_use_up_the_share_of_their_client_only() {
    let one = Revision::new("a", 1, &guests::accept());
    let (evaluator, _peer, _stream) = serving(&one).await;
    let path = format!("/validate/{}", one.path());
    let begin = vec![b' '; 6 << 20];
    let length = format!("content-length: {}", begin.len() + 1);
    let mut refused = 0;
    let mut held = Vec::new();
    // Enough for all memory that bodies may take, if one client could have it.
    for _ in 0..50 {
        let mut stream = connect_from(ATTACKER, evaluator.listen_addr()).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A refusal may come, and end the connection, before all is written.
        let _ = stream.write_all(&begin).await;
        held.push(stream);
    }
    for stream in &mut held {
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut answer)).await;
        refused += usize::from(matches!(read, Ok(Ok(12)) if answer.ends_with(b"503")));
    }
    assert!(refused > 0);
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, answer) = client.review(&path).await;
    assert_eq!(status.as_u16(), 200, "{answer}");
}

#[tokio::test]
async fn a_port_that_accepts_nobody_is_not_ready() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = listener.try_clone().unwrap();
    let mut peer = Peer::start().await;
    let evaluator = start_with(&peer, |config| {
        config.listen = Listen::Bound(listener);
        config.timings.self_check = Duration::from_millis(10);
    })
    .await;
    let mut stream = peer.stream().await;
    stream
        .applied(full(&assent_core::Snapshot::empty(), "n1"))
        .await;
    let mut admin = Client::plain(evaluator.admin_addr().unwrap()).await;
    eventually("ready", async || {
        admin.send(get("/readyz")).await.0.as_u16() == 200
    })
    .await;
    // As if the task that accepts had ended.
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
    eventually("not ready", async || {
        admin.send(get("/readyz")).await.0.as_u16() == 503
    })
    .await;
    assert_eq!(evaluator.ready(), Err("the review port does not answer"));
}

#[tokio::test]
async fn the_review_port_answers_probes_itself() {
    let one = Revision::new("a", 1, &guests::accept());
    let (evaluator, _peer, _stream) = serving(&one).await;
    let mut client = Client::plain(evaluator.listen_addr()).await;
    let (status, _) = client.send(get("/readyz")).await;
    assert_eq!(status.as_u16(), 200);
}

#[tokio::test]
async fn idle_connections_of_the_admin_port_make_room() {
    let one = Revision::new("a", 1, &guests::accept());
    let (evaluator, _peer, _stream) = serving(&one).await;
    let admin = evaluator.admin_addr().unwrap();
    let mut idle = Vec::new();
    // More than one client may have.
    for _ in 0..80 {
        idle.push(connect_from(ATTACKER, admin).await);
    }
    // The first ones were closed for the last ones.
    let mut byte = [0];
    let ended = tokio::time::timeout(PATIENCE, idle[0].read(&mut byte)).await;
    assert_eq!(ended.unwrap().unwrap_or(0), 0);
    let (status, _) = Client::plain(admin).await.send(get("/livez")).await;
    assert_eq!(status.as_u16(), 200);
}
