use std::{fs, sync::Arc, time::Duration};

use assent_grpc::{
    Access, Authenticator, Config, Options, Principal,
    auth::{Open, StaticTokens},
};
use assent_proto::v1;
use h2::client::SendRequest;
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{support::*, trust::with_token};

const CLOSED: &str = "refused_connections_total{reason=\"unauthenticated\"}";

fn impatient() -> Options {
    Options {
        authentication_deadline: Duration::from_millis(200),
        ..Options::default()
    }
}

/// A connection as HTTP/2 sees it, and when it ends.
async fn connect(plane: &Plane) -> (SendRequest<bytes::Bytes>, JoinHandle<()>) {
    let address = plane.url.strip_prefix("http://").unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    let (requests, connection) = h2::client::handshake(socket).await.unwrap();
    let ended = tokio::spawn(async move { drop(connection.await) });
    (requests, ended)
}

#[tokio::test]
async fn connection_without_an_authenticated_call_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "secret\n").unwrap();
    let tokens = Arc::new(StaticTokens::load(path).unwrap());
    let plane = Plane::start_options(Config::default(), tokens, None, impatient()).await;
    plane.publish(mk_snapshot(&["a"]));
    plane.hub.set_synced();
    // This one has a stream, and keeps it.
    let (answers, requests) = tokio::sync::mpsc::channel(4);
    answers.send(first("r-0")).await.unwrap();
    let call = with_token(ReceiverStream::new(requests), "secret");
    let stream = plane.client().await.delta_policies(call).await;
    let mut stream = stream.unwrap().into_inner();
    let response = within(stream.message()).await.unwrap().unwrap();
    answers.send(ack(&response)).await.unwrap();

    // These have nothing but health, a call with a wrong token, or nothing at all.
    let mut health = HealthClient::new(plane.channel().await);
    let watch = health.watch(HealthCheckRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let wrong = with_token(v1::PolicyDiscoveryRequest::default(), "guess");
    let mut guesser = plane.client().await;
    guesser.fetch_policies(wrong).await.unwrap_err();
    let (_requests, silent) = connect(&plane).await;

    within(silent).await.unwrap();
    while let Ok(Some(_)) = within(watch.message()).await {}
    plane.counts(CLOSED, 3).await;
    plane.publish(mk_snapshot(&["a", "b"]));
    assert!(within(stream.message()).await.unwrap().is_some());
}

#[tokio::test]
async fn streams_of_a_connection_are_limited() {
    let options = Options::default();
    let plane = Plane::start_options(Config::default(), Arc::new(Open), None, options).await;
    let (mut requests, _ended) = connect(&plane).await;
    let call = http::Request::post("http://plane/grpc.health.v1.Health/Check");
    let (answer, _) = requests.send_request(call.body(()).unwrap(), true).unwrap();
    within(answer).await.unwrap();
    assert_eq!(requests.current_max_send_streams(), 100);
}

#[tokio::test]
async fn idle_connection_is_asked_to_leave() {
    let options = Options {
        idle_limit: Duration::from_millis(100),
        ..impatient()
    };
    let plane = Plane::start_options(Config::default(), Arc::new(Open), None, options).await;
    plane.publish(mk_snapshot(&["a"]));
    plane.hub.set_synced();
    let mut busy = plane.delta(first("r-0")).await;
    busy.take().await;
    let (mut requests, ended) = connect(&plane).await;
    let path = "http://plane/assent.discovery.v1.PolicyDiscoveryService/FetchPolicies";
    let call = http::Request::post(path).header("content-type", "application/grpc");
    let call = call.header("te", "trailers").body(()).unwrap();
    let (answer, mut body) = requests.send_request(call, false).unwrap();
    // An empty message.
    let empty = bytes::Bytes::from_static(&[0; 5]);
    body.send_data(empty, true).unwrap();
    within(answer).await.unwrap();
    within(ended).await.unwrap();
    // It was authenticated: it is idle, not a stranger. A stream is in use however quiet it is.
    assert_eq!(plane.counted(CLOSED), 0);
    plane.publish(mk_snapshot(&["a", "b"]));
    busy.take().await;
}

/// Lets everyone in, but could not do so again, and reports when that was asked.
struct Flaky(tokio::sync::Notify);

#[tonic::async_trait]
impl Authenticator for Flaky {
    async fn authenticate(
        &self,
        _token: Option<&str>,
        _peer: Option<std::net::SocketAddr>,
        _access: Access,
    ) -> Result<Principal, assent_grpc::auth::Error> {
        let identity = "anyone".to_owned();
        Ok(Principal::Anyone { identity })
    }

    async fn is_available(&self) -> bool {
        self.0.notify_one();
        false
    }
}

#[tokio::test]
async fn stream_outlives_its_age_while_nobody_can_be_authenticated() {
    let flaky = Arc::new(Flaky(tokio::sync::Notify::new()));
    let config = Config {
        max_stream_age: Duration::from_millis(300),
        ..Config::default()
    };
    let plane = Plane::start_with(config, flaky.clone()).await;
    plane.publish(mk_snapshot(&["a"]));
    plane.hub.set_synced();
    let mut stream = plane.delta(first("r-0")).await;
    stream.take().await;
    within(flaky.0.notified()).await;
    plane.publish(mk_snapshot(&["a", "b"]));
    stream.take().await;
}
