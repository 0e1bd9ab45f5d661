//! The API server without kubectl, as an administrator.

use assent_e2e::kube::Harness;
pub(crate) use assent_e2e::kube::api::{POLICIES, ask, client, get};
use kube::Client;
use serde_json::json;

/// A client with an administrator's rights.
pub(crate) async fn admin(harness: &Harness) -> Client {
    client(harness.kubectl.kubeconfig()).await
}

/// Creates a pod in `default` as a dry run; returns the message of the rejection.
pub(crate) async fn try_pod(client: &Client, privileged: bool) -> Result<(), String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
        "spec": {"containers": [{
            "name": "c", "image": "busybox:1",
            "securityContext": {"privileged": privileged},
        }]},
    });
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    match ask(client, "POST", path, &pod).await {
        (201, _) => Ok(()),
        (code, status) => Err(format!("{code} {}", status["message"])),
    }
}
