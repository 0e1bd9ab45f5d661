//! The server: listeners, services, and how it ends.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{body::Body, server::NamedService, service::Routes};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    accept::{Acceptor, Connections},
    connection::Http2,
    discovery::Discovery,
    hub::{Hub, Serving},
    peers::Peers,
    tls::Tls,
};

/// How connections are kept and ended.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often an idle connection is asked whether it lives, and how long it may take to
    /// answer: a peer that vanished is noticed after the sum of both.
    pub keepalive_interval: Duration,
    /// See `keepalive_interval`.
    pub keepalive_timeout: Duration,
    /// How long a connection may take until it speaks HTTP/2, TLS included.
    pub handshake_deadline: Duration,
    /// How long a connection may take until a call on it is authenticated. Health and reflection
    /// need no token, but a connection that has nothing else is closed then.
    pub authentication_deadline: Duration,
    /// A connection without streams and authenticated calls for this long is asked to leave.
    pub idle_limit: Duration,
    /// More connections wait in the kernel's queue.
    pub max_connections: usize,
    /// More connections of one address are refused. Loopback addresses have no limit.
    pub max_connections_per_peer: usize,
    /// Requests at a time on one connection.
    pub max_concurrent_streams: u32,
    /// How long streams live on after GOAWAY was sent.
    pub drain_grace: Duration,
    /// When whatever is left is cut off, counted from the end of `drain_grace`.
    pub drain_deadline: Duration,
}

/// Services to serve beside health and reflection.
#[derive(Clone, Debug, Default)]
pub struct Services {
    routes: Routes,
    names: Vec<&'static str>,
}

/// A task that ends with its owner.
struct AbortOnDrop(JoinHandle<()>);

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptors of this build are broken.
    #[error("failed to set up reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown`, then drains: GOAWAY to every connection, UNAVAILABLE to every
/// stream after a grace, and an end to whatever is left.
pub async fn serve(
    listeners: Vec<TcpListener>,
    tls: Option<Tls>,
    hub: Hub,
    services: Services,
    options: Options,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let (routes, health) = services.finish(&hub)?;
    let health = AbortOnDrop(tokio::spawn(health));
    let tasks = TaskTracker::new();
    let connections = Connections::default();
    let acceptor = Acceptor {
        tls,
        slots: Arc::new(Semaphore::new(
            options.max_connections.min(Semaphore::MAX_PERMITS),
        )),
        peers: Peers::new(options.max_connections_per_peer),
        connections: connections.clone(),
        tasks: tasks.clone(),
        deadline: options.handshake_deadline,
        http2: Http2::new(&options, routes, hub.metrics().clone()),
        metrics: hub.metrics().clone(),
        stop: shutdown.clone(),
    };
    for listener in listeners {
        tasks.spawn(acceptor.clone().run(listener));
    }
    tasks.close();
    tokio::select! {
        // Accepting ends with `shutdown`, connections when their clients have left.
        () = tasks.wait() => {}
        () = drain(&hub, &options, &shutdown) => {}
    }
    drop(health);
    connections.kill_all();
    Ok(())
}

/// Ends when the time for draining is over.
async fn drain(hub: &Hub, options: &Options, shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(options.drain_grace).await;
    hub.set_serving(Serving::Draining);
    tokio::time::sleep(options.drain_deadline).await;
}

/// Services are healthy while streams are accepted.
async fn follow_health(hub: Hub, reporter: HealthReporter, names: Vec<&'static str>) {
    let mut epoch = hub.epoch();
    loop {
        epoch.borrow_and_update();
        let status = match hub.is_synced() && hub.check_serving().is_ok() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for name in names.iter().copied().chain([""]) {
            reporter.set_service_status(name, status).await;
        }
        if epoch.changed().await.is_err() {
            return;
        }
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            // Twice this is below the 40 s in which a vanished peer must be noticed.
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            // A TLS handshake takes two round trips; who needs longer than this is not one
            // of ours.
            handshake_deadline: Duration::from_secs(10),
            // Evaluators call as soon as they are connected. A review of their token takes at
            // most as long as this.
            authentication_deadline: Duration::from_secs(10),
            // Evaluators check their health every 10 s.
            idle_limit: Duration::from_secs(5 * 60),
            max_connections: 20_000,
            // A node with some hundred pods may have one address for all of them.
            max_connections_per_peer: 1_000,
            // An evaluator needs a stream, a health check and a few modules at a time.
            max_concurrent_streams: 100,
            // Long enough to read GOAWAY and to go elsewhere without an error.
            drain_grace: Duration::from_secs(1),
            drain_deadline: Duration::from_secs(10),
        }
    }
}

// === impl Services ===

impl Services {
    /// The discovery service, and nothing else yet.
    pub fn new(discovery: Discovery) -> Self {
        Self::default().with(discovery)
    }

    /// Adds a service.
    #[must_use]
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: tower::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes = self.routes.add_service(service);
        self
    }

    /// Adds health and reflection, which need no token.
    fn finish(self, hub: &Hub) -> Result<(Routes, impl Future<Output = ()> + Send + use<>), Error> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut advertised = self.names.clone();
        advertised.push("grpc.health.v1.Health");
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(assent_proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            advertised
                .iter()
                .fold(builder, |b, name| b.with_service_name(*name))
        };
        let routes = self
            .routes
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        Ok((routes, follow_health(hub.clone(), reporter, self.names)))
    }
}

// === impl AbortOnDrop ===

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
