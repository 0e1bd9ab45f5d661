//! Assent on a real API server: control planes and evaluators as processes, each evaluator with
//! the token of a real pod of the PolicyServer's StatefulSet. The harness does the work of kubelets.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::{ApiServer, Balancer, Kubectl};
use crate::{
    Evaluator, eventually, http,
    process::{Process, print_log, program},
    registry::Registry,
    tools::tool,
    up::{free_address, sample_of},
};

/// The control plane's namespace.
pub const NAMESPACE: &str = "assent-system";

/// A cluster with its control planes, evaluators and a registry.
pub struct Harness {
    /// The cluster.
    pub api: ApiServer,
    /// kubectl of an administrator, in the namespace `default`.
    pub kubectl: Kubectl,
    /// kubectl in the control plane's namespace.
    pub system: Kubectl,
    /// The registry with the modules.
    pub registry: Registry,
    /// Control planes, in the order in which they were started.
    pub planes: Vec<ControlPlane>,
    /// Evaluators, by the number of their pod.
    pub evaluators: Vec<Evaluator>,
    /// Stands for the discovery Service: sends evaluators to control planes.
    pub entry: Balancer,
    balancer: Balancer,
    kubeconfig: PathBuf,
    dir: tempfile::TempDir,
}

/// A control-plane process.
pub struct ControlPlane {
    /// The process.
    pub process: Process,
    /// Its name in the leader election.
    pub identity: String,
    /// Where evaluators connect.
    pub discovery: SocketAddr,
    /// Metrics and probes.
    pub http: SocketAddr,
    log: PathBuf,
}

/// The address of every evaluator's pod.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

// === impl Harness ===

impl Harness {
    /// A cluster with one control plane, the PolicyServer `default` and its evaluators.
    pub async fn start(replicas: usize) -> Self {
        let mut harness = Self::empty().await;
        harness.add_plane("a", &[]).await;
        harness.serve(replicas).await;
        harness
    }

    /// The same with the policy `np`, a [`no_privileged`] that is enforced; and its module's URL.
    pub async fn enforcing(replicas: usize) -> (Self, String) {
        let harness = Self::start(replicas).await;
        let module = harness
            .registry
            .push_example("nopriv:v1", "no-privileged")
            .await;
        harness.enforce(&no_privileged("np", &module, &[])).await;
        (harness, module)
    }

    /// A cluster with Assent's CRDs and permissions, and nothing else of Assent.
    pub async fn empty() -> Self {
        let api = ApiServer::start().await;
        api.install_crds().await;
        let kubectl = api.kubectl.within("default");
        kubectl.run(&["create", "namespace", NAMESPACE]).await;
        let system = api.kubectl.within(NAMESPACE);
        system.wait_there(&["serviceaccount", "default"]).await;
        kubectl.wait_there(&["serviceaccount", "default"]).await;
        system.apply(&rights()).await;
        let dir = tempfile::tempdir().expect("temporary directory must be made");
        let account = system.service_account("assent", dir.path());
        let kubeconfig = account.await.kubeconfig().to_owned();
        Self {
            registry: Registry::start().await,
            entry: Balancer::start([]).await,
            balancer: Balancer::start([]).await,
            planes: Vec::new(),
            evaluators: Vec::new(),
            api,
            kubectl,
            system,
            kubeconfig,
            dir,
        }
    }

    /// Starts a control plane. `env` may name a failpoint.
    pub async fn add_plane(&mut self, identity: &str, env: &[(&str, &str)]) {
        let mut plane = self.launch(identity, env);
        plane.wait_ready().await;
        self.planes.push(plane);
        self.entry.set(self.planes.iter().map(|p| p.discovery));
    }

    /// Ends the last control plane with `kill -9` and starts one in its place, under its name
    /// and on its addresses.
    pub async fn replace_plane(&mut self, env: &[(&str, &str)]) {
        let mut old = self.planes.pop().expect("there must be a control plane");
        old.process.kill();
        let ports = (old.discovery, old.http);
        let plane = self.launch_at(&old.identity, ports, env);
        self.planes.push(plane);
    }

    /// Makes the PolicyServer `default` and starts its evaluators.
    pub async fn serve(&mut self, replicas: usize) {
        let server = json!({
            "apiVersion": "policies.assent.dev/v1alpha1",
            "kind": "PolicyServer",
            "metadata": {"name": "default"},
            "spec": {
                "replicas": replicas,
                "sources": {"insecure": [self.registry.address.to_string()]},
            },
        });
        self.eventually_apply(&server).await;
        for number in 0..replicas {
            self.add_evaluator(number).await;
        }
    }

    /// Applies an object, with retries while Assent's own webhooks are not reachable yet.
    pub async fn eventually_apply(&self, object: &Value) {
        let text = object.to_string();
        eventually("the object is taken", async || {
            self.kubectl.try_apply(&text).await.is_ok()
        })
        .await;
    }

    /// Starts the evaluator of a pod and marks the pod as ready.
    pub async fn add_evaluator(&mut self, number: usize) {
        let pod = pod_name(number);
        let dir = self.dir.path().join(&pod);
        let args = self.credentials(&pod).await;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let discovery = format!("https://{}", self.entry.address());
        let _ = fs::create_dir_all(&dir);
        let evaluator = Evaluator::start_with(&discovery, &pod, &args).await;
        evaluator.wait_ready().await;
        self.system.pod_ready(&pod, LOOPBACK).await;
        self.evaluators.push(evaluator);
        self.balance();
    }

    /// Sends webhooks to the evaluators that there are.
    pub fn balance(&self) {
        self.balancer.set(self.evaluators.iter().map(|e| e.listen));
    }

    /// Sends webhooks to one evaluator only.
    pub fn send_to(&self, number: usize) {
        self.balancer.set([self.evaluators[number].listen]);
    }

    /// Files with which a process is a pod, as flags of an evaluator.
    pub async fn credentials(&self, pod: &str) -> [String; 4] {
        self.system.wait_there(&["pod", pod]).await;
        let token = self.system.create_token(pod).await;
        let file = self.dir.path().join(format!("{pod}.token"));
        token.write(&file);
        let ca = self.ca().await;
        let path = |path: &Path| path.to_str().expect("paths must be Unicode").to_owned();
        ["--token-file".into(), path(&file), "--ca".into(), path(&ca)]
    }

    /// The CA bundle, as a pod has it mounted.
    pub async fn ca(&self) -> PathBuf {
        let map = self.system.wait_there(&["configmap", "assent-ca"]).await;
        let bundle = map["data"]["ca.crt"].as_str().expect("it must have a key");
        let file = self.dir.path().join("ca.crt");
        fs::write(&file, bundle).expect("file must be written");
        file
    }

    /// Applies a policy and waits until its newest generation is enforced.
    pub async fn enforce(&self, policy: &Value) -> Value {
        self.eventually_apply(policy).await;
        let name = policy["metadata"]["name"]
            .as_str()
            .expect("it must have a name");
        self.enforced(name).await
    }

    /// Waits until the newest generation of a ClusterAdmissionPolicy is enforced.
    pub async fn enforced(&self, name: &str) -> Value {
        let is = |object: &Value| {
            let generation = &object["metadata"]["generation"];
            condition(object, "Enforced")["status"] == "True"
                && condition(object, "Enforced")["observedGeneration"] == *generation
        };
        self.kubectl.wait(&["cap", name], "enforced", is).await
    }

    /// Tries to make a pod, without making it: what the API server answers.
    pub async fn try_pod(&self, name: &str, privileged: bool) -> Result<String, String> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{
                "name": "c", "image": "busybox:1",
                "securityContext": {"privileged": privileged},
            }]},
        });
        let file = self.dir.path().join(format!("pod-{name}.json"));
        fs::write(&file, pod.to_string()).expect("file must be written");
        let file = file.to_str().expect("paths must be Unicode");
        let create = ["create", "--dry-run=server", "-f", file];
        self.kubectl.attempt(&create).await
    }

    /// Prints the ends of all logs.
    pub async fn dump(&self) {
        for plane in &self.planes {
            print_log(&format!("control plane {}", plane.identity), &plane.log);
        }
        let objects = ["get", "assent", "-A", "-o", "yaml"];
        eprintln!(
            "{}",
            self.kubectl.attempt(&objects).await.unwrap_or_else(|e| e)
        );
        self.api.print_logs();
    }

    fn launch(&self, identity: &str, env: &[(&str, &str)]) -> ControlPlane {
        self.launch_at(identity, (free_address(), free_address()), env)
    }

    fn launch_at(
        &self,
        identity: &str,
        (discovery, http): (SocketAddr, SocketAddr),
        env: &[(&str, &str)],
    ) -> ControlPlane {
        let webhook = free_address();
        let log = self
            .dir
            .path()
            .join(format!("control-plane-{identity}.log"));
        let state = self.dir.path().join(format!("state-{identity}"));
        let mut command = Command::new(program("assent-control-plane"));
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--identity", identity])
            .args(["--discovery", &discovery.to_string()])
            .args(["--webhook", &webhook.to_string()])
            .args(["--own-webhook-url", &format!("https://{webhook}")])
            .args(["--http", &http.to_string()])
            .arg("--state")
            .arg(state)
            .args([
                "--webhook-base-url",
                &format!("https://{}", self.balancer.address()),
            ])
            .args(["--drain-seconds", "2", "--replica-grace", "10"])
            // Long enough for a busy machine, and short enough to wait for.
            .args(["--lease-seconds", "6"])
            // The API server calls webhooks directly.
            .args(["--linger-seconds", "0"])
            .envs(env.iter().copied());
        ControlPlane {
            process: Process::start(&mut command, &log),
            identity: identity.to_owned(),
            discovery,
            http,
            log,
        }
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Waits until it is ready; it must not end.
    pub async fn wait_ready(&mut self) {
        let url = format!("http://{}/readyz", self.http);
        let (process, identity) = (&mut self.process, &self.identity);
        eventually(&format!("{identity} is ready"), async || {
            assert!(process.ended().is_none(), "{identity} ended");
            let probe = http::request(&url, None).await;
            probe.is_ok_and(|(code, _)| code == 200)
        })
        .await;
    }

    /// Waits until it leads and has read everything.
    pub async fn wait_leading(&self) {
        eventually(&format!("{} leads", self.identity), async || {
            self.metric("assent_leader").await == Some(1.0)
        })
        .await;
    }

    /// One sample of its metrics; none if it does not respond.
    pub async fn metric(&self, sample: &str) -> Option<f64> {
        let text = self.metrics().await?;
        Some(sample_of(&text, sample))
    }

    /// Its metrics; none if it does not respond.
    pub async fn metrics(&self) -> Option<String> {
        let answer = http::request(&format!("http://{}/metrics", self.http), None).await;
        let (_, body) = answer.ok()?;
        Some(String::from_utf8_lossy(&body).into_owned())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_log(&format!("control plane {}", self.identity), &self.log);
        }
    }
}

/// Name of a pod of the PolicyServer `default`.
pub fn pod_name(number: usize) -> String {
    format!("policy-server-default-{number}")
}

/// One condition of an object; null if there is none.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .find(|c| c["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// A policy that denies privileged pods, but for some images.
pub fn no_privileged(name: &str, module: &str, exempt: &[&str]) -> Value {
    json!({
        "apiVersion": "policies.assent.dev/v1alpha1",
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "module": module,
            "settings": {"exemptImages": exempt},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "operations": ["CREATE", "UPDATE"],
            }],
        },
    })
}

/// The rights that the chart gives the control plane, and no others.
fn rights() -> String {
    chart(&["context.yaml", "rbac.yaml", "serviceaccount.yaml"])
}

/// Objects of the chart, by the names of their templates.
pub fn chart(templates: &[&str]) -> String {
    chart_with(templates, &[])
}

/// As [`chart`], with values in the form of `helm --set`.
pub fn chart_with(templates: &[&str], values: &[&str]) -> String {
    let values = values.iter().flat_map(|value| ["--set", value]);
    let show = templates
        .iter()
        .flat_map(|name| ["--show-only".to_owned(), format!("templates/{name}")]);
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/assent");
    let output = Command::new(tool("ASSENT_HELM"))
        .args(["template", "assent"])
        .arg(chart)
        .args(["--namespace", NAMESPACE])
        .args(values)
        .args(show)
        .output()
        .expect("helm must start");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("a chart must be text")
}
