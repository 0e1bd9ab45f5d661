//! `assent up` as a process.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use assent_proto::v1::{
    self, ClientStatusRequest, ClientStatusResponse, PolicyDiscoveryRequest,
    client_status_service_client::ClientStatusServiceClient,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use bytes::Bytes;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};

use crate::{
    PATIENCE, eventually, http,
    manifest::Policy,
    module,
    process::{Process, print_log, program},
};

/// How to start it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Evaluators of its own.
    pub replicas: u16,
    /// More flags.
    pub args: Vec<String>,
    /// Whether the directory of policies is made before the start.
    pub make_directory: bool,
    /// Files that are in the directory before the start.
    pub files: Vec<(String, Vec<u8>)>,
    /// Another place for the state.
    pub state: Option<PathBuf>,
}

/// A running `assent up`, with a directory of its own.
pub struct Up {
    /// The process.
    pub process: Process,
    /// Address of discovery.
    pub discovery: SocketAddr,
    /// Address of HTTP.
    pub http: SocketAddr,
    options: Options,
    dir: tempfile::TempDir,
}

// === impl Options ===

impl Default for Options {
    /// No evaluators, short times, and a module that accepts everything.
    fn default() -> Self {
        let options = Self {
            replicas: 0,
            args: Vec::new(),
            make_directory: true,
            files: Vec::new(),
            state: None,
        };
        options.file("accept.wasm", module::accept_all(""))
    }
}

impl Options {
    /// So many evaluators of its own.
    pub fn replicas(replicas: u16) -> Self {
        Self {
            replicas,
            ..Self::default()
        }
    }

    /// With these flags too.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|a| (*a).to_owned()));
        self
    }

    /// With this file in the directory.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_owned(), content.into()));
        self
    }

    /// With a policy that accepts everything.
    #[must_use]
    pub fn policy(self, name: &str) -> Self {
        self.file(&format!("{name}.yaml"), Policy::cluster(name).to_string())
    }
}

// === impl Up ===

impl Up {
    /// Starts it and waits until it listens.
    pub async fn start(options: Options) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let policies = dir.path().join("policies");
        if options.make_directory {
            fs::create_dir_all(&policies).expect("directory must be made");
            for (name, content) in &options.files {
                fs::write(policies.join(name), content).expect("file must be written");
            }
        }
        let (discovery, http) = (free_address(), free_address());
        let process = spawn(&dir, &options, discovery, http);
        let mut up = Self {
            process,
            discovery,
            http,
            options,
            dir,
        };
        up.wait_live().await;
        up
    }

    /// Starts it again on the same state and addresses.
    pub async fn restart(&mut self) {
        self.process = spawn(&self.dir, &self.options, self.discovery, self.http);
        self.wait_live().await;
    }

    /// The directory of policies.
    pub fn policies(&self) -> PathBuf {
        self.dir.path().join("policies")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.options
            .state
            .clone()
            .unwrap_or_else(|| self.dir.path().join("state"))
    }

    /// A directory for whatever else a test needs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Writes a file into the directory of policies, whole at once.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let scratch = self.dir.path().join(format!("scratch-{name}"));
        fs::write(&scratch, content).expect("file must be written");
        fs::rename(&scratch, self.policies().join(name)).expect("file must be moved");
    }

    /// Writes a policy into a file of its name.
    pub fn apply(&self, name: &str, policy: &Policy) {
        self.write(&format!("{name}.yaml"), policy.to_string());
    }

    /// Removes a file from the directory of policies.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.policies().join(name)).expect("file must be there");
    }

    /// Where discovery is, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.discovery)
    }

    /// A gRPC channel to discovery.
    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.url()).expect("address must be a URI");
        endpoint
            .connect()
            .await
            .expect("discovery must accept connections")
    }

    /// `GET` or `POST` on the HTTP address: code and body.
    pub async fn request(&self, path: &str, body: Option<Bytes>) -> Result<(u16, Bytes), String> {
        http::request(&format!("http://{}{path}", self.http), body).await
    }

    /// `POST /admit` with a new pod: the response, once the directory was read.
    pub async fn admit(&self) -> Value {
        let url = format!("http://{}/admit", self.http);
        let ready = async || {
            self.request("/readyz", None)
                .await
                .is_ok_and(|(code, _)| code == 200)
        };
        eventually("the directory of policies was read", ready).await;
        let (code, answer) = http::review(&url, &http::pod())
            .await
            .expect("/admit must answer");
        assert_eq!(code, 200, "{answer}");
        answer["response"].clone()
    }

    /// `GET /metrics`: one sample by its full name with labels; 0 if it is missing.
    pub async fn metric(&self, sample: &str) -> f64 {
        let (_, body) = self
            .request("/metrics", None)
            .await
            .expect("/metrics must answer");
        sample_of(&String::from_utf8_lossy(&body), sample)
    }

    /// `GET /status`: all policies.
    pub async fn objects(&self) -> Vec<Value> {
        let (code, body) = self
            .request("/status", None)
            .await
            .expect("/status must answer");
        assert_eq!(code, 200);
        serde_json::from_slice(&body).expect("/status must be a JSON list")
    }

    /// One policy out of `/status`.
    pub async fn policy(&self, name: &str) -> Option<Value> {
        let objects = self.objects().await;
        objects.into_iter().find(|o| o["metadata"]["name"] == name)
    }

    /// Waits until the policy is there and `holds`.
    pub async fn wait(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            match self.policy(name).await {
                Some(policy) if holds(&policy) => return policy,
                last => assert!(
                    start.elapsed() < PATIENCE,
                    "waited for {name} to be {what}, last seen: {last:#?}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Waits until the policy is gone.
    pub async fn wait_gone(&self, name: &str) {
        let gone = async || self.policy(name).await.is_none();
        eventually(&format!("{name} is gone"), gone).await;
    }

    /// Waits until this generation of the policy is enforced.
    pub async fn wait_enforced(&self, name: &str, generation: i64) -> Value {
        let what = format!("enforced at generation {generation}");
        let policy = self.wait(name, &what, |p| {
            p["status"]["active"]["generation"] == generation
                && p["metadata"]["generation"] == generation
                && condition(p, "Enforced")["status"] == "True"
        });
        let policy = policy.await;
        self.wait_flip_published(name, &policy).await;
        policy
    }

    /// A flip takes effect a moment before the set that contains it is sent: changes are
    /// coalesced. If the set cannot be read without a token, this does not wait.
    async fn wait_flip_published(&self, name: &str, policy: &Value) {
        let revision = policy["status"]["active"]["revision"].as_str();
        let path = format!("/{name}/{}", revision.unwrap_or_default());
        let server = policy["spec"]["policyServer"].as_str().unwrap_or("default");
        eventually(&format!("{path} is active"), async || {
            let Ok(set) = self.fetch(server).await else {
                return true;
            };
            let own = |r: &v1::Route| r.path.ends_with(&path);
            let mut own = set.routes.iter().filter(|r| own(r));
            own.all(|r| r.state() == v1::RouteState::Active)
        })
        .await;
    }

    /// Waits until this generation of the policy is in the set of its server.
    pub async fn wait_published(&self, server: &str, policy: &str, generation: i64) {
        let prefix = format!("{policy}/{generation}-");
        let published = async || {
            let set = self.fetch(server).await;
            set.is_ok_and(|set| set.policies.iter().any(|p| p.revision.starts_with(&prefix)))
        };
        eventually(&format!("{prefix} is published"), published).await;
    }

    /// Waits until this generation was looked at, with this reason.
    pub async fn wait_accepted(&self, name: &str, generation: i64, reason: &str) -> Value {
        let what = format!("{reason} at generation {generation}");
        self.wait(name, &what, |p| {
            p["metadata"]["generation"] == generation
                && condition(p, "Accepted")["reason"] == reason
        })
        .await
    }

    /// The full set of a server, whoever asks.
    pub async fn fetch(&self, server: &str) -> Result<v1::PolicyDiscoveryResponse, tonic::Status> {
        let client = PolicyDiscoveryServiceClient::new(self.channel().await);
        let node = v1::Node {
            policy_server: server.into(),
            ..v1::Node::default()
        };
        let request = PolicyDiscoveryRequest {
            node: Some(node),
            ..PolicyDiscoveryRequest::default()
        };
        let mut client = client.max_decoding_message_size(64 << 20);
        Ok(client.fetch_policies(request).await?.into_inner())
    }

    /// What the control plane knows about the replicas of a server.
    pub async fn replicas(&self, server: &str) -> ClientStatusResponse {
        let mut client = ClientStatusServiceClient::new(self.channel().await);
        let request = ClientStatusRequest {
            policy_server: server.into(),
            page_size: 1_000,
            ..ClientStatusRequest::default()
        };
        let response = client.fetch_client_status(request).await;
        response.expect("client status must answer").into_inner()
    }

    /// Waits until a replica is there and `holds`.
    pub async fn wait_replica(
        &self,
        server: &str,
        id: &str,
        holds: impl Fn(&v1::ReplicaStatus) -> bool,
    ) -> v1::ReplicaStatus {
        let start = Instant::now();
        loop {
            let replicas = self.replicas(server).await.replicas;
            let named = |r: &v1::ReplicaStatus| r.node.as_ref().is_some_and(|n| n.id == id);
            match replicas.into_iter().find(named) {
                Some(replica) if holds(&replica) => return replica,
                last => assert!(
                    start.elapsed() < PATIENCE,
                    "replica {id}, last seen: {last:#?}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Prints the end of its log.
    pub fn print_log(&self) {
        print_log("assent up", &self.dir.path().join("log"));
    }

    async fn wait_live(&mut self) {
        let start = Instant::now();
        while self.request("/livez", None).await.is_err() {
            if let Some(status) = self.process.ended() {
                panic!("assent up ended with {status}:\n{}", self.log());
            }
            assert!(start.elapsed() < PATIENCE, "assent up does not listen");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_log();
        }
    }
}

/// One condition of an object out of `/status`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.map(Vec::as_slice).unwrap_or_default().iter();
    conditions
        .find(|c| c["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// One sample out of an exposition.
pub fn sample_of(exposition: &str, sample: &str) -> f64 {
    let value = |line: &str| {
        line.strip_prefix(sample)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    };
    exposition.lines().find_map(value).unwrap_or(0.0)
}

/// An address on loopback that is free now, and stays so: it is below the ports that systems
/// give to outgoing connections, of which tests make thousands, and none is given out twice.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    // Test programs that run side by side start at different places, those of neighbouring
    // process ids too: each needs some hundred ports.
    const APART: u32 = 257;
    let start = std::process::id().wrapping_mul(APART) % u32::from(COUNT);
    let start = u16::try_from(start).expect("a rest must fit");
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(next < COUNT, "a port must be free");
        let address = SocketAddr::from(([127, 0, 0, 1], FIRST + (start + next) % COUNT));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

fn spawn(
    dir: &tempfile::TempDir,
    options: &Options,
    discovery: SocketAddr,
    http: SocketAddr,
) -> Process {
    let state = options
        .state
        .clone()
        .unwrap_or_else(|| dir.path().join("state"));
    let mut command = Command::new(program("assent"));
    command
        .arg("up")
        .arg("--policies")
        .arg(dir.path().join("policies"))
        .arg("--state")
        .arg(state)
        .args(["--replicas", &options.replicas.to_string()])
        .args(["--discovery", &discovery.to_string()])
        .args(["--http", &http.to_string()])
        .args(&options.args);
    Process::start(&mut command, &dir.path().join("log"))
}
