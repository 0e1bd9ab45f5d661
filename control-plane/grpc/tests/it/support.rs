use std::{sync::Arc, time::Duration};

use assent_core::{
    Digest, Policy, PolicyKey, Route, RouteState, Snapshot, policy::Content, session::Report,
};
use assent_grpc::{
    Authenticator, Config, ControlPlane, Discovery, Hub, Options, Services, StreamEvent, Tls,
    auth::Open,
    certificate::{Certificates, SelfSignedCa},
    context::Context,
    csds::Csds,
    modules::Modules,
    rollout::Rollout,
    serve,
    status::ClientStatus,
};
use assent_proto::v1::{self, policy_discovery_service_client::PolicyDiscoveryServiceClient};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    context::Live,
    modules::Shelf,
    state::{Board, History},
};

pub(crate) type Request = v1::DeltaPolicyDiscoveryRequest;
pub(crate) type Response = v1::DeltaPolicyDiscoveryResponse;

/// A served hub.
pub(crate) struct Plane {
    pub(crate) hub: Hub,
    pub(crate) events: mpsc::Receiver<StreamEvent>,
    pub(crate) board: Arc<Board>,
    pub(crate) live: Arc<Live>,
    pub(crate) url: String,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

/// One incremental stream.
pub(crate) struct Delta {
    pub(crate) tx: mpsc::Sender<Request>,
    pub(crate) rx: Streaming<Response>,
}

/// Long beyond need: what never comes is a failure, not a test that never ends.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future)
        .await
        .expect("it must happen")
}

pub(crate) fn mk_policy(name: &str, settings: usize) -> Arc<Policy> {
    let content = Content::new(
        Digest::of(name.as_bytes()),
        "wapc",
        vec![b'1'; settings].into(),
    );
    Arc::new(Policy::new(
        PolicyKey::cluster(name),
        1,
        "0a1b2c3d",
        content,
        9,
    ))
}

pub(crate) fn mk_set(policies: &[Arc<Policy>]) -> Arc<Snapshot> {
    let routes = policies
        .iter()
        .map(|p| Route::of(&p.revision, RouteState::Active).into());
    let routes: Vec<_> = routes.collect();
    Arc::new(Snapshot::new(policies.to_vec(), routes))
}

pub(crate) fn mk_snapshot(names: &[&str]) -> Arc<Snapshot> {
    let policies: Vec<_> = names.iter().map(|name| mk_policy(name, 2)).collect();
    mk_set(&policies)
}

pub(crate) fn mk_node(id: &str) -> v1::Node {
    v1::Node {
        id: id.into(),
        instance_uid: format!("{id}-process"),
        ..Default::default()
    }
}

pub(crate) fn first(id: &str) -> Request {
    Request {
        node: Some(mk_node(id)),
        ..Default::default()
    }
}

pub(crate) fn ack(response: &Response) -> Request {
    Request {
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    }
}

pub(crate) fn quick() -> Config {
    Config {
        sync_deadline: Duration::from_millis(300),
        send_deadline: Duration::from_millis(300),
        first_message_deadline: Duration::from_millis(300),
        ..Config::default()
    }
}

// === impl Plane ===

impl Plane {
    pub(crate) async fn start(config: Config) -> Self {
        Self::start_with(config, Arc::new(Open)).await
    }

    /// Synced, with `names` published for the default server.
    pub(crate) async fn synced(names: &[&str]) -> Self {
        let plane = Self::start(Config::default()).await;
        plane.publish(mk_snapshot(names));
        plane.hub.set_synced();
        plane
    }

    pub(crate) async fn start_with(config: Config, auth: Arc<dyn Authenticator>) -> Self {
        Self::start_tls(config, auth, None).await
    }

    pub(crate) async fn start_tls(
        config: Config,
        auth: Arc<dyn Authenticator>,
        tls: Option<Tls>,
    ) -> Self {
        let options = Options {
            drain_grace: Duration::from_millis(50),
            ..Options::default()
        };
        Self::start_options(config, auth, tls, options).await
    }

    pub(crate) async fn start_options(
        config: Config,
        auth: Arc<dyn Authenticator>,
        tls: Option<Tls>,
        options: Options,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tx, events) = mpsc::channel(1024);
        let control_plane = ControlPlane {
            id: "cp-0".into(),
            version: "test".into(),
            lease_transitions: 3,
        };
        let hub = Hub::new(config, control_plane, tx);
        let board = Board::new();
        let live = Arc::new(Live::default());
        let ca = Arc::new(SelfSignedCa::in_memory(vec!["evaluator.test".into()]).unwrap());
        let services = Services::new(Discovery::new(hub.clone(), auth.clone()))
            .with(Modules::new(hub.clone(), auth.clone(), Arc::new(Shelf)))
            .with(ClientStatus::new(hub.clone(), auth.clone(), board.clone()))
            .with(Csds::new(hub.clone(), auth.clone(), board.clone()))
            .with(Rollout::new(hub.clone(), auth.clone(), Arc::new(History)))
            .with(Context::new(hub.clone(), auth.clone(), live.clone()))
            .with(Certificates::new(hub.clone(), auth, ca));
        let shutdown = CancellationToken::new();
        let serving = serve(
            vec![listener],
            tls,
            hub.clone(),
            services,
            options,
            shutdown.clone(),
        );
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self {
            hub,
            events,
            board,
            live,
            url,
            shutdown,
            task,
        }
    }

    pub(crate) fn publish(&self, snapshot: Arc<Snapshot>) {
        self.hub
            .publish("default", snapshot, std::time::SystemTime::now());
    }

    /// The value of a series without its prefix, 0 if there is none.
    pub(crate) fn counted(&self, series: &str) -> u64 {
        let mut registry = Registry::default();
        self.hub.metrics().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = format!("discovery_{series} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// Waits until a series has this value.
    pub(crate) async fn counts(&self, series: &str, value: u64) {
        let reached = async {
            while self.counted(series) != value {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
        let is = self.counted(series);
        assert!(reached.is_ok(), "{series} is {is} and not {value}");
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::new(self.url.clone())
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn client(&self) -> PolicyDiscoveryServiceClient<Channel> {
        PolicyDiscoveryServiceClient::new(self.channel().await)
    }

    pub(crate) async fn delta(&self, first: Request) -> Delta {
        Delta::open(&mut self.client().await, first).await
    }

    /// The next thing that a stream said about its state.
    pub(crate) async fn report(&mut self) -> Report {
        loop {
            if let StreamEvent::Reported { report, .. } = within(self.events.recv()).await.unwrap()
            {
                return report;
            }
        }
    }

    /// Skips until a stream closes, and says which.
    pub(crate) async fn closed(&mut self) -> u64 {
        loop {
            if let StreamEvent::Closed { stream, .. } = within(self.events.recv()).await.unwrap() {
                return stream;
            }
        }
    }
}

// === impl Delta ===

impl Delta {
    pub(crate) async fn open(
        client: &mut PolicyDiscoveryServiceClient<Channel>,
        first: Request,
    ) -> Self {
        let (tx, requests) = mpsc::channel(16);
        tx.send(first).await.unwrap();
        let rx = client
            .delta_policies(ReceiverStream::new(requests))
            .await
            .unwrap()
            .into_inner();
        Self { tx, rx }
    }

    pub(crate) async fn next(&mut self) -> Response {
        let message = within(self.rx.message()).await.unwrap();
        message.expect("the stream must go on")
    }

    pub(crate) async fn send(&self, request: Request) {
        self.tx.send(request).await.unwrap();
    }

    /// Takes the next response and acknowledges it.
    pub(crate) async fn take(&mut self) -> Response {
        let response = self.next().await;
        self.send(ack(&response)).await;
        response
    }

    /// Reads to the end, which must be an error.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            match within(self.rx.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::new(Code::Ok, ""),
                Err(status) => return status,
            }
        }
    }
}
