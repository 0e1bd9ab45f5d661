use std::{fs, sync::Arc};

use assent_grpc::{Config, auth::StaticTokens};
use assent_proto::v1;
use tonic::{Code, Request as Call};

use crate::support::*;

async fn guarded() -> (Plane, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "anyone\nbound,r-0\n").unwrap();
    let tokens = StaticTokens::load(path).unwrap();
    let plane = Plane::start_with(Config::default(), Arc::new(tokens)).await;
    plane.publish(mk_snapshot(&["a"]));
    plane.hub.set_synced();
    (plane, dir)
}

fn with_token<T>(message: T, token: &str) -> Call<T> {
    let mut call = Call::new(message);
    let value = format!("Bearer {token}").parse().unwrap();
    call.metadata_mut().insert("authorization", value);
    call
}

async fn open(plane: &Plane, id: &str, token: &str) -> Code {
    let requests = with_token(tokio_stream::once(first(id)), token);
    match plane.client().await.delta_policies(requests).await {
        Err(status) => status.code(),
        Ok(stream) => stream
            .into_inner()
            .message()
            .await
            .map_or_else(|s| s.code(), |_| Code::Ok),
    }
}

#[tokio::test]
async fn streams_need_a_token_of_that_replica() {
    let (mut plane, _dir) = guarded().await;
    assert_eq!(open(&plane, "r-0", "wrong").await, Code::Unauthenticated);
    let requests = tokio_stream::once(first("r-0"));
    let status = plane
        .client()
        .await
        .delta_policies(requests)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(open(&plane, "r-1", "bound").await, Code::PermissionDenied);
    assert!(plane.notices.try_recv().is_err());
    assert_eq!(open(&plane, "r-0", "bound").await, Code::Ok);
    assert_eq!(open(&plane, "r-1", "anyone").await, Code::Ok);
}

#[tokio::test]
async fn other_calls_need_a_token_too() {
    let (plane, _dir) = guarded().await;
    let mut client = plane.client().await;
    let fetch = v1::PolicyDiscoveryRequest::default();
    let status = client.fetch_policies(fetch.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(
        client
            .fetch_policies(with_token(fetch, "anyone"))
            .await
            .is_ok()
    );
    let check = v1::HealthCheckRequest {
        id: "r-1".into(),
        ..Default::default()
    };
    let status = client.health_check(check.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = client
        .health_check(with_token(check, "bound"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn health_is_open_and_follows_the_hub() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let (plane, _dir) = guarded().await;
    let mut client = HealthClient::new(plane.channel().await);
    let request = HealthCheckRequest {
        service: "assent.discovery.v1.PolicyDiscoveryService".into(),
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    const SERVING: i32 = 1;
    while watch.message().await.unwrap().unwrap().status != SERVING {}
    plane
        .hub
        .set_serving(assent_grpc::Serving::Standby { leader: None });
    while watch.message().await.unwrap().unwrap().status == SERVING {}
}
