//! What clients and upstreams see of decisions.

use std::time::Duration;

use assent_e2e::{
    Options,
    envoy::{Answer, Envoy, send},
    eventually,
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{policy, start};

fn values(seen: &Value, name: &str) -> Vec<String> {
    let headers = seen["headers"].as_array().unwrap().iter();
    let own = headers.filter(|pair| pair[0] == name);
    own.map(|pair| pair[1].as_str().unwrap().to_owned())
        .collect()
}

/// The last line of the access log for a path; the log is flushed every second.
async fn logged(envoy: &Envoy, path: &str) -> Value {
    let find = || {
        envoy
            .access()
            .into_iter()
            .rfind(|line| line["path"].as_str().is_some_and(|it| it.starts_with(path)))
    };
    eventually("the access log has the request", async || find().is_some()).await;
    find().unwrap()
}

async fn post(envoy: &Envoy, kind: &str, body: &str) -> Answer {
    let headers = [("content-type", kind)];
    send(
        envoy.closed,
        "POST",
        "/body",
        &headers,
        Bytes::from(body.to_owned()),
    )
    .await
}

#[tokio::test]
async fn decisions_reach_clients_and_upstreams() {
    let (up, envoy) = start(Options::replicas(2)).await;

    let allowed = envoy.get("/allow/x?a=b", &[("x-secret", "s")]).await;
    assert_eq!(allowed.seen()["path"], "/allow/x?a=b");
    assert_eq!(values(&allowed.seen(), "x-secret"), ["s"]);

    let refused = envoy.get("/refuse", &[]).await;
    assert_eq!((refused.code, refused.text().as_str()), (403, ""));

    let denied = envoy.get("/deny", &[]).await;
    assert_eq!((denied.code, denied.text().as_str()), (429, "slow down\n"));
    assert_eq!(denied.header("retry-after"), ["7"]);
    assert_eq!(denied.header("x-why").join(","), "one,two");

    let client = [("x-secret", "s"), ("x-user", "mallory"), ("x-many", "0")];
    let changed = envoy.get("/change?set=old&remove=1&keep=2", &client).await;
    let seen = changed.seen();
    assert_eq!(values(&seen, "x-user"), ["alice"]);
    assert_eq!(values(&seen, "x-many").join(","), "1,2");
    assert!(values(&seen, "x-secret").is_empty(), "{seen}");
    assert_eq!(changed.header("x-answer"), ["yes"]);
    let path = seen["path"].as_str().unwrap();
    assert!(
        path.contains("set=new") && path.contains("keep=2"),
        "{path}"
    );
    assert!(!path.contains("old") && !path.contains("remove"), "{path}");

    let line = logged(&envoy, "/deny").await;
    let uid = up.policy("t").await.unwrap()["metadata"]["uid"].clone();
    let revision = format!("1-{}", &uid.as_str().unwrap()[..8]);
    let own = json!({
        "allowed": false,
        "by": "policy",
        "policy": "cluster-requests/t",
        "revision": revision,
        "revisions": {"cluster-requests/t": revision},
    });
    assert_eq!(line["metadata"]["assent"], own, "{line}");
    assert_eq!(line["metadata"]["why"], "busy");
    assert!(line["metadata"]["decision_id"].as_str().unwrap().len() == 36);
    let line = logged(&envoy, "/change").await;
    assert_eq!(line["metadata"]["user"]["name"], "alice");
}

#[tokio::test]
async fn decision_log_has_denials_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("decisions.jsonl");
    let options = Options::replicas(1).args(&["--decision-log", file.to_str().unwrap()]);
    let (_up, envoy) = start(options).await;
    let headers = [("x-secret", "s3cret"), ("x-request-id", "r-1")];
    assert_eq!(envoy.get("/deny?token=s3cret", &headers).await.code, 429);
    let mut text = String::new();
    eventually("the denial is in the log", async || {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        text.contains("\"verdict\":\"denied\"")
    })
    .await;
    assert!(!text.contains("s3cret"), "{text}");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.find(|line| line["verdict"] == "denied").unwrap();
    assert_eq!(line["frontEnd"], "envoy", "{line}");
    assert_eq!(line["policy"], "cluster-requests/t", "{line}");
    assert_eq!(line["code"], 429, "{line}");
    assert_eq!(
        (&line["method"], &line["path"]),
        (&json!("GET"), &json!("/deny"))
    );
    let decision = logged(&envoy, "/deny").await["metadata"]["decision_id"].clone();
    assert_eq!(line["decisionId"], decision);
}

#[tokio::test]
async fn bodies_are_parsed_for_policies() {
    let (_up, envoy) = start(Options::replicas(1)).await;
    let json = "application/json";
    assert_eq!(post(&envoy, json, r#"{"ok":true}"#).await.code, 200);
    let denied = post(&envoy, json, r#"{"ok":false}"#).await;
    assert_eq!(
        (denied.code, denied.text().as_str()),
        (403, r#"[{"ok":false},false]"#)
    );
    let malformed = post(&envoy, json, r#"{"ok":tru"#).await;
    assert_eq!(malformed.code, 400);
    assert!(
        malformed.text().contains("not JSON"),
        "{}",
        malformed.text()
    );
    let large = format!(r#"{{"ok":true,"pad":"{}"}}"#, "x".repeat(4096));
    let partial = post(&envoy, json, &large).await;
    assert_eq!(
        (partial.code, partial.text().as_str()),
        (403, "[null,true]")
    );
    let form = "application/x-www-form-urlencoded";
    let denied = post(&envoy, form, "a=1&a=2").await;
    assert_eq!(denied.text(), r#"[{"a":["1","2"]},false]"#);
    // As bytes.
    let (to, headers) = (envoy.open, [("content-type", json)]);
    let raw = send(
        to,
        "POST",
        "/body",
        &headers,
        Bytes::from_static(br#"{"ok":true}"#),
    )
    .await;
    assert_eq!(raw.code, 200);
}

#[tokio::test]
async fn several_policies_decide_in_order() {
    let options = Options::replicas(1)
        .file(
            "a.yaml",
            policy("a", "t.wasm", "  order: 600\n  mode: monitor\n"),
        )
        .file(
            "b.yaml",
            policy(
                "b",
                "t.wasm",
                "  order: 1\n  match: [{hosts: [b.test], pathPrefixes: [/allow]}]\n",
            ),
        );
    let (up, envoy) = start(options).await;
    up.wait_enforced("a", 1).await;
    up.wait_enforced("b", 1).await;
    assert_eq!(
        envoy.get("/allow", &[("host", "B.test:80")]).await.code,
        200
    );
    let line = logged(&envoy, "/allow").await;
    let asked = &line["metadata"]["assent"]["revisions"];
    let asked: Vec<&String> = asked.as_object().unwrap().keys().collect();
    assert_eq!(asked.len(), 3, "{line}");
    assert_eq!(line["metadata"]["assent"]["policy"], "cluster-requests/a");
    // The first denial decides; the policy that only counts is not asked.
    assert_eq!(envoy.get("/deny", &[]).await.code, 429);
    let line = logged(&envoy, "/deny").await;
    assert_eq!(line["metadata"]["assent"]["policy"], "cluster-requests/t");
    // Without the others, the one that only counts allows.
    up.remove("t.yaml");
    up.wait_gone("t").await;
    eventually("the policy is gone", async || {
        envoy.get("/deny", &[]).await.code == 200
    })
    .await;
    let counted = async || {
        let log = up.log();
        log.contains("denied in monitor mode")
    };
    eventually("the denial is counted", counted).await;
    // Nothing is left: the default denies.
    up.remove("a.yaml");
    up.wait_gone("a").await;
    eventually("the default decides", async || {
        let answer = envoy.get("/deny", &[]).await;
        answer.code == 403 && answer.text() == "no policy allows this request\n"
    })
    .await;
}

#[tokio::test]
async fn websockets_and_grpc_calls_are_decided() {
    let (_up, envoy) = start(Options::replicas(1)).await;
    for (path, code) in [("/allow", "101"), ("/deny", "429")] {
        let mut stream = TcpStream::connect(envoy.closed).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = vec![0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        let head = String::from_utf8_lossy(&buffer[..read]).into_owned();
        assert!(head.starts_with(&format!("HTTP/1.1 {code}")), "{head}");
        if code == "101" {
            stream.write_all(b"frames").await.unwrap();
            let mut echoed = [0; 6];
            stream.read_exact(&mut echoed).await.unwrap();
            assert_eq!(&echoed, b"frames");
        }
    }
    for (path, status) in [("/allow/Method", None), ("/refuse/Method", Some("7"))] {
        let stream = TcpStream::connect(envoy.closed).await.unwrap();
        let io = TokioIo::new(stream);
        let (mut client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = hyper::Request::builder()
            .method("POST")
            .uri(format!("http://{}{path}", envoy.closed))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from_static(&[0, 0, 0, 0, 1, 7])))
            .unwrap();
        let response = tokio::time::timeout(Duration::from_secs(30), client.send_request(request));
        let response = response.await.unwrap().unwrap();
        assert_eq!(
            response.status(),
            200,
            "gRPC reports errors in its own header"
        );
        let found = response.headers().get("grpc-status").cloned();
        assert_eq!(found.as_ref().map(|v| v.to_str().unwrap()), status);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.is_empty(), status.is_some());
    }
}
