//! Tools of others on a running control plane: Prometheus and grpcurl.

use assent_e2e::{
    Delta, Evaluator, Options, Up, eventually,
    process::text,
    tools::{grpcurl, promtool},
};
use assent_proto::v1::DeltaPolicyDiscoveryRequest;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

#[tokio::test]
async fn promtool_accepts_the_metrics_of_both_sides() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    let evaluator = Evaluator::start(&up.url(), "outside").await;
    let object = up.wait_enforced("p", 1).await;
    assert_eq!(up.admit().await["allowed"], true);
    let revision = object["status"]["active"]["revision"].as_str().unwrap();
    let validated = async || evaluator.validate(&format!("cluster/p/{revision}")).await.0 == 200;
    eventually("the evaluator answers", validated).await;

    misuse(&up).await;
    let (_, plane) = up.request("/metrics", None).await.unwrap();
    let evaluator = evaluator.metrics().await;
    for exposition in [&plane[..], evaluator.as_bytes()] {
        let checked = promtool(exposition);
        let said = text(&checked);
        assert!(checked.status.success() && said.trim().is_empty(), "{said}");
    }
    let plane = String::from_utf8_lossy(&plane);
    for name in [
        "discovery_streams",
        "discovery_acks_total",
        "discovery_pushes_total",
        "discovery_push_bytes_total",
        "discovery_stale_nonces_total",
        "discovery_protocol_errors_total",
        "discovery_cut_messages_total",
        "discovery_throttled_total",
        "discovery_refused_calls_total",
        "discovery_first_message_errors_total",
        "discovery_refused_connections_total",
        "discovery_refused_streams_total",
        "modules_damaged_total",
        "replicas",
        "snapshot_version",
        "publish_to_applied_seconds_bucket",
        "change_to_enforced_seconds_bucket",
        "policies",
        "module_pull_seconds_bucket",
        "module_compile_seconds_bucket",
        "webhook_flips_total",
        "status_writes_total",
        "leader",
    ] {
        assert_has(&plane, name);
    }
    for name in [
        "evaluations_total",
        "evaluation_seconds_bucket",
        "loaded_policies",
        "snapshot_version",
        "swap_seconds_bucket",
        "retired_path_requests_total",
        "overload_rejections_total",
        "connected",
    ] {
        assert_has(&evaluator, name);
    }
}

/// Does what is refused, so that every kind of it was counted once.
async fn misuse(up: &Up) {
    let mut socket = TcpStream::connect(up.discovery).await.unwrap();
    socket.write_all(b"nonsense").await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(up.fetch("nobody").await.is_err());
    let nameless = DeltaPolicyDiscoveryRequest::default();
    Delta::refusal(up.channel().await, nameless).await;
}

#[track_caller]
fn assert_has(exposition: &str, name: &str) {
    let name = format!("assent_{name}");
    let is = |line: &str| {
        line.strip_prefix(&name)
            .is_some_and(|rest| rest.starts_with([' ', '{']))
    };
    assert!(
        exposition.lines().any(is),
        "{name} is missing in:\n{exposition}"
    );
}

#[tokio::test]
async fn grpcurl_lists_describes_and_calls() {
    let up = Up::start(Options::replicas(1).policy("p")).await;
    up.wait_enforced("p", 1).await;
    let address = up.discovery.to_string();
    let listed = text(&grpcurl(&[&address, "list"]));
    for service in [
        "assent.discovery.v1.PolicyDiscoveryService",
        "assent.discovery.v1.ModuleService",
        "assent.discovery.v1.ClientStatusService",
        "assent.discovery.v1.CertificateService",
        "envoy.service.status.v3.ClientStatusDiscoveryService",
        "grpc.health.v1.Health",
    ] {
        assert!(
            listed.lines().any(|line| line == service),
            "{service} is missing in:\n{listed}"
        );
    }
    let described = text(&grpcurl(&[
        &address,
        "describe",
        "assent.discovery.v1.Policy",
    ]));
    assert!(
        described.contains("string content_digest = 5"),
        "{described}"
    );

    let call = |method: &str, data: &str| -> Value {
        let output = grpcurl(&["-d", data, &address, method]);
        assert!(output.status.success(), "{method}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let fetch = "assent.discovery.v1.PolicyDiscoveryService/FetchPolicies";
    let mut set = Value::Null;
    // The flip takes effect a moment before the snapshot that contains it is sent.
    eventually("the route is active", async || {
        set = call(fetch, "{}");
        set["routes"][0]["state"] == "ROUTE_STATE_ACTIVE"
    })
    .await;
    assert_eq!(set["policies"][0]["policy"], "cluster/p");
    assert_eq!(
        set["versionInfo"],
        up.fetch("default").await.unwrap().version_info
    );
    let status = call(
        "assent.discovery.v1.ClientStatusService/FetchClientStatus",
        "{}",
    );
    assert_eq!(status["versionInfo"], set["versionInfo"]);
    assert_eq!(status["replicas"][0]["node"]["id"], "evaluator-0");
    assert_eq!(status["policies"][0]["applied"], 1);
    let envoy = call(
        "envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
        r#"{"node_matchers": [{"node_id": {"exact": "evaluator-0"}}]}"#,
    );
    let resource = &envoy["config"][0]["genericXdsConfigs"][0];
    assert_eq!(resource["configStatus"], "SYNCED", "{envoy:#}");
    assert_eq!(resource["clientStatus"], "ACKED", "{envoy:#}");
    let health = call("grpc.health.v1.Health/Check", "{}");
    assert_eq!(health["status"], "SERVING");
    // Asking leaves no trace in the fold.
    assert_eq!(up.replicas("default").await.replicas.len(), 1);
}
