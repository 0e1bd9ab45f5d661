//! Wiring: listeners, services, the event loop, and how they end.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use assent_api::{
    ParsedServer,
    parse::{self, ProtectedResources},
};
use assent_controller::{Config, Controller};
use assent_evaluator::Handle;
use assent_grpc::{
    Authenticator, ControlPlane, Hub, Tls,
    auth::{Local, StaticTokens},
    check_exposure, hub, serve,
};
use assent_local::{
    KINDS, LocalApi, LocalBackend, StateStore, api,
    directory::{self, Scan},
    dispatch::{Dispatcher, Table},
};
use assent_modules::{store::Store, vet::Vetter};
use assent_oci::AddressPolicy;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    args::UpArgs,
    endpoints::Endpoints,
    event_loop::EventLoop,
    fleet::Embedded,
    http::{self, Readiness, Web},
    token::{self, WriteToken},
};
use crate::{
    control::Control,
    metrics::Metrics,
    runner::{ModuleAccess, Runner},
    servers,
    services::{Blobs, Sources},
    vetting::{Artefacts, Compiler, DeclaredSources, Vetting},
};

/// Stream events that may wait for the event loop; when there is no room the stream waits.
const STREAM_EVENTS: usize = 4_096;

/// How often certificate files are checked: they are renewed days before they expire.
const CERTIFICATE_POLL: Duration = Duration::from_secs(10);

/// Calls at a time on one connection from this machine.
const LOOPBACK_STREAMS: u32 = 10_000;

/// A standalone control plane that is running.
pub struct Running {
    /// Queries and requests.
    pub control: Control,
    /// The address that evaluators connect to.
    pub discovery: SocketAddr,
    /// The address of the HTTP server.
    pub http: SocketAddr,
    evaluators: Vec<Handle>,
    shutdown: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
    _write_token: Option<WriteToken>,
    /// Removed at the end if no directory was given.
    _scratch: Option<tempfile::TempDir>,
}

/// Starts everything. `vetter` is the command that vets modules.
pub async fn start(args: UpArgs, vetter: Vetter) -> anyhow::Result<Running> {
    let UpArgs {
        policies,
        replicas,
        state,
        discovery,
        http,
        tls_cert,
        tls_key,
        token_file,
        max_connection_streams,
        drain_seconds,
        replica_grace,
        send_deadline,
        sync_deadline,
        allow_mass_removal,
        protected_resources,
        max_policies_per_namespace,
    } = args;
    let tls = tls_cert.zip(tls_key);
    check_exposure(discovery, tls.is_some(), token_file.is_some())?;
    anyhow::ensure!(
        http.ip().is_loopback(),
        "--http {http} is not on loopback: /admit and /status are for this machine only"
    );
    let (state, scratch) = state_directory(state)?;
    let policies = std::path::absolute(&policies).context("failed to resolve --policies")?;
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();

    let (streams, streams_rx) = mpsc::channel(STREAM_EVENTS);
    let config = hub::Config {
        sync_deadline,
        send_deadline,
        ..hub::Config::default()
    };
    let hub = Hub::new(config, identity(), streams);
    let metrics = Metrics::default();
    metrics.leader.set(1);
    let store = Store::open(&state).context("failed to open the module store")?;
    let registry = Arc::new(registry(&hub, &metrics, &store));

    let (vetted, vetted_rx) = mpsc::channel(64);
    let compiler = Compiler::open(&state, store.clone(), vetter, metrics.clone())?;
    let artefacts = Artefacts::new(compiler);
    let vetting = Vetting::new(artefacts.clone(), vetted);
    let options = api::Options {
        parse: parse_options(&protected_resources),
        allow_mass_removal,
    };
    let config = Config {
        parse: parse_options(&protected_resources),
        kinds: KINDS.to_vec(),
        drain: drain_seconds,
        grace: replica_grace,
        sync_deadline,
        max_policies_per_namespace: (max_policies_per_namespace > 0)
            .then_some(max_policies_per_namespace),
    };
    let modules = store
        .list()
        .await
        .context("failed to list the module store")?;
    let controller = Controller::new(LocalBackend, config, modules.into_iter().collect());
    let api = LocalApi::new(open_state(&state)?, options);
    let access = module_access(policies.clone());
    let runner = Runner::new(hub.clone(), metrics.clone(), vetting, access);
    let changes = runner.changes();

    let (queries, queries_rx) = mpsc::channel(256);
    let control = Control::new(queries, changes);
    let endpoints = Endpoints::default();
    let (routes_tx, routes) = watch::channel(Table::default());
    let (readiness_tx, readiness) = watch::channel(Readiness::default());
    let (scans, scans_rx) = mpsc::channel(1);
    let event_loop = EventLoop {
        controller,
        api,
        runner,
        metrics,
        hub: hub.clone(),
        artefacts: artefacts.clone(),
        replicas,
        endpoints: endpoints.clone(),
        routes: routes_tx,
        readiness: readiness_tx,
        scans: scans_rx,
        streams: streams_rx,
        vetted: vetted_rx,
        queries: queries_rx,
        routed: Vec::new(),
    };
    tasks.spawn(event_loop.run(shutdown.clone()));
    let (making, stop) = (artefacts.run(), shutdown.clone());
    tasks.spawn(async move {
        stop.run_until_cancelled(making).await;
        Ok(())
    });
    let watched = directory::Options {
        parse: parse_options(&protected_resources),
        ..directory::Options::new(policies)
    };
    spawn_watch(&mut tasks, watched, scans);

    let secrets = Sources {
        hub: hub.clone(),
        control: control.clone(),
        blobs: Arc::new(Blobs(store)),
        signer: super::services::certificate_authority(&state)?,
    };
    let secured = tls.is_some() || token_file.is_some();
    let tls = tls
        .map(|(cert, key)| load_tls(&mut tasks, cert, key, &shutdown))
        .transpose()?;
    let listener = bind(discovery, "--discovery").await?;
    let discovery = listener.local_addr()?;
    let (authenticator, write_token) = authenticator(token_file, &state, discovery)?;
    spawn_discovery(
        &mut tasks,
        listener,
        tls,
        &secrets,
        authenticator,
        max_connection_streams,
        &shutdown,
    );
    let embedded = embedded(
        &mut tasks, secured, discovery, &state, replicas, &secrets, &shutdown,
    )
    .await?;

    let web = Web {
        control: control.clone(),
        registry,
        routes,
        dispatcher: Arc::new(Dispatcher::new(endpoints)),
        readiness,
    };
    let listener = bind(http, "--http").await?;
    let http = listener.local_addr()?;
    let stop = shutdown.clone();
    tasks.spawn(async move {
        http::serve(listener, web, stop).await;
        Ok(())
    });

    let evaluators = embedded.start().await?;
    info!(%discovery, %http, replicas, state = %state.display(), "running");
    Ok(Running {
        control,
        discovery,
        http,
        evaluators,
        shutdown,
        tasks,
        _write_token: write_token,
        _scratch: scratch,
    })
}

// === impl Running ===

impl Running {
    /// Completes when an essential task ended, which is an error.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Ok(()))) | None => {
                anyhow::anyhow!("a part of the control plane ended by itself")
            }
            Some(Ok(Err(error))) => error,
            Some(Err(panic)) => panic.into(),
        }
    }

    /// Shuts down: closes streams, stops evaluators, leaves the state on disk.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let evaluators = self.evaluators.drain(..).map(Handle::shutdown);
        futures::future::join_all(evaluators).await;
        // Longer than any drain; connections that hang then are cut off.
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(5), ended)
            .await
            .is_err()
        {
            warn!("some connections did not end in time and were cut off");
        }
    }
}

fn identity() -> ControlPlane {
    ControlPlane {
        id: "standalone".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        lease_transitions: 0,
    }
}

fn parse_options(protected: &ProtectedResources) -> parse::Options {
    parse::Options {
        standalone: true,
        protected_resources: protected.clone(),
        ..parse::Options::default()
    }
}

fn registry(hub: &Hub, metrics: &Metrics, store: &Store) -> Registry {
    let mut registry = Registry::with_prefix("assent");
    hub.metrics().register(&mut registry);
    store.register(&mut registry);
    metrics.register(&mut registry);
    registry
}

fn state_directory(state: Option<PathBuf>) -> anyhow::Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(state) = state {
        return Ok((std::path::absolute(state)?, None));
    }
    let scratch = tempfile::Builder::new().prefix("assent-").tempdir();
    let scratch =
        scratch.context("failed to create a directory for state; name one with --state")?;
    Ok((scratch.path().to_owned(), Some(scratch)))
}

fn open_state(state: &Path) -> anyhow::Result<StateStore> {
    let (store, damaged) = StateStore::open(state)?;
    for record in damaged {
        tracing::error!(
            file = %record.file.display(),
            kept_as = %record.kept_as.display(),
            "a stored policy cannot be read and starts from nothing: {}",
            record.error
        );
    }
    Ok(store)
}

/// Modules may come from files and from any address: the author of a policy owns the machine.
fn module_access(policies: PathBuf) -> ModuleAccess {
    ModuleAccess {
        files: Some(policies),
        addresses: AddressPolicy::LOCAL,
        sources: Arc::new(|server: Option<&ParsedServer>| {
            DeclaredSources::Given(Box::new(servers::sources(server)))
        }),
    }
}

/// The tokens of a file or, if there is none, a new one for whoever changes policies.
fn authenticator(
    token_file: Option<PathBuf>,
    state: &Path,
    discovery: SocketAddr,
) -> anyhow::Result<(Arc<dyn Authenticator>, Option<WriteToken>)> {
    if let Some(path) = token_file {
        return Ok((Arc::new(StaticTokens::load(path)?), None));
    }
    let token = WriteToken::create(state, discovery)?;
    Ok((Arc::new(Local::new(&token.token)), Some(token)))
}

fn load_tls(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    cert: PathBuf,
    key: PathBuf,
    shutdown: &CancellationToken,
) -> anyhow::Result<Tls> {
    let tls = Tls::from_files(&cert, &key).context("failed to set up TLS for --discovery")?;
    let (reloaded, stop) = (tls.clone(), shutdown.clone());
    tasks.spawn(async move {
        stop.run_until_cancelled(follow_files(reloaded, cert, key))
            .await;
        Ok(())
    });
    Ok(tls)
}

async fn follow_files(tls: Tls, cert: PathBuf, key: PathBuf) {
    let mut seen = modified(&cert, &key);
    loop {
        tokio::time::sleep(CERTIFICATE_POLL).await;
        let now = modified(&cert, &key);
        if now == seen {
            continue;
        }
        // Two files are never replaced at once: a pair that does not match is read again.
        match reload(&tls, &cert, &key) {
            Ok(()) => seen = now,
            Err(error) => warn!("keeping the certificate that was read before: {error:#}"),
        }
    }
}

fn reload(tls: &Tls, cert: &Path, key: &Path) -> anyhow::Result<()> {
    tls.replace_pem(&std::fs::read(cert)?, &std::fs::read(key)?)?;
    info!("certificate reloaded");
    Ok(())
}

fn modified(cert: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    [time(cert), time(key)]
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener
        .with_context(|| format!("failed to listen on {flag} {address}; is another one running?"))
}

fn spawn_watch(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    options: directory::Options,
    scans: mpsc::Sender<Scan>,
) {
    tasks.spawn(async move {
        directory::watch(options, scans).await;
        Ok(())
    });
}

fn spawn_discovery(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    listener: TcpListener,
    tls: Option<Tls>,
    sources: &Sources,
    authenticator: Arc<dyn Authenticator>,
    max_connection_streams: Option<u32>,
    shutdown: &CancellationToken,
) {
    let hub = sources.hub.clone();
    let services = sources.services(authenticator);
    let stop = shutdown.clone();
    let mut options = serve::Options::default();
    // On loopback a connection may be that of many replicas: a proxy's, or a load client's.
    let address = listener.local_addr();
    if address.is_ok_and(|address| address.ip().is_loopback()) {
        options.max_concurrent_streams = LOOPBACK_STREAMS;
    }
    if let Some(streams) = max_connection_streams {
        options.max_concurrent_streams = streams;
    }
    tasks.spawn(async move {
        serve::serve(vec![listener], tls, hub, services, options, stop).await?;
        Ok(())
    });
}

/// Embedded evaluators connect to the discovery port or, if that requires TLS or a token, to
/// a port of their own with a token that only this process knows.
async fn embedded(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    secured: bool,
    discovery: SocketAddr,
    state: &Path,
    replicas: u16,
    sources: &Sources,
    shutdown: &CancellationToken,
) -> anyhow::Result<Embedded> {
    let plain = Embedded {
        discovery,
        token_file: None,
        state: state.to_owned(),
        replicas,
    };
    if !secured || replicas == 0 {
        return Ok(plain);
    }
    let token_file = token::internal(state)?;
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "loopback").await?;
    let discovery = listener.local_addr()?;
    let tokens = Arc::new(StaticTokens::load(&token_file)?);
    spawn_discovery(tasks, listener, None, sources, tokens, None, shutdown);
    Ok(Embedded {
        discovery,
        token_file: Some(token_file),
        ..plain
    })
}
