//! Does the work of kubelets, which are not there.

use std::{net::IpAddr, path::Path};

use serde_json::{Value, json};

use super::{AUDIENCE, Kubectl};

/// A token that lives as long as its pod.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub token: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
}

// === impl Token ===

impl Token {
    /// Writes it to a file, as a projected volume does.
    pub fn write(&self, file: &Path) {
        std::fs::write(file, &self.token).expect("file must be written");
    }
}

// === impl Kubectl ===

impl Kubectl {
    /// A token bound to a pod of this namespace, for [`AUDIENCE`].
    pub async fn create_token(&self, pod: &str) -> Token {
        self.create_token_for(pod, AUDIENCE).await
    }

    /// A token bound to a pod of this namespace, for another audience.
    pub async fn create_token_for(&self, pod: &str, audience: &str) -> Token {
        let object = self.get(&["pod", pod]).await;
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let uid = string(&object["metadata"]["uid"]);
        let account = string(&object["spec"]["serviceAccountName"]);
        let bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod];
        let args = ["create", "token", &account, "--audience", audience];
        let args = [&args[..], &bound, &["--bound-object-uid", &uid]].concat();
        let token = self.run(&args).await.trim().to_owned();
        let pod = pod.to_owned();
        Token { token, pod, uid }
    }

    /// Sets the status that a kubelet sets once a pod runs and its probes pass.
    pub async fn pod_ready(&self, pod: &str, ip: IpAddr) {
        self.pod_status(pod, ip, true).await;
    }

    /// Sets the status of a pod that runs and whose readiness probe fails.
    pub async fn pod_unready(&self, pod: &str, ip: IpAddr) {
        self.pod_status(pod, ip, false).await;
    }

    async fn pod_status(&self, pod: &str, ip: IpAddr, ready: bool) {
        let object = self.get(&["pod", pod]).await;
        let status = status_of(&object, ip, ready);
        self.patch(&["pod", pod, "--subresource=status"], &status)
            .await;
    }
}

fn status_of(pod: &Value, ip: IpAddr, ready: bool) -> Value {
    let running = |container: &Value| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "started": true,
            "restartCount": 0,
            "state": {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}},
        })
    };
    let containers = |list: &str| -> Vec<Value> {
        let list = pod["spec"][list].as_array();
        list.into_iter().flatten().map(running).collect()
    };
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        json!({"type": kind, "status": status, "lastTransitionTime": pod["metadata"]["creationTimestamp"]})
    };
    json!({"status": {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": pod["metadata"]["creationTimestamp"],
        "initContainerStatuses": containers("initContainers"),
        "containerStatuses": containers("containers"),
        "conditions": [
            condition("PodScheduled", true),
            condition("Initialized", true),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ],
    }})
}
