//! What makes no sense is refused, and counted.

use std::{sync::Arc, time::Duration};

use assent_core::Digest;
use assent_grpc::{Config, Options, Tls, auth::Open, certificate::SelfSignedCa};
use assent_proto::{
    google::rpc,
    v1::{self, module_service_client::ModuleServiceClient},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::support::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn socket(plane: &Plane) -> TcpStream {
    let address = plane.url.trim_start_matches("http://").to_owned();
    TcpStream::connect(address).await.unwrap()
}

/// Sends `bytes` and waits until the other side is done with us.
async fn send(plane: &Plane, bytes: &[u8]) {
    let mut socket = socket(plane).await;
    // It may be closed on us at any byte.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = within(socket.read_to_end(&mut answer)).await;
}

fn connections(reason: &str) -> String {
    format!("refused_connections_total{{reason=\"{reason}\"}}")
}

fn first_messages(reason: &str) -> String {
    format!("first_message_errors_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn connection_without_http2_is_counted() {
    let plane = Plane::synced(&["a"]).await;
    send(&plane, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    send(&plane, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
    plane.counts(&connections("not_http2"), 2).await;

    let mut quitter = socket(&plane).await;
    quitter.write_all(&PREFACE[..7]).await.unwrap();
    drop(quitter);
    plane.counts(&connections("closed"), 1).await;

    let giant_frame = [PREFACE, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[0; 512]].concat();
    send(&plane, &giant_frame).await;
    plane.counts(&connections("broken"), 1).await;

    // Nobody else minds, and who just leaves is not counted.
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    drop(stream);
    plane.counts("streams{policy_server=\"default\"}", 0).await;
    assert_eq!(plane.counted(&connections("broken")), 1);
    assert_eq!(plane.counted(&connections("not_http2")), 2);
}

#[tokio::test]
async fn silent_connection_is_closed() {
    let options = Options {
        max_connections: 2,
        handshake_deadline: Duration::from_millis(200),
        ..Options::default()
    };
    let plane = Plane::start_options(Config::default(), Arc::new(Open), None, options).await;
    plane.publish(mk_snapshot(&["a"]));
    let _silent = socket(&plane).await;
    let mut halting = socket(&plane).await;
    halting.write_all(&PREFACE[..20]).await.unwrap();
    // Both places are taken; this one is served once they are free.
    within(plane.delta(first("r-0"))).await.take().await;
    plane.counts(&connections("too_slow"), 2).await;
}

#[tokio::test]
async fn failed_tls_handshakes_are_counted() {
    let ca = SelfSignedCa::in_memory(Vec::new()).unwrap();
    let (signed, key) = ca.issue_pair(&["discovery.test".into()], None).unwrap();
    let tls = Tls::from_pem(signed.chain_pem.as_bytes(), key.as_bytes()).unwrap();
    let plane = Plane::start_tls(Config::default(), Arc::new(Open), Some(tls)).await;
    send(&plane, PREFACE).await;
    plane.counts(&connections("tls"), 1).await;
    drop(socket(&plane).await);
    plane.counts(&connections("closed"), 1).await;
}

#[tokio::test]
async fn refused_calls_are_counted_by_code() {
    let plane = Plane::synced(&["a"]).await;
    let mut client = plane.client().await;
    let other = v1::PolicyDiscoveryRequest {
        node: Some(v1::Node {
            policy_server: "other".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert!(client.fetch_policies(other).await.is_err());
    let check = v1::HealthCheckRequest::default();
    assert!(client.health_check(check).await.is_err());
    let mut modules = ModuleServiceClient::new(plane.channel().await);
    let fetch = v1::FetchModuleRequest {
        digest: Digest::of(b"missing").to_string(),
        ..Default::default()
    };
    assert!(modules.fetch_module(fetch).await.is_err());
    let calls = |code: &str| format!("refused_calls_total{{code=\"{code}\"}}");
    assert_eq!(plane.counted(&calls("NotFound")), 2);
    assert_eq!(plane.counted(&calls("InvalidArgument")), 1);

    // A good call counts nothing, and a stream is counted as a stream.
    let fetch = v1::PolicyDiscoveryRequest::default();
    assert!(client.fetch_policies(fetch).await.is_ok());
    plane
        .hub
        .set_serving(assent_grpc::Serving::Standby { leader: None });
    let requests = tokio_stream::once(first("r-0"));
    assert!(client.delta_policies(requests).await.is_err());
    assert_eq!(
        plane.counted("refused_streams_total{code=\"Unavailable\"}"),
        1
    );
    assert_eq!(plane.counted(&calls("Unavailable")), 0);
}

#[tokio::test]
async fn bad_first_messages_are_counted_by_reason() {
    let plane = Plane::synced(&["a"]).await;
    let mut large = first("r-0");
    large.node.as_mut().unwrap().engine = "x".repeat(9000);
    let mut many = first("r-0");
    let digest = Digest::of(b"").to_string();
    many.initial_revisions = (0..20_001)
        .map(|n| (n.to_string(), digest.clone()))
        .collect();
    let mut elsewhere = first("r-0");
    elsewhere.node.as_mut().unwrap().policy_server = "other".into();
    let mut endless = first("r-0");
    endless.client_address = "x".repeat(9 << 20);
    for (reason, bad) in [
        ("no_node", Request::default()),
        ("bad_id", first("Not A Name")),
        ("large_node", large),
        ("too_many_held", many),
        ("unknown_server", elsewhere),
        ("unreadable", endless),
    ] {
        plane.delta(bad).await.end().await;
        plane.counts(&first_messages(reason), 1).await;
    }
}

#[tokio::test]
async fn missing_first_message_is_counted() {
    let plane = Plane::start(quick()).await;
    let (_tx, requests) = mpsc::channel::<Request>(1);
    let mut client = plane.client().await;
    let mut silent = client
        .delta_policies(ReceiverStream::new(requests))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        silent.message().await.unwrap_err().code(),
        Code::DeadlineExceeded
    );
    plane.counts(&first_messages("missing"), 1).await;
}

#[tokio::test]
async fn oversized_answers_are_counted() {
    let plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let response = stream.next().await;
    let mut lengthy = ack(&response);
    lengthy.error_detail = Some(rpc::Status {
        message: "x".repeat(5_000),
        ..Default::default()
    });
    stream.send(lengthy).await;
    plane.counts("cut_messages_total", 1).await;
    let flood = async {
        while plane.counted("throttled_total") == 0 {
            for _ in 0..200 {
                stream.send(ack(&response)).await;
            }
        }
    };
    within(flood).await;
    assert_eq!(plane.counted("cut_messages_total"), 1);
}
