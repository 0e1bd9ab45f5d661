use assent_core::Digest;
use assent_grpc::{Config, ControlPlane, Serving, StreamEvent};
use assent_proto::{google::rpc, v1};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::support::*;

fn revisions(response: &Response) -> Vec<&str> {
    response
        .policies
        .iter()
        .map(|p| p.revision.as_str())
        .collect()
}

#[tokio::test]
async fn a_new_client_gets_everything_then_differences() {
    let mut plane = Plane::synced(&["a", "b"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let response = stream.take().await;
    assert_eq!(
        revisions(&response),
        ["cluster/a/1-0a1b2c3d", "cluster/b/1-0a1b2c3d"]
    );
    assert_eq!(response.routes.len(), 2);
    let control_plane = response.control_plane.clone().unwrap();
    assert_eq!(
        (&*control_plane.id, control_plane.lease_transitions),
        ("cp-0", 3)
    );
    assert!(response.published_at.is_some());

    let opened = plane.events.recv().await.unwrap();
    assert!(matches!(opened, StreamEvent::Opened { node, .. } if node.id == "r-0"));
    let sent = plane.report().await;
    assert_eq!(sent.outstanding.unwrap().to_string(), response.nonce);
    let acked = plane.report().await;
    assert_eq!(acked.acked.unwrap().to_string(), response.version_info);

    plane.publish(mk_snapshot(&["b", "c"]));
    let response = stream.take().await;
    assert_eq!(revisions(&response), ["cluster/c/1-0a1b2c3d"]);
    assert_eq!(response.removed_revisions, ["cluster/a/1-0a1b2c3d"]);
    assert_eq!(response.removed_routes, ["cluster/a/1-0a1b2c3d"]);
}

#[tokio::test]
async fn an_empty_set_is_an_answer() {
    let plane = Plane::synced(&[]).await;
    let response = plane.delta(first("r-0")).await.next().await;
    assert!(response.policies.is_empty() && !response.no_change);
    assert_eq!(response.version_info.len(), 64);
}

#[tokio::test]
async fn one_response_is_outstanding_and_the_newest_follows() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let response = stream.next().await;
    for names in [&["a", "b"][..], &["a", "b", "c"], &["a", "z"]] {
        plane.publish(mk_snapshot(names));
    }
    stream.send(ack(&response)).await;
    let response = stream.take().await;
    assert_eq!(revisions(&response), ["cluster/z/1-0a1b2c3d"]);
    // Nothing else came: the next response is the next change's.
    while plane.report().await.outstanding.is_some() {}
    plane.publish(mk_snapshot(&["a"]));
    assert_eq!(
        stream.take().await.removed_revisions,
        ["cluster/z/1-0a1b2c3d"]
    );
}

#[tokio::test]
async fn streams_are_held_until_something_is_published() {
    let plane = Plane::start(Config::default()).await;
    let mut unknown = plane.delta(first("r-0")).await;
    plane.hub.add_server("default");
    plane.hub.set_synced();
    let mut known = plane.delta(first("r-1")).await;
    plane.publish(mk_snapshot(&["a"]));
    assert_eq!(unknown.next().await.policies.len(), 1);
    assert_eq!(known.next().await.policies.len(), 1);
}

#[tokio::test]
async fn held_stream_ends_with_unavailable_after_the_deadline() {
    let plane = Plane::start(quick()).await;
    let status = plane.delta(first("r-0")).await.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    plane.hub.add_server("default");
    let status = plane.delta(first("r-0")).await.end().await;
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn an_unknown_server_is_not_found_and_a_removed_one_too() {
    let plane = Plane::synced(&["a"]).await;
    let mut request = first("r-0");
    request.node.as_mut().unwrap().policy_server = "other".into();
    let status = plane.delta(request).await.end().await;
    assert_eq!(status.code(), Code::NotFound);
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    plane.hub.remove_server("default");
    assert_eq!(stream.end().await.code(), Code::NotFound);
}

#[tokio::test]
async fn a_reconnect_with_the_current_set_gets_no_resources() {
    let plane = Plane::synced(&["a"]).await;
    let snapshot = mk_snapshot(&["a"]);
    let held = snapshot
        .policies()
        .map(|p| (p.revision.to_string(), p.content_digest.to_string()));
    let mut request = first("r-0");
    request.initial_revisions = held.collect();
    request.version_info = snapshot.version().to_string();
    // R5: a nonce of an earlier stream means nothing in a first message.
    request.response_nonce = "1-1".into();
    let response = plane.delta(request.clone()).await.next().await;
    assert!(response.no_change && response.policies.is_empty() && response.routes.is_empty());

    // Where map and version disagree, the map wins.
    let other = Digest::of(b"other").to_string();
    request.initial_revisions = [("cluster/x/1-0".to_owned(), other)].into();
    let response = plane.delta(request).await.next().await;
    assert!(!response.no_change);
    assert_eq!(response.removed_revisions, ["cluster/x/1-0"]);
    assert_eq!((response.policies.len(), response.routes.len()), (1, 1));
}

#[tokio::test]
async fn a_refused_version_is_not_sent_again() {
    let mut plane = Plane::synced(&["a", "b"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let response = stream.next().await;
    let mut nack = ack(&response);
    nack.error_detail = Some(rpc::Status {
        code: 3,
        message: "x".repeat(10_000),
        ..Default::default()
    });
    nack.rejected = vec![v1::RejectedPolicy {
        revision: "cluster/b/1-0a1b2c3d".into(),
        stage: v1::Stage::Compile.into(),
        ..Default::default()
    }];
    stream.send(nack).await;
    assert!(plane.report().await.outstanding.is_some());
    let refused = plane.report().await.refused.unwrap();
    assert_eq!(
        (refused.whole, refused.failure.message.len()),
        (false, 4096)
    );
    plane.publish(mk_snapshot(&["a", "b", "c"]));
    assert_eq!(revisions(&stream.next().await), ["cluster/c/1-0a1b2c3d"]);
}

#[tokio::test]
async fn a_nonce_that_was_never_issued_is_a_protocol_error() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    let response = stream.next().await;
    plane.report().await;
    for nonce in ["nonsense", "1-1"] {
        let mut request = ack(&response);
        request.response_nonce = nonce.into();
        stream.send(request).await;
    }
    assert_eq!(plane.report().await.protocol_errors, 1);
    let report = plane.report().await;
    assert_eq!((report.protocol_errors, report.acked), (2, None));
}

#[tokio::test]
async fn the_newest_stream_of_a_replica_wins() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut old = plane.delta(first("r-0")).await;
    old.take().await;
    let mut new = plane.delta(first("r-0")).await;
    new.take().await;
    assert_eq!(old.end().await.code(), Code::Aborted);
    let closed = plane.closed().await;
    plane.publish(mk_snapshot(&["b"]));
    assert_eq!(new.take().await.policies.len(), 1);
    assert_eq!(plane.hub.stream_count(), 1);
    drop(new);
    assert!(plane.closed().await > closed);
}

#[tokio::test]
async fn a_half_closed_stream_gets_what_is_due() {
    let plane = Plane::synced(&["a"]).await;
    let mut client = plane.client().await;
    let requests = tokio_stream::once(first("r-0"));
    let mut responses = client.delta_policies(requests).await.unwrap().into_inner();
    assert_eq!(
        responses.message().await.unwrap().unwrap().policies.len(),
        1
    );
    assert!(responses.message().await.unwrap().is_none());
}

#[tokio::test]
async fn state_of_the_world_sends_nothing_to_a_current_client() {
    let mut plane = Plane::synced(&["a"]).await;
    let mut client = plane.client().await;
    let (tx, requests) = mpsc::channel(4);
    let first = v1::PolicyDiscoveryRequest {
        node: Some(mk_node("r-0")),
        version_info: mk_snapshot(&["a"]).version().to_string(),
        ..Default::default()
    };
    tx.send(first).await.unwrap();
    let responses = client.stream_policies(ReceiverStream::new(requests)).await;
    let mut responses = responses.unwrap().into_inner();
    assert!(plane.report().await.acked.is_some());
    plane.publish(mk_snapshot(&["a", "b"]));
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!((response.policies.len(), response.routes.len()), (2, 2));
    assert_eq!(
        response.version_info,
        mk_snapshot(&["a", "b"]).version().to_string()
    );
}

#[tokio::test]
async fn fetch_returns_everything_and_leaves_no_trace() {
    let mut plane = Plane::synced(&["a", "b"]).await;
    let request = v1::PolicyDiscoveryRequest {
        version_info: mk_snapshot(&["a", "b"]).version().to_string(),
        ..Default::default()
    };
    let response = plane
        .client()
        .await
        .fetch_policies(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.policies.len(), 2);
    assert!(plane.events.try_recv().is_err());
    let request = v1::PolicyDiscoveryRequest {
        node: Some(v1::Node {
            policy_server: "other".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let status = plane
        .client()
        .await
        .fetch_policies(request)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn a_standby_names_the_leader() {
    let plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    let leader = Some("https://cp-1:15010".to_owned());
    plane.hub.set_serving(Serving::Standby { leader });
    let open = stream.end().await;
    let requests = tokio_stream::once(first("r-0"));
    let refused = plane
        .client()
        .await
        .delta_policies(requests)
        .await
        .unwrap_err();
    for status in [open, refused] {
        assert_eq!(status.code(), Code::Unavailable);
        let leader = status.metadata().get("assent-leader").unwrap();
        assert_eq!(leader, "https://cp-1:15010");
    }
    plane.hub.set_serving(Serving::Leader);
    plane.delta(first("r-0")).await.take().await;
}

#[tokio::test]
async fn draining_ends_streams_and_the_server() {
    let plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    plane.shutdown.cancel();
    assert_eq!(stream.end().await.code(), Code::Unavailable);
    plane.task.await.unwrap();
}

#[tokio::test]
async fn streams_end_well_at_their_age() {
    let config = Config {
        max_stream_age: Duration::from_millis(300),
        ..Config::default()
    };
    let plane = Plane::start(config).await;
    plane.publish(mk_snapshot(&["a"]));
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    assert_eq!(stream.end().await.code(), Code::Ok);
}

#[tokio::test]
async fn new_lease_is_sent_with_the_next_response_only() {
    let plane = Plane::synced(&["a"]).await;
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    plane.hub.set_control_plane(ControlPlane {
        lease_transitions: 4,
        ..ControlPlane::default()
    });
    plane.publish(mk_snapshot(&["b"]));
    let response = stream.next().await;
    assert_eq!(response.policies.len(), 1);
    assert_eq!(response.control_plane.unwrap().lease_transitions, 4);
}
