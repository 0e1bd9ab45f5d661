//! A Kubernetes with nodes: pods run, and reach each other by name.

mod chart;
mod command_line;
mod edits;
mod faults;
mod installation;
mod probe;
mod prometheus;
mod sidecar;
mod soak;
mod uninstall;
mod walkthrough;

use std::sync::atomic::{AtomicBool, Ordering};

use assent_e2e::{kube::Cluster, up::condition};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

/// Tests take turns: what one does to a node it does to all, and there is one installation per
/// cluster. After a test that failed, its installation is in the way of the next one.
async fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let clean = !FAILED.load(Ordering::Relaxed);
    assert!(clean, "not run, because the test before it failed");
    Turn(turn)
}

static FAILED: AtomicBool = AtomicBool::new(false);

struct Turn(#[expect(dead_code, reason = "held until the test ends")] MutexGuard<'static, ()>);

impl Drop for Turn {
    fn drop(&mut self) {
        FAILED.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// A pod on a node that runs a shell.
fn pod(name: &str, node: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "shell",
                "image": "localhost/busybox:1",
                "imagePullPolicy": "Never",
                "args": ["-c", script],
            }],
        },
    })
}

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

#[tokio::test]
async fn pods_on_every_node_reach_a_service_by_its_name() {
    let _turn = turn().await;
    let cluster = Cluster::shared();
    let kubectl = cluster.kubectl.within("pods");
    kubectl.run(&["create", "namespace", "pods"]).await;
    kubectl.wait_there(&["serviceaccount", "default"]).await;

    let serve = "echo started; mkdir /w; echo hello > /w/index.html; exec httpd -f -p 8080 -h /w";
    kubectl.apply(&pod("web", "node2", serve).to_string()).await;
    kubectl.wait(&["pod", "web"], "ready", ready).await;
    kubectl
        .run(&["expose", "pod", "web", "--port=80", "--target-port=8080"])
        .await;
    assert_eq!(kubectl.run(&["logs", "web"]).await, "started\n");

    for node in ["node1", "node2", "node3"] {
        let name = format!("client-{node}");
        kubectl
            .apply(&pod(&name, node, "exec sleep infinity").to_string())
            .await;
        kubectl.wait(&["pod", &name], "ready", ready).await;
        // Until the rules of this node know the Service, connections are refused.
        let get = "for i in $(seq 30); do wget -qO- http://web.pods.svc.cluster.local && exit; sleep 1; done; exit 1";
        let answer = kubectl.run(&["exec", &name, "--", "sh", "-c", get]).await;
        assert_eq!(answer, "hello\n", "from {node}");
    }
    kubectl.run(&["delete", "namespace", "pods"]).await;
}
