//! The chart on real nodes, by the real helm, and one policy that it enforces.

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use assent_e2e::{
    kube::{
        Cluster, Kubectl,
        api::{self, POLICIES},
        harness::no_privileged,
    },
    process::text,
    tools::tool,
    up::condition,
};
use kube::Client;
use serde_json::{Value, json};

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Where the control plane and its evaluators are.
pub(crate) const SYSTEM: &str = "assent-system";

/// Where users are, and the policy applies.
pub(crate) const SHOP: &str = "shop";

/// The policy.
pub(crate) const POLICY: &str = "no-privileged";

/// The policy's own message: a webhook that fails denies with another one.
pub(crate) const WORDS: &str = "denied the request: privileged containers are not allowed";

/// Pods of the control plane, as a query.
pub(crate) const PLANES: &str = "app.kubernetes.io%2Fcomponent%3Dcontrol-plane";

/// Pods of the PolicyServer, as a query.
pub(crate) const EVALUATORS: &str = "app.kubernetes.io%2Fcomponent%3Dpolicy-server";

/// How long anything may take: pods come and go one after the other, on two cores.
const PATIENCE: Duration = Duration::from_secs(180);

const MODULES: &str = "modules.shop.svc.cluster.local";
const SERVER: &str = "/apis/policies.assent.dev/v1alpha1/policyservers/default";

/// An installation on the shared cluster.
pub(crate) struct Installation {
    pub(crate) cluster: &'static Cluster,
    /// As an administrator, where users are.
    pub(crate) kubectl: Kubectl,
    /// A client, for frequent requests.
    pub(crate) client: Client,
    edits: AtomicU32,
    contents: AtomicU64,
}

// === impl Installation ===

impl Installation {
    /// Everything that there must be before the first command of a user.
    pub(crate) async fn prepare() -> Self {
        let cluster = Cluster::shared();
        let kubectl = cluster.kubectl.within(SHOP);
        load_images(cluster);
        serve_module(&kubectl).await;
        Self {
            cluster,
            client: api::client(kubectl.kubeconfig()).await,
            kubectl,
            edits: AtomicU32::new(0),
            contents: AtomicU64::new(0),
        }
    }

    /// `helm install` or `upgrade`, and waits.
    pub(crate) fn helm(&self, args: &[&str], values: &Value) {
        let file = tempfile::NamedTempFile::new().expect("a file must be made");
        std::fs::write(&file, values.to_string()).expect("a file must be written");
        let values = file.path().to_str().expect("paths must be Unicode");
        let chart = format!("{ROOT}/charts/assent");
        let release = ["assent", &chart, "--values", values, "--wait"];
        self.run_helm(&[args, &release].concat());
    }

    /// Any command of helm.
    pub(crate) fn run_helm(&self, args: &[&str]) {
        let mut helm = Command::new(tool("ASSENT_HELM"));
        helm.env("KUBECONFIG", self.kubectl.kubeconfig());
        helm.args(args).arg(format!("--namespace={SYSTEM}"));
        let output = helm.output().expect("helm must start");
        assert!(
            output.status.success(),
            "helm {}: {}",
            args.join(" "),
            text(&output)
        );
    }

    /// Makes the policy, and waits until it is enforced.
    pub(crate) async fn protect(&self) {
        let mut policy = no_privileged(POLICY, &module(), &[]);
        let shop = json!({"matchLabels": {"kubernetes.io/metadata.name": SHOP}});
        policy["spec"]["namespaceSelector"] = shop;
        self.kubectl.apply(&policy.to_string()).await;
        self.enforced().await;
    }

    /// The policy as it is.
    pub(crate) async fn policy(&self) -> Value {
        api::get(&self.client, &policy_path()).await
    }

    /// Edits the policy: only these images may be privileged.
    pub(crate) async fn edit(&self, exempt: &str) -> Value {
        let (code, object) =
            api::ask(&self.client, "PATCH", &policy_path(), &exempting(exempt)).await;
        assert_eq!(code, 200, "{object}");
        object
    }

    /// An edit that no request notices, and waits until it is enforced.
    pub(crate) async fn change(&self) -> Value {
        let number = self.edits.fetch_add(1, Ordering::Relaxed);
        self.edit(&format!("example.com/edit-{number}:*")).await;
        self.enforced().await
    }

    /// The number of a content that the policy never had.
    pub(crate) fn next_content(&self) -> u64 {
        self.contents.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The newest of these numbers.
    pub(crate) fn contents(&self) -> u64 {
        self.contents.load(Ordering::Relaxed)
    }

    /// Waits until the newest generation of the policy is enforced.
    pub(crate) async fn enforced(&self) -> Value {
        self.enforced_at(&policy_path()).await
    }

    /// The same for any policy.
    pub(crate) async fn enforced_at(&self, path: &str) -> Value {
        let is = |policy: &Value| {
            let enforced = condition(policy, "Enforced");
            enforced["status"] == "True"
                && enforced["observedGeneration"] == policy["metadata"]["generation"]
        };
        self.wait(path, "enforced", is).await
    }

    /// The PolicyServer as it is.
    pub(crate) async fn server(&self) -> Value {
        api::get(&self.client, SERVER).await
    }

    /// Pods of the control plane's namespace, [`PLANES`] or [`EVALUATORS`].
    pub(crate) async fn pods(&self, query: &str) -> Vec<Value> {
        let list = api::get(&self.client, &pods_path(query)).await;
        items(&list).to_vec()
    }

    /// The leader's pod; none without a leader.
    pub(crate) async fn leader(&self) -> Option<Value> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
        let lease = api::get(&self.client, &format!("{path}/assent-control-plane")).await;
        let holder = &lease["spec"]["holderIdentity"];
        let planes = self.pods(PLANES).await;
        planes
            .into_iter()
            .find(|p| p["metadata"]["name"] == *holder)
    }

    /// Waits until a pod leads that is not this one.
    pub(crate) async fn led_by_another(&self, before: &Value) {
        let another = async || {
            let leader = self.leader().await;
            leader.is_some_and(|leader| uid(&leader) != uid(before))
        };
        within_patience("another leads", another).await;
    }

    /// Waits until there are so many pods, all of them ready and none of these.
    pub(crate) async fn ready(&self, query: &str, count: usize, before: &[Value]) {
        let path = pods_path(query);
        let old: Vec<&str> = before.iter().map(uid).collect();
        let what = format!("{count} ready pods");
        let new = |list: &Value| {
            let pods = items(list);
            let stands = |pod: &Value| is_ready(pod) && !old.contains(&uid(pod));
            pods.len() == count && pods.iter().all(stands)
        };
        self.wait(&path, &what, new).await;
    }

    /// Waits until there are so many evaluators, all of them serving everything, and both
    /// control planes.
    pub(crate) async fn whole(&self, evaluators: usize) {
        self.ready(EVALUATORS, evaluators, &[]).await;
        self.ready(PLANES, 2, &[]).await;
        let pods = self.pods(EVALUATORS).await;
        let current = |server: &Value| pods.iter().all(|pod| is_current(server, name(pod)));
        self.wait(SERVER, "served by all", current).await;
    }

    /// Waits until the object is there and `holds`.
    pub(crate) async fn wait(
        &self,
        path: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let start = Instant::now();
        loop {
            match api::try_ask(&self.client, "GET", path, &Value::Null).await {
                Ok((200, object)) if holds(&object) => return object,
                last => assert!(
                    start.elapsed() < PATIENCE,
                    "waited for {path} to be {what}, last seen: {last:#?}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Prints what somebody looks at first.
    pub(crate) async fn dump(&self) {
        for look in LOOKS {
            let args: Vec<&str> = look.split(' ').collect();
            let said = self.kubectl.attempt(&args).await.unwrap_or_else(|e| e);
            eprintln!("--- kubectl {look}\n{}", said.trim_end());
        }
    }
}

const LOOKS: [&str; 5] = [
    "get pods --all-namespaces --output=wide",
    "get assent --all-namespaces --output=yaml",
    "get events --all-namespaces --sort-by=.lastTimestamp",
    "logs --namespace=assent-system --selector=app.kubernetes.io/component=control-plane --prefix --tail=60",
    "logs --namespace=assent-system --selector=app.kubernetes.io/component=policy-server --prefix --tail=60",
];

/// What a user's first command says, for images that nodes have. Times that are waited for are
/// short.
pub(crate) fn values(pull_policy: &str) -> Value {
    json!({
        "image": {"registry": "localhost", "tag": "dev", "pullPolicy": pull_policy},
        "controlPlane": {"extraArgs": ["--lease-seconds=6"]},
        "policyServer": {
            "replicas": 3,
            "spec": {
                "sources": {"insecure": [MODULES]},
                "env": [{"name": "ASSENT_DRAIN_SECONDS", "value": "5"}],
            },
        },
        "injection": {"allowedNamespaces": [SHOP]},
    })
}

/// Where the policy's module is.
pub(crate) fn module() -> String {
    format!("http://{MODULES}/policy.wasm")
}

/// Path of the policy's object.
pub(crate) fn policy_path() -> String {
    format!("{POLICIES}/{POLICY}")
}

/// An edit of the policy: only these images may be privileged.
pub(crate) fn exempting(images: &str) -> Value {
    json!({"spec": {"settings": {"exemptImages": [images]}}})
}

/// A pod that nobody schedules.
pub(crate) fn pod(name: &str, image: &str, privileged: bool) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"made-by": "test"}},
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c",
                "image": image,
                "securityContext": {"privileged": privileged},
            }],
        },
    })
}

/// Waits until `check` holds.
pub(crate) async fn within_patience(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs a step and prints how long it took.
pub(crate) async fn timed<T>(what: &str, step: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = step.await;
    eprintln!("{:5.1} s  until {what}", begun.elapsed().as_secs_f32());
    done
}

/// Objects of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Name of an object.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Which life of its name it is.
pub(crate) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Whether an evaluator serves everything, according to its PolicyServer.
pub(crate) fn is_current(server: &Value, evaluator: &str) -> bool {
    let rows = server["status"]["evaluators"].as_array();
    let mut rows = rows.into_iter().flatten();
    let row = rows.find(|row| row["name"] == evaluator);
    row.is_some_and(|row| row["conditions"][0]["status"] == "True")
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True" && pod["metadata"]["deletionTimestamp"].is_null()
}

fn pods_path(query: &str) -> String {
    format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector={query}")
}

fn load_images(cluster: &Cluster) {
    for program in ["control-plane", "evaluator"] {
        let image = PathBuf::from(format!("{ROOT}/dist/images/assent-{program}.tar"));
        assert!(
            image.exists(),
            "{} is missing: run `just images dev`",
            image.display()
        );
        cluster.load(&image);
    }
}

/// A pod that serves the module: there is no registry in the cluster. It is on the first node,
/// which no fault takes away.
async fn serve_module(kubectl: &Kubectl) {
    kubectl.run(&["create", "namespace", SHOP]).await;
    kubectl.wait_there(&["serviceaccount", "default"]).await;
    let file = format!("--from-file={ROOT}/policies/no-privileged/policy.wasm");
    let map = ["create", "configmap", "modules", &file];
    kubectl.run(&map).await;
    let mut pod = crate::pod("modules", "node1", "exec httpd -f -p 8080 -h /modules");
    let spec = &mut pod["spec"];
    spec["volumes"] = json!([{"name": "modules", "configMap": {"name": "modules"}}]);
    let mounts = json!([{"name": "modules", "mountPath": "/modules"}]);
    spec["containers"][0]["volumeMounts"] = mounts;
    kubectl.apply(&pod.to_string()).await;
    kubectl.wait(&["pod", "modules"], "ready", is_ready).await;
    let expose = "expose pod modules --port=80 --target-port=8080";
    let expose: Vec<&str> = expose.split(' ').collect();
    kubectl.run(&expose).await;
}
