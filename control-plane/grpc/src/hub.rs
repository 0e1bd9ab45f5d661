//! The published snapshots of all PolicyServers, which streams follow.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use assent_core::{Digest, Snapshot, fleet::Name};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tonic::{Status, metadata::MetadataValue};

use crate::{
    context::ContextHub,
    events::StreamEvent,
    frames::Published,
    metrics::{Metrics, ServerMetrics},
    registry::Registry,
};

/// The metadata key in which a standby names the leader.
pub const LEADER_METADATA: &str = "assent-leader";

/// Connects the controller, which publishes, with the streams, which follow. Clones share one
/// state.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Inner>);

/// Durations of the discovery service.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a stream waits for the first snapshot of its PolicyServer.
    pub sync_deadline: Duration,
    /// How long a client may stop reading before it counts as disconnected (R29).
    pub send_deadline: Duration,
    /// How long a client may take to send its first message.
    pub first_message_deadline: Duration,
    /// How long a stream lives, plus or minus 20 %. Its credential is checked again when the
    /// client reconnects. The stream ends with OK, after which clients reconnect without
    /// back-off.
    pub max_stream_age: Duration,
    /// How often replicas are asked to send health checks. A replica that has sent one and then
    /// none for three times as long loses its stream.
    pub health_interval: Duration,
}

/// Identifies the control plane in every response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    /// Name of this replica of the control plane.
    pub id: String,
    /// The version of its build.
    pub version: String,
    /// The transitions of the Lease. Evaluators reject a lower number than they have seen (R27).
    pub lease_transitions: u64,
}

/// Whether streams are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Serving {
    /// Streams are accepted.
    #[default]
    Leader,
    /// Streams are refused, and clients are referred to the leader.
    Standby {
        /// The address of the leader, if it is known.
        leader: Option<String>,
    },
    /// The process ends: streams are refused, and clients reconnect elsewhere.
    Draining,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    pub(crate) events: mpsc::Sender<StreamEvent>,
    pub(crate) streams: Arc<Registry>,
    context: ContextHub,
    servers: RwLock<HashMap<Name, Arc<Server>>>,
    /// Counts changes of `servers` and `synced`, for tasks that wait for one.
    epoch: watch::Sender<u64>,
    synced: AtomicBool,
    serving: ArcSwap<Serving>,
    control_plane: ArcSwap<ControlPlane>,
    /// The highest leadership that replicas have seen, if it is newer than this one.
    seen_transitions: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: Name,
    pub(crate) published: watch::Sender<Option<Arc<Published>>>,
    pub(crate) metrics: ServerMetrics,
}

// === impl Hub ===

impl Hub {
    /// A hub without PolicyServers that is not synced. Streams report to `events`.
    pub fn new(
        config: Config,
        control_plane: ControlPlane,
        events: mpsc::Sender<StreamEvent>,
    ) -> Self {
        Self(Arc::new(Inner {
            config,
            metrics: Metrics::default(),
            events,
            streams: Arc::new(Registry::new()),
            context: ContextHub::default(),
            servers: RwLock::default(),
            epoch: watch::Sender::new(0),
            synced: AtomicBool::new(false),
            serving: ArcSwap::default(),
            control_plane: ArcSwap::from_pointee(control_plane),
            seen_transitions: watch::Sender::new(0),
        }))
    }

    /// The metrics of the service, to be registered once.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Objects of the cluster that policies read.
    pub fn context(&self) -> &ContextHub {
        &self.0.context
    }

    /// Adds a PolicyServer. Its streams are held until a snapshot is published for it.
    pub fn add_server(&self, name: &str) {
        self.server_entry(name);
    }

    /// Removes a PolicyServer. Its streams end with NOT_FOUND.
    pub fn remove_server(&self, name: &str) {
        let mut servers = self.write_servers();
        let removed = servers.remove(name);
        if removed.is_some() {
            self.0.metrics.remove_server(name);
            drop(servers);
            self.0.streams.close_server(name, &not_found(name));
            self.bump();
        }
    }

    /// Publishes a snapshot, at a cost that does not depend on the number of streams. Equal
    /// content wakes no stream. True if streams are woken.
    pub fn publish(&self, server: &str, snapshot: Arc<Snapshot>, at: SystemTime) -> bool {
        let server = self.server_entry(server);
        let control_plane = self.0.control_plane.load_full();
        let mut changed = false;
        server.published.send_if_modified(|current| {
            let old = current.as_ref().map(|p| p.snapshot.version());
            changed = old != Some(snapshot.version());
            if changed {
                *current = Some(Arc::new(Published::new(snapshot, at, control_plane)));
            }
            false
        });
        if changed {
            wake(server);
        }
        changed
    }

    /// Forgets every PolicyServer and everything that was published: a later leadership starts
    /// from nothing. Call it while no streams are accepted.
    pub fn reset(&self) {
        self.0.synced.store(false, Ordering::Release);
        self.write_servers().clear();
        self.0.context.forget_assignments();
        self.bump();
    }

    /// Every existing PolicyServer was added: from now on other names are not found.
    pub fn set_synced(&self) {
        self.0.synced.store(true, Ordering::Release);
        self.bump();
    }

    /// Whether every existing PolicyServer was added.
    pub fn is_synced(&self) -> bool {
        self.0.synced.load(Ordering::Acquire)
    }

    /// Accepts streams, or refuses new ones and closes open ones.
    pub fn set_serving(&self, serving: Serving) {
        let refusal = serving.refusal();
        self.0.serving.store(Arc::new(serving));
        if let Some(status) = refusal {
            self.0.streams.close_all(&status);
        }
        self.bump();
    }

    /// Replaces the identity in later responses. Nothing is sent again because of it.
    pub fn set_control_plane(&self, control_plane: ControlPlane) {
        let control_plane = Arc::new(control_plane);
        self.0.control_plane.store(control_plane.clone());
        for server in self.read_servers().values() {
            server.published.send_if_modified(|current| {
                if let Some(old) = current.take() {
                    let (snapshot, at) = (old.snapshot.clone(), old.at);
                    *current = Some(Arc::new(Published::new(
                        snapshot,
                        at,
                        control_plane.clone(),
                    )));
                }
                false
            });
        }
    }

    /// Closes the streams of replicas that lost their permission, by PolicyServer and replica.
    pub fn revoke_streams(&self, is_revoked: impl Fn(&str, &str) -> bool, why: &str) {
        let status = Status::permission_denied(why);
        self.0.streams.close_where(&is_revoked, &status);
        let context = self.0.context.clients();
        context.close_where(is_revoked, &status);
    }

    /// The identity in responses.
    pub fn control_plane(&self) -> Arc<ControlPlane> {
        self.0.control_plane.load_full()
    }

    /// The highest leadership that counted replicas have seen, told when it is newer than that of
    /// this control plane. They refuse everything that it sends.
    pub fn seen_transitions(&self) -> watch::Receiver<u64> {
        self.0.seen_transitions.subscribe()
    }

    /// A replica has seen this leadership.
    pub(crate) fn see_transitions(&self, transitions: u64) {
        if transitions > self.0.control_plane.load().lease_transitions {
            let seen = &self.0.seen_transitions;
            seen.send_if_modified(|seen| {
                let newer = transitions > *seen;
                *seen = transitions.max(*seen);
                newer
            });
        }
    }

    /// The modules that are in use: published snapshots name them.
    pub fn named_modules(&self) -> HashSet<Digest> {
        let servers = self.read_servers();
        let published = servers
            .values()
            .filter_map(|s| s.published.borrow().clone());
        let mut named = HashSet::new();
        published.for_each(|published| named.extend(published.modules()));
        named
    }

    /// Whether the snapshot that is published for a PolicyServer names the module.
    pub(crate) fn names_module(&self, server: &str, digest: &Digest) -> bool {
        let published = {
            let servers = self.read_servers();
            servers
                .get(server)
                .and_then(|s| s.published.borrow().clone())
        };
        published.is_some_and(|published| published.modules().contains(digest))
    }

    /// The PolicyServers that have a snapshot, with it, in the order of their names.
    pub(crate) fn snapshots(&self) -> BTreeMap<Name, Arc<Snapshot>> {
        let servers = self.read_servers();
        let published = servers.iter().filter_map(|(name, server)| {
            let published = server.published.borrow();
            let snapshot = published.as_ref()?.snapshot.clone();
            Some((name.clone(), snapshot))
        });
        published.collect()
    }

    pub(crate) fn has_server(&self, name: &str) -> bool {
        self.read_servers().contains_key(name)
    }

    /// How many streams are open.
    pub fn stream_count(&self) -> usize {
        self.0.streams.len()
    }

    /// Changes when a PolicyServer is added or removed, or when `Serving` changes.
    pub(crate) fn epoch(&self) -> watch::Receiver<u64> {
        self.0.epoch.subscribe()
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// An error if streams are not accepted.
    pub(crate) fn check_serving(&self) -> Result<(), Status> {
        self.0.serving.load().refusal().map_or(Ok(()), Err)
    }

    /// Finds a PolicyServer. Until the hub is synced it may still be added, and is waited for.
    pub(crate) async fn resolve(&self, name: &str, until: Instant) -> Result<Arc<Server>, Status> {
        let mut epoch = self.epoch();
        loop {
            epoch.borrow_and_update();
            self.check_serving()?;
            if let Some(server) = self.read_servers().get(name) {
                return Ok(server.clone());
            }
            if self.is_synced() {
                return Err(not_found(name));
            }
            let waited = tokio::time::timeout_at(until, epoch.changed()).await;
            waited
                .map_err(|_| not_synced())?
                .map_err(|_| not_synced())?;
        }
    }

    /// The published snapshot of a PolicyServer, which is waited for.
    pub(crate) async fn published(&self, name: &str) -> Result<Arc<Published>, Status> {
        let until = Instant::now() + self.0.config.sync_deadline;
        let server = self.resolve(name, until).await?;
        let mut published = server.published.subscribe();
        let ready = tokio::time::timeout_at(until, published.wait_for(Option::is_some)).await;
        let ready = ready
            .map_err(|_| not_synced())?
            .map_err(|_| not_found(name))?;
        ready.clone().ok_or_else(not_synced)
    }

    fn server_entry(&self, name: &str) -> Arc<Server> {
        if let Some(server) = self.read_servers().get(name) {
            return server.clone();
        }
        let name: Name = name.into();
        let new = |name: &Name| {
            Arc::new(Server {
                name: name.clone(),
                published: watch::Sender::new(None),
                metrics: self.0.metrics.server(name),
            })
        };
        // Series are created and removed under the lock, so that they live as long as the server.
        let mut servers = self.write_servers();
        let server = servers.entry(name).or_insert_with_key(new).clone();
        drop(servers);
        self.bump();
        server
    }

    fn bump(&self) {
        self.0.epoch.send_modify(|epoch| *epoch += 1);
    }

    fn read_servers(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Name, Arc<Server>>> {
        self.0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write_servers(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Name, Arc<Server>>> {
        self.0
            .servers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            // A control plane reads its objects within seconds. If it does not, clients report
            // the error.
            sync_deadline: Duration::from_secs(30),
            // Longer than a busy client pauses, and shorter than what an operator notices.
            send_deadline: Duration::from_secs(10),
            first_message_deadline: Duration::from_secs(10),
            max_stream_age: Duration::from_secs(30 * 60),
            health_interval: Duration::from_secs(10),
        }
    }
}

// === impl Serving ===

impl Serving {
    fn refusal(&self) -> Option<Status> {
        match self {
            Serving::Leader => None,
            Serving::Standby { leader } => Some(standby(leader.as_deref())),
            Serving::Draining => Some(Status::unavailable("draining: connect again")),
        }
    }
}

pub(crate) fn not_synced() -> Status {
    Status::unavailable("the control plane has not read all of its objects yet: try again")
}

pub(crate) fn not_found(server: &str) -> Status {
    Status::not_found(format!(
        "there is no PolicyServer \"{}\": check `node.policy_server`",
        crate::from_proto::cut(server.to_owned())
    ))
}

fn standby(leader: Option<&str>) -> Status {
    let mut status = Status::unavailable("this replica of the control plane is a standby");
    if let Some(leader) = leader.and_then(|l| MetadataValue::try_from(l).ok()) {
        status.metadata_mut().insert(LEADER_METADATA, leader);
    }
    status
}

/// Wakes the streams of a server. That costs something for each, so that a task of its own does
/// it instead of the publisher.
fn wake(server: Arc<Server>) {
    let tell = move || server.published.send_modify(|_| {});
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(async move { tell() })),
        Err(_) => tell(),
    }
}
