//! Wiring: from a configuration to a running evaluator.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use assent_core::fleet::feature;
use assent_proto::v1;
use assent_serve::{Limits, Server, Shutdown};
use assent_wasm::{Abi, Engine, EngineConfig, MemoryBudget};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    active::ActiveSet,
    admin::Admin,
    admission::Handler,
    client::Connector,
    config::{Config, Listen},
    context::{
        self, ContextData, disk, live::RemoteReads, metrics::ContextMetrics, stream::Replication,
    },
    decision_log::DecisionLog,
    evaluation::{Executor, Intake, PolicyStates},
    memory::MemoryPlan,
    metrics::Metrics,
    prepare::{Objects, Preparer},
    readiness::Readiness,
    registries::host_services,
    self_check::SelfCheck,
    store::{self, Crashed, Restored, Seal, Store},
    sync::{DiscoveryClient, keep, machine::Machine},
    tls::Certificates,
};

mod authz;
mod security;

use security::Security;

/// Starts evaluators.
pub struct Evaluator;

/// A running evaluator. Dropping it stops it at once, without a drain.
pub struct Handle {
    listen: SocketAddr,
    authz: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    readiness: Arc<Readiness>,
    drain: CancellationToken,
    stop: CancellationToken,
    drain_time: Duration,
    server: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    store: Option<Arc<Store>>,
    decisions: DecisionLog,
}

/// Why an evaluator can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A port could not be bound.
    #[error("failed to listen for {what}: {source}")]
    Listen {
        /// The purpose of the port.
        what: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// The address of the control plane is invalid.
    #[error("failed to use the discovery address {uri}: {why}")]
    Discovery {
        /// As given.
        uri: http::Uri,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] assent_wasm::EngineError),
    /// Decisions can't be logged as configured.
    #[error("failed to open the decision log: {source}")]
    DecisionLog {
        /// The error.
        source: std::io::Error,
    },
    /// The configuration of registries is invalid.
    #[error(transparent)]
    Registries(#[from] assent_oci::SourcesError),
    /// Another evaluator holds the state directory, or its key can't be used.
    #[error("{0}")]
    State(String),
    /// The certificate can't be used.
    #[error("{0}")]
    Tls(String),
    /// Certificates of clients would not be asked for.
    #[error("failed to require client certificates at {0}: the review port has no TLS")]
    ClientCertificates(SocketAddr),
    /// Reviews would not be encrypted.
    #[error(
        "failed to serve reviews at {0}: plain HTTP is for the loopback interface only; \
         give --tls-cert and --tls-key, or an https:// discovery address that signs certificates"
    )]
    Insecure(SocketAddr),
}

/// Threads that evaluate: enough that some slow policies leave room for the others, few enough
/// that sandboxes stay within the engine's pool.
const THREADS_PER_CORE: usize = 4;
const THREADS_AT_LEAST: usize = 8;

/// Writing a set takes milliseconds; a disk that hangs must not delay the shutdown.
const KEEP_TIME: Duration = Duration::from_secs(5);

/// Health events that may wait: one per revision and start.
const HEALTH_EVENTS: usize = 256;

// === impl Evaluator ===

impl Evaluator {
    /// Binds its ports and starts its tasks on the current runtime. Returns at once; it is
    /// ready once `/readyz` answers 200.
    pub async fn start(config: Config) -> Result<Handle, Error> {
        let Config {
            discovery,
            id,
            policy_server,
            listen,
            advertise,
            admin_listen,
            state,
            state_key,
            ca,
            token_file,
            tls,
            client_ca,
            requests,
            engine,
            memory_budget,
            registries,
            decision_log,
            timings,
        } = config;
        check_discovery(&discovery, ca.is_some())?;
        let (listener, listen) = bind(listen, "reviews")?;
        let admin = admin_listen
            .map(|listen| bind(listen, "probes and metrics"))
            .transpose()?;
        let requests = requests.map(authz::Port::bind).transpose()?;
        let memory = MemoryPlan::detect(memory_budget);
        let engine = match engine {
            Some(engine) => engine,
            None => engine_within(memory)?,
        };
        let services = host_services(registries)?;
        let metrics = Metrics::new();
        let seal = seal(state_key.as_deref(), &policy_server)?;
        let store = open_store(state, seal, &metrics)?;
        let connector = Connector::new(discovery, ca, token_file);
        let readiness = Arc::new(Readiness::default());
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = Vec::new();

        let certificates = Certificates::new(metrics.certificate_expiry.clone());
        let client_certificates = client_ca.is_some();
        let security = Security {
            listen,
            certificates: certificates.clone(),
            files: tls,
            client_ca,
            store: store.clone(),
            connector: connector.clone(),
            id: id.clone(),
            policy_server: policy_server.clone(),
        };
        let (transport, scheme) = security.set_up(&readiness, timings, &mut tasks)?;
        let reached = SocketAddr::new(advertise.unwrap_or(listen.ip()), listen.port());
        let threads = threads();
        let active = Arc::new(ActiveSet::default());
        let decisions = DecisionLog::open(&decision_log, metrics.clone())
            .map_err(|source| Error::DecisionLog { source })?;
        let intake = Intake::new(memory.bodies);
        let executor = Arc::new(Executor::new(metrics.clone(), threads, intake));
        let handler = Handler {
            active: active.clone(),
            executor: executor.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            decisions: decisions.clone(),
            client_certificates,
        };
        let shutdown = Shutdown {
            drain: drain.clone(),
            stop: stop.clone(),
        };
        let server = Server {
            listener: listener.into(),
            transport: transport.clone(),
            limits: Limits::reviews(),
            shutdown: shutdown.clone(),
        };
        let server = tokio::spawn(serve_reviews(server, Arc::new(handler)));
        let authz = requests.as_ref().and_then(authz::Port::addr);
        if let Some(port) = requests {
            let shared = authz::Shared {
                active: active.clone(),
                executor: executor.clone(),
                metrics: metrics.clone(),
                decisions: decisions.clone(),
            };
            let serve = port.serve(shared, transport.clone(), shutdown);
            tasks.push(tokio::spawn(serve));
        }
        let check = SelfCheck {
            port: listen,
            transport,
            certificates,
            readiness: readiness.clone(),
            every: timings.self_check,
        };
        tasks.push(tokio::spawn(check.run()));

        let data = Arc::new(ContextData::default());
        let admin_addr = admin.as_ref().map(|(_, addr)| *addr);
        if let Some((listener, _)) = admin {
            let mut registry = Registry::default();
            metrics.register(&mut registry);
            registry.register_collector(Box::new(ContextMetrics(data.clone())));
            let readiness = readiness.clone();
            let admin = Arc::new(Admin {
                readiness,
                registry,
            });
            tasks.push(tokio::spawn(admin.serve(listener, stop.clone())));
        }

        let (keep, kept) = watch::channel(None);
        let keeper = store
            .clone()
            .map(|store| tokio::spawn(keep::run(store, kept, metrics.clone())));
        let restored = store.as_ref().and_then(|store| restore(store, &metrics));
        let (health_sender, health) = mpsc::channel(HEALTH_EVENTS);
        let context = replication(store.as_deref(), data, &metrics);
        if let Some(store) = store.clone() {
            let keep = disk::run(store, context.clone(), metrics.clone());
            tasks.push(tokio::spawn(keep));
        }
        let node = node(&engine, id, policy_server, format!("{scheme}://{reached}"));
        let live = Arc::default();
        let objects = Objects {
            data: context.data().clone(),
            live: Arc::new(RemoteReads::new(node.clone(), Arc::clone(&live))),
        };
        let sync = DiscoveryClient {
            connector,
            node,
            machine: machine(store.as_deref(), restored.as_ref(), &metrics),
            active,
            // Half of the threads: one slow policy leaves room for the others.
            states: PolicyStates::new(metrics.clone(), threads / 2, engine.memory().clone()),
            preparer: Preparer::new(engine, store.clone(), services, objects),
            context,
            live,
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            health,
            health_sender,
            keep,
            resync: timings.resync,
            ready_without: timings.ready_without_control_plane,
            modules: None,
            loaded: HashMap::new(),
        };
        tasks.push(tokio::spawn(sync.run(restored, stop.clone())));
        tracing::info!(%listen, admin = ?admin_addr, ?authz, ?memory, "evaluator started");
        Ok(Handle {
            listen,
            authz,
            admin: admin_addr,
            readiness,
            drain,
            stop,
            drain_time: timings.drain,
            server: Some(server),
            tasks,
            keeper,
            store,
            decisions,
        })
    }
}

// === impl Handle ===

impl Handle {
    /// Where reviews are answered.
    pub fn listen_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Where Envoy's calls are answered, if on a TCP port.
    pub fn authz_addr(&self) -> Option<SocketAddr> {
        self.authz
    }

    /// Where probes and metrics are answered.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Whether it is ready for requests; the error says why not.
    pub fn ready(&self) -> Result<(), &'static str> {
        self.readiness.check()
    }

    /// Shuts down gracefully: becomes unready at once, answers and follows the stream for the drain time, then ends.
    pub async fn shutdown(mut self) {
        self.readiness.drain();
        self.drain.cancel();
        tracing::info!(seconds = self.drain_time.as_secs_f64(), "draining");
        tokio::time::sleep(self.drain_time).await;
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            let _ = server.await;
        }
        for task in &self.tasks {
            task.abort();
        }
        for task in std::mem::take(&mut self.tasks) {
            let _ = task.await;
        }
        self.close_store().await;
        self.decisions.flush().await;
    }

    /// Waits until the last set is saved. Removes the markers of modules that are still being compiled: they did not
    /// crash the process.
    async fn close_store(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            let _ = tokio::time::timeout(KEEP_TIME, keeper).await;
        }
        if let Some(store) = self.store.take() {
            store.forget_attempts();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.drain.cancel();
        self.stop.cancel();
        for task in self.tasks.iter().chain(&self.server).chain(&self.keeper) {
            task.abort();
        }
    }
}

/// An engine for evaluators of one process to share, whose evaluations stay within the memory of the container or of
/// the machine.
pub fn shared_engine() -> Result<Engine, assent_wasm::EngineError> {
    engine_within(MemoryPlan::detect(None))
}

fn engine_within(memory: MemoryPlan) -> Result<Engine, assent_wasm::EngineError> {
    Engine::new(EngineConfig {
        memory: MemoryBudget::new(memory.evaluations),
        ..EngineConfig::default()
    })
}

async fn serve_reviews(server: Server, handler: Arc<Handler>) {
    let handle = move |request, peer: Arc<assent_serve::Peer>| {
        let handler = handler.clone();
        async move { handler.handle(request, &peer).await }
    };
    server.run(handle).await;
}

fn check_discovery(uri: &http::Uri, has_ca: bool) -> Result<(), Error> {
    let why = match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), None) | (None, _) => {
            "expected http:// or https:// with host and port"
        }
        (Some("https"), Some(_)) if !has_ca => {
            "https:// needs the CA of the control plane: give --ca"
        }
        (Some("http" | "https"), Some(_)) => return Ok(()),
        (Some(_), _) => "expected http:// or https://",
    };
    let uri = uri.clone();
    Err(Error::Discovery { uri, why })
}

fn bind(listen: Listen, what: &'static str) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Listen { what, source };
    let listener = listen.bind().map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    Ok((listener, addr))
}

/// A key that can't be used is a configuration error: without it a forged set might be used.
fn seal(key: Option<&Path>, policy_server: &str) -> Result<Seal, Error> {
    let failed = |error: store::Error| Error::State(error.to_string());
    key.map_or(Ok(Seal::Digest), |path| {
        Seal::read(path, policy_server).map_err(failed)
    })
}

/// A directory that can't be used is not fatal: only the last good set is lost. One that another evaluator uses is a
/// configuration error.
fn open_store(
    state: Option<PathBuf>,
    seal: Seal,
    metrics: &Metrics,
) -> Result<Option<Arc<Store>>, Error> {
    let Some(path) = state else {
        return Ok(None);
    };
    match Store::open(&path, seal) {
        Ok(store) => Ok(Some(Arc::new(store))),
        Err(error @ store::Error::Locked(_)) => Err(Error::State(error.to_string())),
        Err(error) => {
            metrics.state_errors.inc();
            tracing::error!(%error, "failed to open the state directory: a restart will need the control plane");
            Ok(None)
        }
    }
}

/// A state machine with what earlier processes have stored.
fn machine(store: Option<&Store>, restored: Option<&Restored>, metrics: &Metrics) -> Machine {
    let Some(store) = store else {
        return Machine::new(Crashed::default(), 0);
    };
    let term = store.term().unwrap_or_else(|error| {
        metrics.state_errors.inc();
        tracing::error!(%error, "failed to read the last leadership: sets of an older leader are accepted until the next set");
        0
    });
    let served = restored.map(Restored::digests).unwrap_or_default();
    Machine::new(store.crashed(&served), term)
}

/// Objects that earlier processes have kept are served at once, as old as they are.
fn replication(
    store: Option<&Store>,
    data: Arc<ContextData>,
    metrics: &Metrics,
) -> Arc<Replication> {
    let term = store
        .and_then(|store| store.term().ok())
        .unwrap_or_default();
    let mut machine = context::machine::Machine::new(term);
    if let Some(store) = store {
        disk::restore(store, &mut machine, &data, metrics);
    }
    Arc::new(Replication::new(machine, data, metrics.clone()))
}

fn restore(store: &Store, metrics: &Metrics) -> Option<Restored> {
    match store.load() {
        Ok(restored) => restored,
        Err(error) => {
            metrics.state_errors.inc();
            tracing::error!(%error, "failed to load the set on disk; ignoring it");
            None
        }
    }
}

fn node(engine: &Engine, id: String, policy_server: String, endpoint: String) -> v1::Node {
    v1::Node {
        id,
        policy_server,
        instance_uid: uuid::Uuid::new_v4().to_string(),
        evaluator_version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: engine.fingerprint().to_owned(),
        abis: Abi::ALL.iter().map(|abi| abi.as_str().to_owned()).collect(),
        endpoint,
        // Added to the first message of each stream.
        lease_transitions: 0,
        features: vec![feature::CONFIRM.to_owned()],
    }
}

fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * THREADS_PER_CORE).max(THREADS_AT_LEAST)
}
