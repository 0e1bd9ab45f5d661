//! Wiring: client, certificates, listeners, election, and how they end.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use assent_grpc::{ControlPlane, Hub, Serving, Tls, hub, serve};
use assent_k8s::{
    admission::{self, configurations::Reach},
    certificates::{Authority, Keeper, Lives, Mode, ServingLeaf, keep_serving},
    connect,
    identity::{Live, TokenChecker},
    lease::{Elector, Role, Timing},
    preflight,
    webhook::Site,
    workload,
};
use assent_modules::{pull, store::Store, vet::Vetter};
use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Namespace};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
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
    chores::Chores,
    http::{self, Readiness, Web},
    known::Known,
    machine::Options,
    term::Office,
    tls,
    trust::{ClusterSigner, Tokens},
};
use crate::{
    control::Control,
    metrics::Metrics,
    services::{Blobs, Sources},
};

/// Notices that may wait for the event loop; a stream whose notice finds no room waits.
const NOTICES: usize = 4_096;

/// Name of the discovery Service, for certificates and evaluators.
const DISCOVERY_SERVICE: &str = "assent-discovery";

/// Namespaces that no policy ever sees: a mistake there can't be mended from within.
const NEVER: [&str; 2] = ["kube-system", "kube-node-lease"];

/// A control plane that is running.
pub(crate) struct Running {
    shutdown: CancellationToken,
    /// Cancelled when nothing may lead any more.
    resign: CancellationToken,
    hub: Hub,
    tasks: JoinSet<anyhow::Result<()>>,
    leading: JoinSet<anyhow::Result<()>>,
}

/// Starts everything. `vetter` is the command that vets modules.
pub(crate) async fn start(args: ClusterArgs, vetter: Vetter) -> anyhow::Result<Running> {
    let client = client(&args).await?;
    preflight::run(&client, &args.namespace).await?;
    let namespace = own_namespace(&client, &args.namespace).await?;
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
    let elector = Elector::new(client.clone(), &args.namespace, &identity, &address, timing);
    let (role, standing) = (elector.role(), elector.standing());
    let mode = match &args.ca_secret {
        Some(secret) => Mode::CertManager {
            secret: secret.clone(),
        },
        None => Mode::SelfManaged,
    };
    let keeper = Keeper::open(client.clone(), &args.namespace, mode, Lives::default()).await?;
    let authority = keeper.authority();
    spawn(&mut tasks, keeper.run(role.clone(), shutdown.clone()));
    let leaf = serving(&mut tasks, &args, &authority, &shutdown)?;

    let (notices, notices_rx) = mpsc::channel(NOTICES);
    let (queries, queries_rx) = mpsc::channel(256);
    let changes = watch::Sender::new(0);
    let control = Control::new(queries, changes.subscribe());
    let hub = Hub::new(hub::Config::default(), ControlPlane::default(), notices);
    hub.set_serving(Serving::Standby { leader: None });
    let metrics = Metrics::default();
    let registry = Arc::new(registry(&hub, &metrics, &store));

    let tls = follow_leaf(&mut tasks, &leaf, &shutdown)?;
    let expiry = tell_expiry(leaf.clone(), authority.clone(), metrics.clone());
    spawn(&mut tasks, unless(shutdown.clone(), expiry));
    spawn_discovery(
        &mut tasks,
        Discovery {
            listener: discovery,
            tls,
            hub: hub.clone(),
            control: control.clone(),
            store: store.clone(),
            client: client.clone(),
            authority: authority.clone(),
        },
        &args,
        &shutdown,
    );
    let (readiness, ready) = watch::channel(Readiness::default());
    let workload = workload_options(&args, &address);
    let known = Known::new(readiness.clone());
    let follow = known.clone().follow(client.clone(), workload.clone());
    spawn(&mut tasks, unless(shutdown.clone(), follow));
    let router = admission::router(
        admission::Options {
            namespace: args.namespace.clone(),
            excluded_namespaces: excluded(&args),
            native_sidecars: !args.plain_sidecars,
        },
        Arc::new(known.clone()),
    );
    spawn(
        &mut tasks,
        tls::serve(webhooks, router, leaf, shutdown.clone()),
    );
    let web = Web {
        control,
        registry,
        ready,
    };
    let stop = shutdown.clone();
    tasks.spawn(async move { Ok(http::serve(http, web, stop).await?) });

    let service_accounts = service_accounts(&client, &args).await?;
    let site = Site {
        namespace: args.namespace.clone(),
        namespace_uid: namespace.uid().unwrap_or_default(),
        ca_bundle: authority.borrow().bundle_pem().as_bytes().to_vec(),
        excluded_namespaces: args.excluded_namespaces.clone(),
        service_accounts,
    };
    let chores = Chores {
        client: client.clone(),
        site: site.clone(),
        reach: own_reach(&args),
        authority: authority.clone(),
        known,
        default_server: args.default_policy_server.clone(),
    };
    let office = Office {
        client,
        identity,
        hub: hub.clone(),
        metrics: metrics.clone(),
        store,
        vetter,
        standing,
        grace: args.replica_grace,
        changes,
        ca_bundle: bundles(&mut tasks, authority, &shutdown),
        notices: notices_rx,
        queries: queries_rx,
        synced: watch::Sender::new(false),
    };
    let terms = Terms {
        office,
        chores,
        role,
        readiness,
        args: args.clone(),
        site,
        workload,
    };
    leading.spawn(terms.run(resign.clone()));
    spawn(&mut leading, elector.run(resign.clone()));
    info!(namespace = %args.namespace, %address, "running");
    Ok(Running {
        shutdown,
        resign,
        hub,
        tasks,
        leading,
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
    /// to go elsewhere.
    pub(crate) async fn stop(mut self) {
        self.resign.cancel();
        let resigned = async { while self.leading.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(5), resigned)
            .await
            .is_err()
        {
            warn!("the Lease could not be given up in time; others wait until it ends");
        }
        self.hub.set_serving(Serving::Draining);
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

/// Leads whenever the election says so.
struct Terms {
    office: Office,
    chores: Chores,
    role: watch::Receiver<Role>,
    readiness: watch::Sender<Readiness>,
    args: ClusterArgs,
    site: Site,
    workload: workload::Options,
}

// === impl Terms ===

impl Terms {
    async fn run(mut self, resign: CancellationToken) -> anyhow::Result<()> {
        while !resign.is_cancelled() {
            let role = self.role.borrow_and_update().clone();
            match role {
                Role::Leader { transitions } => self.term(transitions, &resign).await,
                Role::Follower { leader } => {
                    let leader = leader.map(|l| l.address).filter(|a| !a.is_empty());
                    self.office.hub.set_serving(Serving::Standby { leader });
                    tokio::select! {
                        () = resign.cancelled() => {}
                        changed = self.role.changed() => changed.context("the election ended")?,
                    }
                }
            }
        }
        Ok(())
    }

    async fn term(&mut self, transitions: u64, resign: &CancellationToken) {
        let hub = self.office.hub.clone();
        hub.reset();
        hub.set_control_plane(ControlPlane {
            id: self.office.identity.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            lease_transitions: transitions,
        });
        hub.set_serving(Serving::Leader);
        self.office.metrics.leader.set(1);
        let over = CancellationToken::new();
        let ended = lost(self.role.clone(), transitions, resign.clone());
        let options = self.options();
        let synced = follow_sync(self.office.synced.subscribe(), self.readiness.clone());
        let lead = self.office.lead(options, over.clone());
        let chores = self.chores.clone().run();
        tokio::select! {
            () = lead => {}
            () = chores => {}
            () = synced => {}
            () = ended => {}
        }
        over.cancel();
        self.office.metrics.leader.set(0);
        self.readiness.send_modify(|ready| ready.beginning = false);
        // Whoever leads next is not known yet: streams come back when it is.
        hub.set_serving(Serving::Standby { leader: None });
        hub.reset();
    }

    fn options(&self) -> Options {
        Options {
            namespace: self.args.namespace.clone(),
            parse: assent_api::Options {
                standalone: false,
                excluded_namespaces: excluded(&self.args),
            },
            site: Site {
                ca_bundle: self.office.ca_bundle.borrow().clone(),
                ..self.site.clone()
            },
            base_url: self.args.webhook_base_url.clone(),
            drain: self.args.drain_seconds,
            workload: Some(self.workload.clone()),
            reach: pull::Reach::PUBLIC,
        }
    }
}

/// Ends when the term does.
async fn lost(mut role: watch::Receiver<Role>, transitions: u64, resign: CancellationToken) {
    let term = Role::Leader { transitions };
    tokio::select! {
        () = resign.cancelled() => {}
        _ = role.wait_for(|role| *role != term) => {}
    }
}

/// A leader is ready when it has read everything.
async fn follow_sync(mut synced: watch::Receiver<bool>, readiness: watch::Sender<Readiness>) {
    loop {
        let beginning = !*synced.borrow_and_update();
        readiness.send_if_modified(|r| std::mem::replace(&mut r.beginning, beginning) != beginning);
        if synced.changed().await.is_err() {
            return;
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
    authority: watch::Receiver<Arc<Authority>>,
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
        authority,
    } = discovery;
    let lookup = Arc::new(Live::new(client.clone(), &args.namespace));
    let tokens = TokenChecker::new(client, &args.namespace, lookup);
    let extra_names = match args.webhook_base_url {
        Some(_) => vec!["localhost".to_owned()],
        None => Vec::new(),
    };
    let sources = Sources {
        hub: hub.clone(),
        control,
        blobs: Arc::new(Blobs(store)),
        signer: Arc::new(ClusterSigner {
            authority,
            namespace: args.namespace.clone(),
            extra_names,
        }),
    };
    let services = sources.services(Arc::new(Tokens(tokens)));
    let stop = shutdown.clone();
    let options = serve::Options::default();
    tasks.spawn(async move {
        serve::serve(vec![listener], Some(tls), hub, services, options, stop).await?;
        Ok(())
    });
}

/// A client for the API server.
pub(crate) async fn client(args: &ClusterArgs) -> anyhow::Result<Client> {
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("failed to read --kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .context("failed to use --kubeconfig")?
        }
        None => Config::incluster().context(
            "not in a cluster (there is no service account); outside of one give --kubeconfig",
        )?,
    };
    // A watch is answered for minutes; anything else that hangs is tried again.
    config.connect_timeout = Some(Duration::from_secs(10));
    connect::client(config).context("failed to make a client for the API server")
}

async fn own_namespace(client: &Client, name: &str) -> anyhow::Result<Namespace> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_opt(name).await;
    found
        .context("failed to reach the API server")?
        .with_context(|| {
            format!("there is no namespace {name}: create it, or name ours by --namespace")
        })
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
                warn!("keeping the certificate that we have: {error}");
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
    store.register(&mut registry);
    metrics.register(&mut registry);
    registry
}

fn identity(args: &ClusterArgs) -> anyhow::Result<String> {
    if let Some(identity) = &args.identity {
        return Ok(identity.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("failed to find a name for this replica; give one by --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

fn advertised(args: &ClusterArgs, listening: SocketAddr) -> String {
    match (&args.advertise_address, args.pod_ip) {
        (Some(address), _) => address.clone(),
        (None, Some(ip)) => SocketAddr::new(ip, listening.port()).to_string(),
        (None, None) => listening.to_string(),
    }
}

fn timing(lease: Duration) -> Timing {
    let default = Timing::default();
    // The same proportions as the default's.
    Timing {
        lease,
        renew: lease.mul_f64(default.renew.as_secs_f64() / default.lease.as_secs_f64()),
        retry: lease.mul_f64(default.retry.as_secs_f64() / default.lease.as_secs_f64()),
    }
}

fn workload_options(args: &ClusterArgs, address: &str) -> workload::Options {
    let service = || format!("https://{DISCOVERY_SERVICE}.{}.svc:15010", args.namespace);
    let version = env!("CARGO_PKG_VERSION");
    workload::Options {
        namespace: args.namespace.clone(),
        image: args
            .evaluator_image
            .clone()
            .unwrap_or_else(|| format!("ghcr.io/assent-dev/assent-evaluator:{version}")),
        image_pull_policy: args.evaluator_pull_policy.clone(),
        discovery: args
            .discovery_url
            .clone()
            .unwrap_or_else(|| match args.webhook_base_url {
                Some(_) => format!("https://{address}"),
                None => service(),
            }),
        network_policy: args.network_policy,
    }
}

fn own_reach(args: &ClusterArgs) -> Reach {
    match &args.own_webhook_url {
        Some(url) => Reach::Url(url.clone()),
        None => Reach::Service {
            namespace: args.namespace.clone(),
            name: args.webhook_service.clone(),
            port: 443,
        },
    }
}

fn excluded(args: &ClusterArgs) -> Vec<String> {
    let mut excluded: Vec<String> = NEVER.iter().map(|ns| (*ns).to_owned()).collect();
    excluded.push(args.namespace.clone());
    excluded.extend(args.excluded_namespaces.iter().cloned());
    excluded
}

/// Users that no policy ever sees: what the command line says, and whoever we are ourselves. A
/// policy that kept us from writing could never be mended.
async fn service_accounts(client: &Client, args: &ClusterArgs) -> anyhow::Result<Vec<String>> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .context("failed to ask the API server who we are")?;
    let user = review.status.and_then(|s| s.user_info);
    let own = user.and_then(|u| u.username);
    let mut accounts = args.service_accounts.clone();
    accounts.extend(own.filter(|own| !args.service_accounts.contains(own)));
    Ok(accounts)
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener
        .with_context(|| format!("failed to listen on {flag} {address}; is another one running?"))
}
