//! Tests of the test environment itself.

use std::net::{IpAddr, Ipv4Addr, TcpStream};

use assent_e2e::{
    eventually,
    kube::{AUDIENCE, ApiServer, Kubectl, shared, with_temp_ns, with_temp_ns_on},
};
use serde_json::{Value, json};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn config_map(name: &str) -> String {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"k": "v"},
    });
    map.to_string()
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "web", "image": "assent.invalid/web"}]},
    })
}

/// Two replicas without anything that a node would have to give.
fn stateful_set(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": "assent.invalid/web"}]},
            },
        },
    })
}

fn review(token: &str, audience: &str) -> String {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    });
    review.to_string()
}

/// The API server's review of a token.
async fn reviewed(kubectl: &Kubectl, token: &str, audience: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, review(token, audience)).unwrap();
    let path = file.path().to_str().unwrap();
    let answer = kubectl.run(&["create", "-f", path, "-o", "json"]).await;
    serde_json::from_str::<Value>(&answer).unwrap()["status"].clone()
}

#[tokio::test]
async fn namespace_is_deleted_after_the_test() {
    let mut name = String::new();
    with_temp_ns(async |ns| {
        ns.apply(&config_map("a")).await;
        assert_eq!(ns.get(&["configmap", "a"]).await["data"]["k"], "v");
        let missing = ns.try_get(&["configmap", "b"]).await.unwrap_err();
        assert!(missing.contains("NotFound"), "{missing}");
        name = ns.namespace().to_owned();
    })
    .await;
    shared()
        .await
        .kubectl
        .wait_gone(&["namespace", &name])
        .await;
}

#[tokio::test]
async fn token_is_bound_to_pod_and_audience() {
    with_temp_ns(async |ns| {
        ns.apply(&pod("web").to_string()).await;
        let token = ns.create_token("web").await;

        let status = reviewed(&ns, &token.token, AUDIENCE).await;
        assert_eq!(status["authenticated"], true, "{status}");
        assert_eq!(status["audiences"], json!([AUDIENCE]));
        let extra = &status["user"]["extra"];
        assert_eq!(
            extra["authentication.kubernetes.io/pod-name"],
            json!(["web"])
        );
        assert_eq!(
            extra["authentication.kubernetes.io/pod-uid"],
            json!([token.uid])
        );
        let status = reviewed(&ns, &token.token, "another").await;
        assert_ne!(status["authenticated"], true, "{status}");

        ns.run(&["delete", "pod", "web"]).await;
        // The API server remembers for some seconds that a token was good.
        let refused = async || reviewed(&ns, &token.token, AUDIENCE).await["authenticated"] != true;
        eventually("the token is refused", refused).await;
    })
    .await;
}

#[tokio::test]
async fn running_pods_make_a_stateful_set_ready() {
    with_temp_ns(async |ns| {
        ns.apply(&stateful_set("web").to_string()).await;
        ns.wait_there(&["pod", "web-0"]).await;
        ns.pod_ready("web-0", LOOPBACK).await;
        // The second is made once the first is ready.
        ns.wait_there(&["pod", "web-1"]).await;
        ns.pod_ready("web-1", LOOPBACK).await;
        let ready = |replicas: i64| move |set: &Value| set["status"]["readyReplicas"] == replicas;
        ns.wait(&["statefulset", "web"], "ready", ready(2)).await;

        ns.pod_unready("web-0", LOOPBACK).await;
        ns.wait(&["statefulset", "web"], "half ready", ready(1))
            .await;
    })
    .await;
}

#[tokio::test]
async fn service_account_has_only_its_own_permissions() {
    with_temp_ns(async |ns| {
        ns.run(&["create", "serviceaccount", "reader"]).await;
        ns.run(&[
            "create",
            "role",
            "reader",
            "--verb=get",
            "--resource=configmaps",
        ])
        .await;
        let account = format!("--serviceaccount={}:reader", ns.namespace());
        ns.run(&["create", "rolebinding", "reader", "--role=reader", &account])
            .await;
        ns.apply(&config_map("a")).await;

        let dir = tempfile::tempdir().unwrap();
        let reader = ns.service_account("reader", dir.path()).await;
        assert_eq!(reader.get(&["configmap", "a"]).await["data"]["k"], "v");
        let refused = reader.try_apply(&config_map("b")).await.unwrap_err();
        assert!(refused.contains("Forbidden"), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn objects_survive_restart_and_processes_end_with_their_owner() {
    // Its own: others would notice.
    let server = ApiServer::start().await;
    with_temp_ns_on(&server, async |ns| {
        ns.apply(&config_map("a")).await;
        let before = ns.get(&["configmap", "a"]).await;
        server.stop_apiserver();
        ns.try_get(&["configmap", "a"]).await.unwrap_err();
        server.start_apiserver().await;
        assert_eq!(ns.get(&["configmap", "a"]).await, before);
    })
    .await;

    let (dir, url) = (server.dir().to_owned(), server.url());
    drop(server);
    let address = url.trim_start_matches("https://");
    TcpStream::connect(address).unwrap_err();
    assert!(!dir.exists());
}
