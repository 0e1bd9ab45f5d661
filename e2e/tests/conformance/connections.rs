//! R28, R30, R31, and other events on connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use assent_e2e::{
    Delta, Options, Up, Workspace,
    client::{first, node},
    eventually,
};
use assent_proto::v1::{self, ReplicaState};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::{Code, transport::Endpoint};

#[tokio::test]
async fn r28_newest_stream_of_a_replica_wins() {
    let workspace = Workspace::with_policy("r28").await;
    let mut old = workspace.connect("a").await;
    let for_old = old.next().await;
    let second = v1::Node {
        instance_uid: "process-2".into(),
        ..workspace.node("a")
    };
    let mut new = Delta::connect(workspace.channel().await, second).await;
    let for_new = new.next().await;
    assert_ne!(for_new.nonce, for_old.nonce);
    // Its late answer, if it arrives at all, is ignored.
    old.ack_late(&for_old).await;
    assert_eq!(old.ended().await.code(), Code::Aborted);
    drop(old);
    let status = workspace.up.replicas("r28").await;
    assert_eq!(status.replicas.len(), 1);
    let replica = &status.replicas[0];
    assert_eq!(replica.node.as_ref().unwrap().instance_uid, "process-2");
    assert_eq!(
        (replica.state(), replica.version_acked.as_str()),
        (ReplicaState::Behind, "")
    );
    assert_eq!(replica.outstanding_nonce, for_new.nonce);
    // The cleanup of the older one leaves the newer one alone.
    new.ack(&for_new).await;
    new.follow_active(&workspace.key("a"), 1).await;
    new.silent().await;
}

#[tokio::test]
async fn r28_same_name_on_another_server_is_another_replica() {
    let (one, two) = (
        Workspace::with_policy("r28b").await,
        Workspace::with_policy("r28c").await,
    );
    let mut first = one.connect("a").await;
    let response = first.next().await;
    two.connect("a").await.next().await;
    first.ack(&response).await;
    first.follow_active(&one.key("a"), 1).await;
}

#[tokio::test]
async fn r30_vanished_peer_is_detected() {
    let workspace = Workspace::with_policy("r30").await;
    let dead = Arc::new(AtomicBool::new(false));
    let proxy = proxy(workspace.up.discovery, dead.clone()).await;
    let endpoint = Endpoint::from_shared(format!("http://{proxy}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut stream = Delta::connect(channel, workspace.node("a")).await;
    stream.follow_active(&workspace.key("a"), 1).await;
    workspace
        .replica("a", |r| r.state() == ReplicaState::Current)
        .await;
    // From now on every byte is lost, and both sides keep their sockets.
    dead.store(true, Ordering::Relaxed);
    workspace
        .replica("a", |r| r.state() == ReplicaState::Disconnected)
        .await;
}

#[tokio::test]
async fn r31_draining_control_plane_disconnects_its_clients() {
    let mut up = Up::start(Options::default().policy("p")).await;
    let mut stream = Delta::connect(up.channel().await, node("a")).await;
    stream.follow_active("cluster/p", 1).await;
    up.process.signal(15);
    assert_eq!(stream.ended().await.code(), Code::Unavailable);
    assert!(up.process.wait().success());
}

#[tokio::test]
async fn garbage_on_the_port_does_not_affect_others() {
    let workspace = Workspace::with_policy("garbage").await;
    let mut stream = workspace.settled("a").await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame_of_16_mib = [
        &preface[..],
        &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1],
        &[0; 512],
    ]
    .concat();
    let noise: Vec<u8> = (0..100_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let cases: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &preface[..7],
        &frame_of_16_mib,
        &noise,
    ];
    for bytes in cases {
        for read in [false, true] {
            let mut socket = TcpStream::connect(workspace.up.discovery).await.unwrap();
            // It may be closed on us at any byte.
            let _ = socket.write_all(bytes).await;
            if read && !bytes.is_empty() && bytes != &preface[..7] {
                let mut answer = Vec::new();
                let _ =
                    tokio::time::timeout(assent_e2e::QUIET, socket.read_to_end(&mut answer)).await;
            }
        }
    }
    workspace.apply("b", "{}").await;
    stream.follow_active(&workspace.key("b"), 1).await;
    for reason in ["not_http2", "closed", "broken"] {
        let sample = format!("assent_discovery_refused_connections_total{{reason=\"{reason}\"}}");
        let counted = async || workspace.up.metric(&sample).await >= 1.0;
        eventually(&format!("{reason} is counted"), counted).await;
    }
}

#[tokio::test]
async fn malformed_message_is_a_client_error() {
    let workspace = Workspace::with_policy("nonsense").await;
    // Longer than a first message with all that it may hold.
    let request = v1::DeltaPolicyDiscoveryRequest {
        client_address: "x".repeat(9 << 20),
        ..first(workspace.node("a"))
    };
    let refusal = Delta::refusal(workspace.channel().await, request).await;
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
}

/// Forwards bytes until it is told to drop them.
async fn proxy(to: SocketAddr, dead: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(to).await.unwrap();
        let (client_in, client_out) = client.into_split();
        let (server_in, server_out) = server.into_split();
        let up = pass(client_in, server_out, dead.clone());
        let down = pass(server_in, client_out, dead);
        tokio::join!(up, down);
    });
    address
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    dead: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if !dead.load(Ordering::Relaxed) && to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
    // Neither end is closed: the halves stay until the test ends.
    std::future::pending::<()>().await;
}
