//! What happens when a decision can't be had: nothing is ever allowed by the evaluator, only by Envoy's own setting.

use assent_e2e::{
    Evaluator, Options, Up,
    envoy::{Authorizer, Envoy, rego, send},
    eventually,
};
use bytes::Bytes;

use super::{POLICY, policy, start};

async fn codes(envoy: &Envoy, path: &str) -> (u16, u16) {
    let closed = envoy.get(path, &[]).await.code;
    let open = send(envoy.open, "GET", path, &[], Bytes::new()).await;
    (closed, open.code)
}

#[tokio::test]
async fn errors_are_left_to_envoy() {
    let (mut up, envoy) = start(Options::replicas(1)).await;
    // An undefined result, and a header that policies may not change.
    for path in ["/undefined", "/steal"] {
        assert_eq!(codes(&envoy, path).await, (403, 200), "{path}");
    }
    // A denial is no error.
    assert_eq!(codes(&envoy, "/deny").await, (429, 429));
    up.process.kill();
    assert_eq!(codes(&envoy, "/allow").await, (403, 200));
    let open = send(envoy.open, "GET", "/allow", &[], Bytes::new()).await;
    assert!(
        open.text().contains("x-envoy-auth-failure-mode-allowed"),
        "{}",
        open.text()
    );
}

#[tokio::test]
async fn evaluator_decides_without_control_plane() {
    let options = Options::default()
        .file("t.wasm", rego(POLICY, "t/decision"))
        .file("t.yaml", policy("t", "t.wasm", ""));
    let mut up = Up::start(options).await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("authz");
    let flag = format!("unix:{}", socket.display());
    let args = ["--authz", flag.as_str()];
    let mut evaluator = Evaluator::start_with(&up.url(), "sidecar", &args).await;
    let envoy = Envoy::start(&Authorizer::Unix(socket)).await;
    up.wait_enforced("t", 1).await;
    evaluator.wait_ready().await;
    assert_eq!(codes(&envoy, "/allow").await, (200, 200));
    let revision = up.fetch("default").await.unwrap().policies[0]
        .revision
        .clone();
    evaluator.wait_kept(&revision).await;
    up.process.kill();
    assert_eq!(codes(&envoy, "/allow").await, (200, 200));
    assert_eq!(codes(&envoy, "/deny").await, (429, 429));
    // From disk, before any control plane: an error at first, never an allow without a decision.
    evaluator.restart().await;
    eventually("the set on disk decides", async || {
        let decided = codes(&envoy, "/deny").await;
        assert_ne!(decided.0, 200);
        decided == (429, 429)
    })
    .await;
    // Reviews of admission are not answered by such a policy.
    let (code, _) = evaluator.validate(&revision).await;
    assert_eq!(code, 404);
    let metric = r#"assent_http_requests_total{code="429",endpoint="authz"}"#;
    assert!(evaluator.metric(metric).await >= 1.0);
}
