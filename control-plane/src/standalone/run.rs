//! Wiring: listeners, services, the event loop, and how they end.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use assent_api::{
    ParsedServer,
    parse::{self, ProtectedResources},
};
use assent_controller::{Config, Controller};
use assent_evaluator::{
    Handle,
    args::authz::{AuthzAddress, AuthzArgs},
};
use assent_grpc::{ControlPlane, Hub, check_exposure, hub};
use assent_local::{
    KINDS, LocalApi, LocalBackend, StateStore, api,
    directory::{self, Scan},
    dispatch::{Dispatcher, Table},
};
use assent_modules::{store::Store, vet::Vetter};
use assent_oci::AddressPolicy;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    args::UpArgs,
    certificates, discovery,
    endpoints::Endpoints,
    event_loop::EventLoop,
    http::{self, Readiness, Web},
    objects::{self, DirectoryReads},
    token::WriteToken,
};
use crate::{
    context::{ContextSource, NoContext},
    control::Control,
    metrics::Metrics,
    runner::{ModuleAccess, Runner},
    servers,
    services::{Blobs, Sources},
    vetting::{Artefacts, Compiler, DeclaredSources, Vetting},
};

/// Stream events that may wait for the event loop; when there is no room the stream waits.
const STREAM_EVENTS: usize = 4_096;

/// Reports of kinds and collections that may wait.
const CONTEXT_EVENTS: usize = 256;

/// Why policies that read Kubernetes objects are refused.
const NO_OBJECTS: &str = "there are no Kubernetes objects here; start `assent up` with --objects and a directory of \
                          them, or use a policy that looks at the request alone";

/// A standalone control plane that is running.
pub struct Running {
    /// Queries and requests.
    pub control: Control,
    /// The address that evaluators connect to.
    pub discovery: SocketAddr,
    /// The address of the HTTP server.
    pub http: SocketAddr,
    /// The TCP address that Envoy asks, if there is one.
    pub authz: Option<SocketAddr>,
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
        objects,
        allow_all_access,
        replicas,
        state,
        discovery,
        http,
        authz,
        decision_log,
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
    check_authz(&authz, replicas)?;
    let (state, scratch) = state_directory(state)?;
    let policies = std::path::absolute(&policies).context("failed to resolve --policies")?;
    let objects = objects.map(objects::directory).transpose()?;
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
        no_context: objects.is_none().then_some(NO_OBJECTS),
    };
    let modules = store
        .list()
        .await
        .context("failed to list the module store")?;
    let controller = Controller::new(LocalBackend, config, modules.into_iter().collect());
    let api = LocalApi::new(open_state(&state)?, options);
    let access = module_access(policies.clone());
    let (context_events, context_events_rx) = mpsc::channel(CONTEXT_EVENTS);
    let reads = Arc::new(DirectoryReads::new(allow_all_access));
    let context: Arc<dyn ContextSource> = match objects {
        Some(path) => {
            let sink = Arc::new(hub.context().clone());
            objects::follow(&mut tasks, path, sink, context_events, reads.clone())
        }
        None => Arc::new(NoContext),
    };
    let runner = Runner::new(hub.clone(), metrics.clone(), vetting, access, context);
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
        context_events: context_events_rx,
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
        reads,
    };
    let secured = tls.is_some() || token_file.is_some();
    let tls = tls
        .map(|(cert, key)| certificates::load(&mut tasks, cert, key, &shutdown))
        .transpose()?;
    let listener = discovery::bind(discovery, "--discovery").await?;
    let discovery = listener.local_addr()?;
    let (authenticator, write_token) = discovery::authenticator(token_file, &state, discovery)?;
    discovery::spawn(
        &mut tasks,
        listener,
        tls,
        &secrets,
        authenticator,
        max_connection_streams,
        &shutdown,
    );
    let mut embedded = discovery::embedded(
        &mut tasks, secured, discovery, &state, replicas, &secrets, &shutdown,
    )
    .await?;
    embedded.authz = Some(authz);
    embedded.decision_log = decision_log;

    let web = Web {
        control: control.clone(),
        registry,
        routes,
        dispatcher: Arc::new(Dispatcher::new(endpoints)),
        readiness,
    };
    let listener = discovery::bind(http, "--http").await?;
    let http = listener.local_addr()?;
    let stop = shutdown.clone();
    tasks.spawn(async move {
        http::serve(listener, web, stop).await;
        Ok(())
    });

    let evaluators = embedded.start().await?;
    let authz = evaluators.first().and_then(Handle::authz_addr);
    info!(%discovery, %http, replicas, state = %state.display(), "running");
    Ok(Running {
        control,
        discovery,
        http,
        authz,
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

/// Embedded evaluators have no certificates.
fn check_authz(args: &AuthzArgs, replicas: u16) -> anyhow::Result<()> {
    let Some(address) = args.address() else {
        return Ok(());
    };
    anyhow::ensure!(
        replicas > 0,
        "--authz is answered by an evaluator of this process, and there is none with --replicas 0: \
         give --authz to the evaluators that connect from outside"
    );
    if let AuthzAddress::Tcp(address) = address {
        anyhow::ensure!(
            address.ip().is_loopback(),
            "--authz {address} is not on loopback: calls would not be encrypted"
        );
    }
    Ok(())
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
    hub.context().register(&mut registry);
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
        settings: None,
        sources: Arc::new(|server: Option<&ParsedServer>| {
            DeclaredSources::Given(Box::new(servers::sources(server)))
        }),
    }
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
