//! Wiring: client, certificates, listeners, election, and how they end.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use assent_controller::contexts::ContextEvent;
use assent_grpc::{ControlPlane, Hub, Serving, Tls, hub, serve};
use assent_k8s::{
    Client,
    admission::{self, AdmissionCache},
    certificates::{Authority, CaManager, Lives, Mode, ServingLeaf, keep_serving},
    connect,
    context::{Follower, LiveReader},
    identity::{Live, TokenChecker, Watched},
    lease::Elector,
    own_objects::OwnObjects,
    preflight,
    webhook::WebhookDefaults,
};
use assent_modules::{store::Store, vet::Vetter};
use assent_serve::Shutdown;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    args::ClusterArgs,
    context::ClusterReads,
    followers,
    http::{self, Readiness, Web},
    leader::LeaderContext,
    leadership::Leadership,
    settings::{
        DISCOVERY_SERVICE, advertised, client, identity, load_settings_key, own_endpoint,
        parse_options, quota, service_accounts, timing, workload_options,
    },
    tls,
    trust::{ClusterSigner, Tokens},
};
use crate::{
    control::Control,
    metrics::Metrics,
    services::{Blobs, Sources},
    vetting::{Artefacts, Compiler},
};

/// Stream events that may wait for the leader's loop; streams pause while the channel is full.
const MAX_STREAM_EVENTS: usize = 4_096;

/// Reports of kinds and collections that may wait; what follows them pauses while the channel is
/// full.
const MAX_CONTEXT_EVENTS: usize = 256;

/// A control plane that is running.
pub(crate) struct Running {
    shutdown: CancellationToken,
    /// Cancelled when nothing may lead any more.
    resign: CancellationToken,
    hub: Hub,
    tasks: JoinSet<anyhow::Result<()>>,
    leading: JoinSet<anyhow::Result<()>>,
    /// How long Assent's own webhooks are answered after SIGTERM.
    linger: Duration,
}

/// Starts everything. `vetter` is the command that vets modules.
pub(crate) async fn start(args: ClusterArgs, vetter: Vetter) -> anyhow::Result<Running> {
    let client = client(&args).await?;
    preflight::run(&client, &args.namespace).await?;
    let service_accounts = service_accounts(&client, &args).await?;
    let settings_key = load_settings_key(&client, &args.namespace).await?;
    let parse = parse_options(&args, &service_accounts, settings_key);
    let namespace_uid = connect::namespace_uid(&client, &args.namespace).await?;
    let shutdown = CancellationToken::new();
    let resign = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let mut leading = JoinSet::new();

    let store = Store::open(&args.state).context("failed to open the module store")?;
    let discovery = bind(args.discovery, "--discovery").await?;
    let webhooks = bind(args.webhook, "--webhook").await?;
    let http = bind(args.http, "--http").await?;
    let address = advertised(&args, discovery.local_addr()?);
    let identity = identity(&args)?;

    let timing = timing(args.lease_seconds);
    let (streams, streams_rx) = mpsc::channel(MAX_STREAM_EVENTS);
    let hub = Hub::new(hub::Config::default(), ControlPlane::default(), streams);
    hub.set_serving(Serving::Standby { leader: None });
    let elector = Elector::new(
        client.clone(),
        &args.namespace,
        &identity,
        &address,
        timing,
        hub.seen_transitions(),
    );
    let (role, leader_check) = (elector.role(), elector.leader_check());
    let mode = match &args.ca_secret {
        Some(secret) => Mode::CertManager {
            secret: secret.clone(),
        },
        None => Mode::SelfManaged,
    };
    let ca = CaManager::open(client.clone(), &args.namespace, mode, Lives::default()).await?;
    let authority = ca.authority();
    spawn(&mut tasks, ca.run(role.clone(), shutdown.clone()));
    let leaf = serving(&mut tasks, &args, &authority, &shutdown)?;

    let (queries, queries_rx) = mpsc::channel(256);
    let changes = watch::Sender::new(0);
    let control = Control::new(queries, changes.subscribe());
    let metrics = Metrics::default();
    let registry = Arc::new(registry(&hub, &metrics, &store));

    let compiler = Compiler::open(&args.state, store.clone(), vetter, metrics.clone())?;
    let artefacts = Artefacts::new(compiler);
    spawn(
        &mut tasks,
        unless(shutdown.clone(), artefacts.clone().run()),
    );

    let tls = follow_leaf(&mut tasks, &leaf, &shutdown)?;
    let expiry = tell_expiry(leaf.clone(), authority.clone(), metrics.clone());
    spawn(&mut tasks, unless(shutdown.clone(), expiry));
    let cache = AdmissionCache::new();
    let revoke = followers::revoke(cache.clone(), hub.clone());
    spawn(&mut tasks, unless(shutdown.clone(), revoke));
    spawn_discovery(
        &mut tasks,
        Discovery {
            listener: discovery,
            tls,
            hub: hub.clone(),
            control: control.clone(),
            store: store.clone(),
            client: client.clone(),
            cache: cache.clone(),
            authority: authority.clone(),
            reads: Arc::new(ClusterReads(LiveReader(client.clone()))),
        },
        &args,
        &shutdown,
    );
    let (readiness, ready) = watch::channel(Readiness::default());
    let workload = workload_options(&args, &address);
    let listed = readiness.clone();
    let follow = cache
        .clone()
        .follow(client.clone(), workload.clone(), parse.clone(), move || {
            listed.send_if_modified(|ready| !std::mem::replace(&mut ready.listed, true));
        });
    spawn(&mut tasks, unless(shutdown.clone(), follow));
    let router = admission::router(
        admission::Options {
            namespace: args.namespace.clone(),
            parse: parse.clone(),
            max_policies_per_namespace: quota(args.max_policies_per_namespace),
            native_sidecars: !args.plain_sidecars,
        },
        Arc::new(cache.clone()),
        Arc::new(admission::ApiAuthorizer(client.clone())),
        Arc::new(admission::ApiKinds(client.clone())),
    );
    // API servers keep connections open: they are asked to close them while requests are still answered.
    let webhooks_end = Shutdown {
        drain: resign.clone(),
        stop: shutdown.clone(),
    };
    spawn(&mut tasks, tls::serve(webhooks, router, leaf, webhooks_end));
    let web = Web {
        control,
        registry,
        ready,
        leader_check: leader_check.clone(),
    };
    spawn(&mut tasks, http::serve(http, web, shutdown.clone()));

    let defaults = WebhookDefaults {
        namespace: args.namespace.clone(),
        namespace_uid,
        ca_bundle: authority.borrow().bundle_pem().as_bytes().to_vec(),
        excluded_namespaces: args.excluded_namespaces.clone(),
        service_accounts,
    };
    let own_objects = OwnObjects {
        client: client.clone(),
        defaults: defaults.clone(),
        endpoint: own_endpoint(&args),
        authority: authority.clone(),
        cache,
        default_server: args.default_policy_server.clone(),
        webhooks_written: watch::Sender::new(false),
    };
    let (follower, context_events) = follow_context(&mut tasks, &client, &hub, &shutdown);
    let context = LeaderContext {
        follower,
        context_events,
        client,
        namespace: args.namespace.clone(),
        policy_namespaces: args.policy_namespaces.clone(),
        identity,
        hub: hub.clone(),
        metrics: metrics.clone(),
        artefacts,
        leader_check,
        changes,
        ca_bundle: bundles(&mut tasks, authority, &shutdown),
        streams: streams_rx,
        queries: queries_rx,
        synced: watch::Sender::new(false),
    };
    let leadership = Leadership {
        context,
        own_objects,
        role,
        readiness,
        args: args.clone(),
        defaults,
        workload,
        parse,
    };
    leading.spawn(leadership.run(resign.clone()));
    spawn(&mut leading, elector.run(resign.clone()));
    info!(namespace = %args.namespace, %address, "running");
    Ok(Running {
        shutdown,
        resign,
        hub,
        tasks,
        leading,
        linger: args.linger_seconds,
    })
}

// === impl Running ===

impl Running {
    /// Ends when something essential ended by itself, which is an error.
    pub(crate) async fn failed(&mut self) -> anyhow::Error {
        let ended = tokio::select! {
            Some(ended) = self.tasks.join_next() => ended,
            Some(ended) = self.leading.join_next() => ended,
            else => return anyhow::anyhow!("nothing is running"),
        };
        match ended {
            Ok(Ok(())) => anyhow::anyhow!("a part of the control plane ended by itself"),
            Ok(Err(error)) => error,
            Err(panic) => panic.into(),
        }
    }

    /// Ends in good order: nothing is decided any more, the Lease is given up, streams are told
    /// to go elsewhere, and Assent's own webhooks answer until API servers send nothing any more.
    pub(crate) async fn stop(mut self) {
        let lingered = tokio::time::sleep(self.linger);
        self.resign.cancel();
        let resigned = async { while self.leading.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(5), resigned)
            .await
            .is_err()
        {
            warn!("the Lease could not be given up in time; others wait until it ends");
        }
        self.hub.set_serving(Serving::Draining);
        lingered.await;
        self.shutdown.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(12), ended)
            .await
            .is_err()
        {
            warn!("some connections did not end in time and were cut off");
        }
    }
}

struct Discovery {
    listener: TcpListener,
    tls: Tls,
    hub: Hub,
    control: Control,
    store: Store,
    client: Client,
    cache: AdmissionCache,
    authority: watch::Receiver<Arc<Authority>>,
    reads: Arc<ClusterReads>,
}

fn spawn_discovery(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    discovery: Discovery,
    args: &ClusterArgs,
    shutdown: &CancellationToken,
) {
    let Discovery {
        listener,
        tls,
        hub,
        control,
        store,
        client,
        cache,
        authority,
        reads,
    } = discovery;
    let live = Live::new(client.clone(), &args.namespace);
    let lookup = Arc::new(Watched::new(live, cache));
    let tokens = TokenChecker::new(client, &args.namespace, lookup);
    let sources = Sources {
        hub: hub.clone(),
        control,
        blobs: Arc::new(Blobs(store)),
        signer: Arc::new(ClusterSigner {
            authority,
            namespace: args.namespace.clone(),
            development: args.webhook_base_url.is_some(),
        }),
        reads,
    };
    let services = sources.services(Arc::new(Tokens(tokens)));
    let stop = shutdown.clone();
    let options = serve::Options {
        max_concurrent_streams: args.max_connection_streams,
        ..serve::Options::default()
    };
    tasks.spawn(async move {
        serve::serve(vec![listener], Some(tls), hub, services, options, stop).await?;
        Ok(())
    });
}

fn serving(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    args: &ClusterArgs,
    authority: &watch::Receiver<Arc<Authority>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<watch::Receiver<Arc<ServingLeaf>>> {
    let service = |name: &str| {
        let short = format!("{name}.{}", args.namespace);
        [
            format!("{short}.svc"),
            format!("{short}.svc.cluster.local"),
            short,
        ]
    };
    let mut names = vec!["localhost".to_owned()];
    names.extend(service(DISCOVERY_SERVICE));
    names.extend(service(&args.webhook_service));
    let listening = [args.discovery.ip(), args.webhook.ip()];
    let mut addresses: Vec<IpAddr> = args.pod_ip.into_iter().chain(listening).collect();
    addresses.retain(|ip| !ip.is_unspecified());
    addresses.sort_unstable();
    addresses.dedup();
    let (leaf, keep) = keep_serving(authority.clone(), names, addresses, shutdown.clone())?;
    spawn(tasks, keep);
    Ok(leaf)
}

/// Follows objects that policies read until the process ends: leaders come and go.
fn follow_context(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    client: &Client,
    hub: &Hub,
    shutdown: &CancellationToken,
) -> (Follower, mpsc::Receiver<ContextEvent>) {
    let (events, receiver) = mpsc::channel(MAX_CONTEXT_EVENTS);
    let sink = Arc::new(hub.context().clone());
    let (follower, mut followers) = Follower::spawn(client.clone(), sink, events);
    let following = async move { while followers.join_next().await.is_some() {} };
    spawn(tasks, unless(shutdown.clone(), following));
    (follower, receiver)
}

/// The discovery port's TLS, which follows the leaf.
fn follow_leaf(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    leaf: &watch::Receiver<Arc<ServingLeaf>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<Tls> {
    let mut leaf = leaf.clone();
    let first = leaf.borrow_and_update().clone();
    let tls = Tls::from_pem(first.chain_pem.as_bytes(), first.key_pem.as_bytes())?;
    let replaced = tls.clone();
    let follow = async move {
        while leaf.changed().await.is_ok() {
            let next = leaf.borrow_and_update().clone();
            let done = replaced.replace_pem(next.chain_pem.as_bytes(), next.key_pem.as_bytes());
            if let Err(error) = done {
                warn!("keeping the current certificate: {error}");
            }
        }
    };
    spawn(tasks, unless(shutdown.clone(), follow));
    Ok(tls)
}

/// Says when the certificates in use end.
async fn tell_expiry(
    mut leaf: watch::Receiver<Arc<ServingLeaf>>,
    mut authority: watch::Receiver<Arc<Authority>>,
    metrics: Metrics,
) {
    loop {
        metrics.certificate_ends("serving", leaf.borrow_and_update().not_after);
        metrics.certificate_ends("authority", authority.borrow_and_update().ends());
        tokio::select! {
            Ok(()) = leaf.changed() => {}
            Ok(()) = authority.changed() => {}
            else => return,
        }
    }
}

/// The CA bundle as it changes.
fn bundles(
    tasks: &mut JoinSet<anyhow::Result<()>>,
    mut authority: watch::Receiver<Arc<Authority>>,
    shutdown: &CancellationToken,
) -> watch::Receiver<Vec<u8>> {
    let bundle = |a: &Authority| a.bundle_pem().as_bytes().to_vec();
    let first = bundle(&authority.borrow_and_update());
    let (sender, receiver) = watch::channel(first);
    let follow = async move {
        while authority.changed().await.is_ok() {
            let next = bundle(&authority.borrow_and_update());
            sender.send_if_modified(|held| std::mem::replace(held, next.clone()) != next);
        }
    };
    spawn(tasks, unless(shutdown.clone(), follow));
    receiver
}

fn spawn(tasks: &mut JoinSet<anyhow::Result<()>>, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        task.await;
        Ok(())
    });
}

async fn unless(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled(task).await;
}

fn registry(hub: &Hub, metrics: &Metrics, store: &Store) -> Registry {
    let mut registry = Registry::with_prefix("assent");
    hub.metrics().register(&mut registry);
    hub.context().register(&mut registry);
    store.register(&mut registry);
    metrics.register(&mut registry);
    registry
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener
        .with_context(|| format!("failed to listen on {flag} {address}; is another one running?"))
}
