//! The API server without kubectl: for tests that ask often.

use std::path::Path;

use ::kube::{Client, Config, client::Body, config::Kubeconfig};
use hyper::Request;
use serde_json::Value;

/// The kind of policy for the whole cluster.
pub const POLICIES: &str = "/apis/policies.assent.dev/v1alpha1/clusteradmissionpolicies";

/// A client with the rights of a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig must be readable");
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await;
    let config = config.expect("a kubeconfig must be complete");
    Client::try_from(config).expect("a client must be made")
}

/// One request: code and body of the answer.
pub async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = try_ask(client, method, path, body).await;
    answer.expect("the API server must answer")
}

/// One request: code and body of the response; an error if there is none.
pub async fn try_ask(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<(u16, Value), String> {
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
    let request = request.body(body).map_err(|e| e.to_string())?;
    let response = client.send(request).await.map_err(|e| e.to_string())?;
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await;
    let body = body.map_err(|e| e.to_string())?;
    let text = || String::from_utf8_lossy(&body).into_owned().into();
    Ok((
        code,
        serde_json::from_slice(&body).unwrap_or_else(|_| text()),
    ))
}

/// Reads an object or a list.
pub async fn get(client: &Client, path: &str) -> Value {
    let (code, object) = ask(client, "GET", path, &Value::Null).await;
    assert_eq!(code, 200, "{path}: {object}");
    object
}
