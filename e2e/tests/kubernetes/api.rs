//! The API server without kubectl: for tests that ask often.

use std::path::Path;

use assent_e2e::kube::Stage;
use hyper::Request;
use kube::{Client, Config, client::Body, config::Kubeconfig};
use serde_json::{Value, json};

/// Our kind of policy for the whole cluster.
pub(crate) const POLICIES: &str = "/apis/policies.assent.dev/v1alpha1/clusteradmissionpolicies";

/// A client with the rights of a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
    Client::try_from(config.unwrap()).unwrap()
}

/// A client with an administrator's.
pub(crate) async fn admin(stage: &Stage) -> Client {
    client(stage.kubectl.kubeconfig()).await
}

/// One request: code and body of the answer.
pub(crate) async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let kind = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind);
    let body = match method {
        "GET" => Body::empty(),
        _ => Body::from(body.to_string().into_bytes()),
    };
    let response = client.send(request.body(body).unwrap()).await;
    let response = response.expect("the API server must answer");
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Reads an object or a list.
pub(crate) async fn get(client: &Client, path: &str) -> Value {
    let (code, object) = ask(client, "GET", path, &Value::Null).await;
    assert_eq!(code, 200, "{path}: {object}");
    object
}

/// Tries to make a pod of `default`, without making it: the words of the refusal.
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
