use std::time::Duration;

use assent_core::Digest;
use assent_grpc::{Config, StreamEvent};
use assent_proto::v1::{self, policy_discovery_service_client::PolicyDiscoveryServiceClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, transport::Endpoint};

use crate::support::*;

#[tokio::test]
async fn first_messages_are_checked() {
    let plane = Plane::synced(&["a"]).await;
    let mut large = first("r-0");
    large.node.as_mut().unwrap().engine = "x".repeat(9000);
    let mut many = first("r-0");
    let digest = Digest::of(b"").to_string();
    many.initial_revisions = (0..20_001)
        .map(|n| (n.to_string(), digest.clone()))
        .collect();
    for bad in [
        Request::default(),
        first(""),
        first("Not A Name"),
        large,
        many,
    ] {
        let status = plane.delta(bad).await.end().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
}

#[tokio::test]
async fn a_node_may_be_repeated_but_not_changed() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let mut again = ack(&stream.next().await);
    again.node = Some(v1::Node {
        policy_server: "default".into(),
        ..mk_node("r-0")
    });
    stream.send(again).await;
    while plane.report().await.acked.is_none() {}
    stream.send(first("r-1")).await;
    assert_eq!(stream.end().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn silent_client_is_not_waited_for() {
    let plane = Plane::start(quick()).await;
    let (_tx, requests) = mpsc::channel::<Request>(1);
    let stream = plane
        .client()
        .await
        .delta_policies(ReceiverStream::new(requests))
        .await;
    let status = stream.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_large_set_comes_in_parts() {
    let plane = Plane::synced(&[]).await;
    let policies: Vec<_> = (0..10)
        .map(|n| mk_policy(&format!("p{n}"), 1 << 20))
        .collect();
    let set = mk_set(&policies);
    plane.publish(set.clone());
    let mut stream = plane.delta(first("r-0")).await;
    let one = stream.next().await;
    assert!(one.parts > 1);
    let mut received = one.policies.len();
    for part in 2..=one.parts {
        let next = stream.next().await;
        assert_eq!((next.part, next.parts), (part, one.parts));
        assert_eq!(
            (&next.nonce, &next.version_info),
            (&one.nonce, &one.version_info)
        );
        received += next.policies.len();
    }
    assert_eq!(received, 10);
    stream.send(ack(&one)).await;
    plane.publish(mk_set(&policies[1..]));
    assert_eq!(stream.take().await.removed_revisions.len(), 1);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected() {
    let mut plane = Plane::start(quick()).await;
    let policies: Vec<_> = (0..10)
        .map(|n| mk_policy(&format!("p{n}"), 1 << 20))
        .collect();
    plane.publish(mk_set(&policies));
    let endpoint = Endpoint::new(plane.url.clone()).unwrap();
    let endpoint = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(1 << 20);
    let channel = endpoint.connect().await.unwrap();
    let mut client = PolicyDiscoveryServiceClient::new(channel);
    let mut stalled = Delta::open(&mut client, first("r-0")).await;
    let mut healthy = plane.delta(first("r-1")).await;
    let parts = healthy.next().await.parts;
    for _ in 1..parts {
        healthy.next().await;
    }
    plane.closed().await;
    assert_eq!(plane.hub.stream_count(), 1);
    let status = stalled.end().await;
    assert_ne!(status.code(), Code::Ok, "{status:?}");
}

#[tokio::test]
async fn health_checks_are_known_and_forwarded() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    let check = |id: &str| v1::HealthCheckRequest {
        id: id.into(),
        instance_uid: "r-0-process".into(),
        retired_routes: vec![v1::RetiredRouteRequests {
            path: "cluster/a/0-0".into(),
            requests: 4,
        }],
        ..Default::default()
    };
    let mut client = plane.client().await;
    let answer = client
        .health_check(check("r-0"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((answer.known, answer.interval_ms), (true, 10_000));
    assert!(
        !client
            .health_check(check("r-1"))
            .await
            .unwrap()
            .into_inner()
            .known
    );
    assert_eq!(
        client.health_check(check("")).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    loop {
        match plane.events.recv().await.unwrap() {
            StreamEvent::RetiredRequests {
                replica,
                path,
                requests,
                ..
            } => {
                assert_eq!(
                    (&*replica, path.as_str(), requests),
                    ("r-0", "cluster/a/0-0", 4)
                );
                break;
            }
            StreamEvent::Heartbeat { replica, .. } => assert_eq!(&*replica, "r-0"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn only_replicas_that_sent_health_checks_must_continue() {
    let config = Config {
        health_interval: Duration::from_millis(50),
        ..Config::default()
    };
    let plane = Plane::start(config).await;
    plane.publish(mk_snapshot(&["a"]));
    let mut silent = plane.delta(first("r-0")).await;
    let mut checking = plane.delta(first("r-1")).await;
    silent.take().await;
    checking.take().await;
    let check = v1::HealthCheckRequest {
        id: "r-1".into(),
        ..Default::default()
    };
    plane.client().await.health_check(check).await.unwrap();
    assert_eq!(checking.end().await.code(), Code::DeadlineExceeded);
    plane.publish(mk_snapshot(&["b"]));
    assert_eq!(silent.take().await.policies.len(), 1);
}
