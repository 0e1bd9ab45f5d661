//! etcd, kube-apiserver and kube-controller-manager as processes.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Kubectl, cleanup::CleanupGuard, crds, pki};
use crate::{
    PATIENCE, eventually,
    process::{Process, print_log},
    tools::tool,
    up::{condition, free_address},
};

/// A running Kubernetes API. All of it goes with this value, or with the test program.
pub struct ApiServer {
    /// kubectl as an administrator, in the namespace `default`.
    pub kubectl: Kubectl,
    /// Ends the processes: first of the fields to be dropped.
    _cleanup: CleanupGuard,
    parts: Mutex<Parts>,
    plan: Plan,
}

struct Parts {
    etcd: Process,
    apiserver: Option<Process>,
    controllers: Option<Process>,
}

/// Everything that a start of a part needs, so that it can be started again.
struct Plan {
    programs: Programs,
    dir: PathBuf,
    address: SocketAddr,
    etcd: SocketAddr,
    args: Vec<String>,
}

struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
    controllers: PathBuf,
}

/// Those that act on what Assent makes. The others watch nodes and volumes, of which there
/// are none, and cost memory.
const CONTROLLERS: [&str; 14] = [
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "validatingadmissionpolicy-status-controller",
];

const LOGS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

// === impl ApiServer ===

impl ApiServer {
    /// Starts one on free ports and waits until it is ready.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same, with more flags for kube-apiserver.
    pub async fn start_with(args: &[&str]) -> Self {
        let programs = Programs::find();
        let dir = tempfile::Builder::new().prefix("assent-kube-").tempdir();
        // The cleanup guard removes it.
        let dir = dir.expect("temporary directory must be made").keep();
        pki::write(&dir);
        let plan = Plan {
            programs,
            address: free_address(),
            etcd: free_address(),
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            dir,
        };
        plan.write_kubeconfig("admin");
        plan.write_kubeconfig("controllers");
        let etcd = plan.start_etcd();
        let server = Self {
            kubectl: Kubectl::new(&plan.path("admin.kubeconfig")),
            _cleanup: CleanupGuard::of_group(group(&etcd), &plan.dir),
            parts: Mutex::new(Parts {
                etcd,
                apiserver: None,
                controllers: None,
            }),
            plan,
        };
        // An API server that finds nobody there waits longer than needed before it tries again.
        let listening = async || TcpStream::connect(server.plan.etcd).is_ok();
        eventually("etcd listens", listening).await;
        server.start_apiserver().await;
        server.start_controllers().await;
        server
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("https://{}", self.plan.address)
    }

    /// A directory for whatever else a test needs, as long as this runs.
    pub fn dir(&self) -> &Path {
        &self.plan.dir
    }

    /// Applies the definitions of Assent's kinds and waits until they are served. Safe to
    /// call from every test.
    pub async fn install_crds(&self) {
        for file in crds() {
            let file = file.to_str().expect("paths must be Unicode");
            let apply = ["apply", "--server-side", "--force-conflicts", "-f", file];
            self.kubectl.run(&apply).await;
            // `kubectl wait` fails on an object that has no conditions yet.
            let served = |crd: &Value| condition(crd, "Established")["status"] == "True";
            self.kubectl.wait(&["-f", file], "served", served).await;
        }
    }

    /// Kills the API server. Objects stay in etcd. For a server that no other test uses.
    pub fn stop_apiserver(&self) {
        self.parts().apiserver = None;
    }

    /// Starts the API server on the same address and waits until it is ready.
    pub async fn start_apiserver(&self) {
        {
            let mut parts = self.parts();
            let apiserver = self.plan.start_apiserver(group(&parts.etcd));
            parts.apiserver = Some(apiserver);
        }
        let start = Instant::now();
        while !self.ready().await {
            if let Some(what) = self.ended() {
                panic!("{what} ended before it was ready");
            }
            assert!(start.elapsed() < PATIENCE, "kube-apiserver is not ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills the API server and starts it again. For a server that no other test uses.
    pub async fn restart_apiserver(&self) {
        self.stop_apiserver();
        self.start_apiserver().await;
    }

    /// Prints the ends of the logs and keeps the complete logs.
    pub fn print_logs(&self) {
        let kept = format!("assent-kube-logs-{}", std::process::id());
        let kept = std::env::temp_dir().join(kept);
        let _ = fs::create_dir_all(&kept);
        for who in LOGS {
            let log = self.plan.log(who);
            print_log(who, &log);
            let _ = fs::copy(&log, kept.join(who));
        }
        eprintln!("--- all that they said is in {}", kept.display());
    }

    async fn start_controllers(&self) {
        {
            let mut parts = self.parts();
            let controllers = self.plan.start_controllers(group(&parts.etcd));
            parts.controllers = Some(controllers);
        }
        let account = ["serviceaccount", "default"];
        let working = async || self.kubectl.try_get(&account).await.is_ok();
        eventually("kube-controller-manager works", working).await;
    }

    async fn ready(&self) -> bool {
        // A connection costs nothing, kubectl does.
        TcpStream::connect(self.plan.address).is_ok()
            && self
                .kubectl
                .attempt(&["get", "--raw=/readyz"])
                .await
                .is_ok()
    }

    /// A part that ended by itself.
    fn ended(&self) -> Option<&'static str> {
        let mut parts = self.parts();
        if parts.etcd.ended().is_some() {
            return Some("etcd");
        }
        parts.apiserver.as_mut()?.ended().map(|_| "kube-apiserver")
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().expect("lock must not be poisoned")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

// === impl Programs ===

impl Programs {
    fn find() -> Self {
        Self {
            etcd: tool("ASSENT_ETCD"),
            apiserver: tool("ASSENT_KUBE_APISERVER"),
            controllers: tool("ASSENT_KUBE_CONTROLLER_MANAGER"),
        }
    }
}

// === impl Plan ===

impl Plan {
    fn start_etcd(&self) -> Process {
        let client = format!("http://{}", self.etcd);
        let peer = format!("http://{}", free_address());
        let mut command = Command::new(&self.programs.etcd);
        command
            .arg("--data-dir")
            .arg(self.path("etcd"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--log-level", "warn"])
            // What is lost with the machine is not missed.
            .arg("--unsafe-no-fsync");
        self.run("etcd", &mut command, 0)
    }

    fn start_apiserver(&self, group: i32) -> Process {
        let mut command = Command::new(&self.programs.apiserver);
        command
            .arg(format!("--etcd-servers=http://{}", self.etcd))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={}", self.address.port()))
            // Endpoints may not be on the loopback interface: without nodes nobody uses them.
            .arg("--endpoint-reconciler-type=none")
            .arg("--service-cluster-ip-range=10.96.0.0/24")
            .arg("--authorization-mode=RBAC")
            .arg("--allow-privileged=true")
            .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
            .arg(self.file("--tls-cert-file", "apiserver.pem"))
            .arg(self.file("--tls-private-key-file", "apiserver.key"))
            .arg(self.file("--client-ca-file", "ca.pem"))
            .arg(self.file("--service-account-key-file", "accounts.pub"))
            .arg(self.file("--service-account-signing-key-file", "accounts.key"))
            .args(&self.args);
        self.run("kube-apiserver", &mut command, group)
    }

    fn start_controllers(&self, group: i32) -> Process {
        let mut command = Command::new(&self.programs.controllers);
        command
            .arg(self.file("--kubeconfig", "controllers.kubeconfig"))
            .arg(self.file("--root-ca-file", "ca.pem"))
            .arg(self.file("--service-account-private-key-file", "accounts.key"))
            .arg(format!("--controllers={}", CONTROLLERS.join(",")))
            .args(["--leader-elect=false", "--secure-port=0"])
            // Tests make and remove more at once than people do.
            .args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        self.run("kube-controller-manager", &mut command, group)
    }

    /// All are in one group, which the cleanup guard knows: that of etcd, which is started first.
    fn run(&self, name: &str, command: &mut Command, group: i32) -> Process {
        Process::start(command.process_group(group), &self.log(name))
    }

    fn write_kubeconfig(&self, user: &str) {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority": self.path("ca.pem"),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": self.path(&format!("{user}.pem")),
                "client-key": self.path(&format!("{user}.key")),
            }}],
        });
        let file = self.path(&format!("{user}.kubeconfig"));
        fs::write(file, config.to_string()).expect("file must be written");
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.path(name).display())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn group(leader: &Process) -> i32 {
    i32::try_from(leader.0.id()).expect("a process id must fit")
}
