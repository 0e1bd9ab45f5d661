//! Plain HTTP requests.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};

/// `GET`, or `POST` with a body: code and body of the response.
pub async fn request(url: &str, body: Option<Bytes>) -> Result<(u16, Bytes), String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = hyper::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .body(Full::new(body.unwrap_or_default()))
        .map_err(|e| e.to_string())?;
    let response = client.request(request).await.map_err(|e| e.to_string())?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await;
    Ok((code, body.map_err(|e| e.to_string())?.to_bytes()))
}

/// Sends a review; the answer as JSON.
pub async fn review(url: &str, review: &Value) -> Result<(u16, Value), String> {
    let (code, body) = request(url, Some(Bytes::from(review.to_string()))).await?;
    let text = || String::from_utf8_lossy(&body).into_owned().into();
    Ok((
        code,
        serde_json::from_slice(&body).unwrap_or_else(|_| text()),
    ))
}

/// A review of a new pod.
pub fn pod() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "3f1c2a9e-0000-4000-8000-000000000001",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web",
            "namespace": "shop",
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"containers": [{"name": "web", "image": "nginx"}]}
            },
            "oldObject": null,
            "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"}
        }
    })
}
