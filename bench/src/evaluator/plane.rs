//! The control plane of the evaluators under test.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use assent_core::Policy;
use assent_grpc::{
    ControlPlane, Discovery, Hub, Options, Services, auth::Open, hub, modules::Modules, serve,
};
use assent_wasm::Engine;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::module_store::ModuleStore;
use crate::server::{Acks, SERVER, snapshot};

/// A hub with its services, and the set that it has published.
pub(crate) struct Plane {
    hub: Hub,
    acks: Arc<Acks>,
    address: SocketAddr,
    set: Vec<Arc<Policy>>,
    /// Where evaluators fetch modules.
    pub(crate) module_store: Arc<ModuleStore>,
}

/// Loading a revision takes milliseconds, or a second if it is compiled; more is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Plane ===

impl Plane {
    /// Serves discovery and modules on a port of the loopback interface.
    pub(crate) async fn start(engine: &Engine) -> anyhow::Result<Self> {
        let (events, incoming) = mpsc::channel(1_024);
        let control_plane = ControlPlane {
            id: "bench".into(),
            ..ControlPlane::default()
        };
        let hub = Hub::new(hub::Config::default(), control_plane, events);
        hub.add_server(SERVER);
        let acks = Arc::new(Acks::new());
        tokio::spawn(acks.clone().fold(incoming));
        let module_store = Arc::new(ModuleStore::new(engine.fingerprint()));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let open = Arc::new(Open);
        let services = Services::new(Discovery::new(hub.clone(), open.clone())).with(Modules::new(
            hub.clone(),
            open,
            module_store.clone(),
        ));
        tokio::spawn(serve(
            vec![listener],
            None,
            hub.clone(),
            services,
            Options::default(),
            CancellationToken::new(),
        ));
        Ok(Self {
            hub,
            acks,
            address,
            set: Vec::new(),
            module_store,
        })
    }

    /// Where evaluators find it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The set that is to be loaded from now on.
    pub(crate) fn publish(&mut self, set: Vec<Arc<Policy>>) {
        self.set = set;
        let next = Arc::new(snapshot(&self.set));
        self.hub.publish(SERVER, next, SystemTime::now());
        self.hub.set_synced();
    }

    /// Replaces one policy; gives the time until the evaluator has acknowledged it.
    pub(crate) async fn swap(
        &mut self,
        index: usize,
        policy: Arc<Policy>,
    ) -> anyhow::Result<Duration> {
        self.set[index] = policy;
        let next = Arc::new(snapshot(&self.set));
        let version = next.version();
        let start = Instant::now();
        self.hub.publish(SERVER, next, SystemTime::now());
        tokio::time::timeout(PATIENCE, self.acks.wait(version, 1))
            .await
            .context("the evaluator did not load the changed policy in time")?;
        Ok(start.elapsed())
    }

    /// Where the published policies are answered.
    pub(crate) fn paths(&self) -> Vec<String> {
        let paths = self.set.iter();
        paths
            .map(|policy| format!("/validate/{}", policy.revision))
            .collect()
    }
}
