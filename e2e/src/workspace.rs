//! One `assent up` that many tests share; each test has its own PolicyServer.

use std::sync::{Arc, Weak};

use assent_proto::v1;
use tokio::sync::Mutex;
use tonic::transport::Channel;

use crate::{
    Delta, Options, Up,
    client::node_of,
    eventually,
    manifest::{self, Policy},
};

/// One test's part of the shared process: a PolicyServer that no other test uses.
pub struct Workspace {
    /// The process.
    pub up: Arc<Up>,
    /// Its PolicyServer.
    pub server: String,
}

/// Ends with the last test that uses it.
static SHARED: Mutex<Weak<Up>> = Mutex::const_new(Weak::new());

/// Short times, because tests wait for them.
const ARGS: [&str; 8] = [
    "--drain-seconds",
    "2",
    "--replica-grace",
    "2",
    "--send-deadline",
    "2",
    "--sync-deadline",
    "30",
];

// === impl Workspace ===

impl Workspace {
    /// A PolicyServer of the shared process, without policies.
    pub async fn new(server: &str) -> Self {
        let up = shared().await;
        Self::on(up, server).await
    }

    /// A PolicyServer of another process.
    pub async fn on(up: Arc<Up>, server: &str) -> Self {
        up.write(&format!("{server}-server.yaml"), manifest::server(server));
        let known = async || up.fetch(server).await.is_ok();
        eventually("the PolicyServer is known", known).await;
        let server = server.to_owned();
        Self { up, server }
    }

    /// A PolicyServer with one policy, `<server>-a`, accepted.
    pub async fn with_policy(server: &str) -> Self {
        let workspace = Self::new(server).await;
        workspace.apply("a", "{}").await;
        workspace
    }

    /// Name of a policy of this server.
    pub fn name(&self, policy: &str) -> String {
        format!("{}-{policy}", self.server)
    }

    /// Key of a policy of this server.
    pub fn key(&self, policy: &str) -> String {
        format!("cluster/{}", self.name(policy))
    }

    /// The manifest of a policy of this server.
    pub fn manifest(&self, policy: &str) -> Policy {
        Policy::cluster(&self.name(policy)).server(&self.server)
    }

    /// Writes a policy with these settings and waits until it is published: its generation.
    pub async fn apply(&self, policy: &str, settings: &str) -> i64 {
        let name = self.name(policy);
        let before = self.up.policy(&name).await;
        let before = before.map_or(0, |p| p["metadata"]["generation"].as_i64().unwrap_or(0));
        self.up
            .apply(&name, &self.manifest(policy).settings(settings));
        let (key, generation) = (self.key(policy), before + 1);
        self.up.wait_published(&self.server, &key, generation).await;
        generation
    }

    /// Removes a policy's manifest.
    pub fn delete(&self, policy: &str) {
        self.up.remove(&format!("{}.yaml", self.name(policy)));
    }

    /// A replica of this server.
    pub fn node(&self, id: &str) -> v1::Node {
        node_of(&self.server, id)
    }

    /// A channel to discovery.
    pub async fn channel(&self) -> Channel {
        self.up.channel().await
    }

    /// A stream of a replica without state.
    pub async fn connect(&self, id: &str) -> Delta {
        Delta::connect(self.channel().await, self.node(id)).await
    }

    /// A stream that has followed until generation 1 of the policy `a` is active.
    pub async fn settled(&self, id: &str) -> Delta {
        let mut stream = self.connect(id).await;
        stream.follow_active(&self.key("a"), 1).await;
        stream
    }

    /// What is known about a replica, once `holds`.
    pub async fn replica(
        &self,
        id: &str,
        holds: impl Fn(&v1::ReplicaStatus) -> bool,
    ) -> v1::ReplicaStatus {
        self.up.wait_replica(&self.server, id, holds).await
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.up.print_log();
        }
    }
}

async fn shared() -> Arc<Up> {
    let mut shared = SHARED.lock().await;
    if let Some(up) = shared.upgrade() {
        return up;
    }
    let up = Arc::new(Up::start(Options::default().args(&ARGS)).await);
    *shared = Arc::downgrade(&up);
    up
}
