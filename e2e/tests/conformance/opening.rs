//! R1, R2, R5, R6: opening a stream.

use std::collections::BTreeSet;

use assent_e2e::{
    Delta, Options, Sotw, Up, Workspace,
    client::{first, first_sotw, node, node_of},
    eventually,
    hash::Held,
    http,
    manifest::Policy,
    up::condition,
};
use assent_proto::v1;
use serde_json::Value;
use tonic::Code;

#[tokio::test]
async fn r01_first_message_without_node_is_invalid() {
    let workspace = Workspace::new("r01a").await;
    let refusal = Delta::refusal(workspace.channel().await, Default::default()).await;
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    let refusal = Sotw::refusal(workspace.channel().await, Default::default()).await;
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
}

#[tokio::test]
async fn r01_malformed_node_is_invalid() {
    let workspace = Workspace::new("r01b").await;
    let long = "a".repeat(254);
    let ids = [
        "",
        "Upper",
        "under_score",
        "-a",
        "a-",
        "a..b",
        "a b",
        "../a",
        long.as_str(),
    ];
    for id in ids {
        let refusal = Delta::refusal(workspace.channel().await, first(workspace.node(id))).await;
        assert_eq!(refusal.code(), Code::InvalidArgument, "{id:?}: {refusal:?}");
        let refusal =
            Sotw::refusal(workspace.channel().await, first_sotw(workspace.node(id))).await;
        assert_eq!(refusal.code(), Code::InvalidArgument, "{id:?}: {refusal:?}");
    }
}

#[tokio::test]
async fn r01_node_is_limited_to_8_kib() {
    let workspace = Workspace::new("r01c").await;
    let node = |bytes| v1::Node {
        endpoint: "e".repeat(bytes),
        ..workspace.node("large")
    };
    let refusal = Delta::refusal(workspace.channel().await, first(node(8 << 10))).await;
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    let mut stream = Delta::connect(workspace.channel().await, node(7 << 10)).await;
    stream.next().await;
}

#[tokio::test]
async fn r01_changed_node_is_invalid() {
    let workspace = Workspace::new("r01d").await;
    for (id, server) in [("another", "r01d"), ("same", "default")] {
        let mut stream = workspace.connect("same").await;
        let response = stream.next().await;
        let request = v1::DeltaPolicyDiscoveryRequest {
            version_info: response.version_info,
            response_nonce: response.nonce,
            ..first(node_of(server, id))
        };
        stream.send(request).await;
        assert_eq!(stream.ended().await.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn r01_repeated_node_is_accepted() {
    let workspace = Workspace::new("r01e").await;
    let mut stream = workspace.connect("same").await;
    let response = stream.next().await;
    stream
        .send(v1::DeltaPolicyDiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce,
            ..first(workspace.node("same"))
        })
        .await;
    let acked = response.version_info;
    workspace
        .replica("same", |r| r.version_acked == acked)
        .await;
}

#[tokio::test]
async fn r01_unknown_server_is_not_found_and_empty_is_default() {
    let workspace = Workspace::new("r01f").await;
    let refusal = Delta::refusal(workspace.channel().await, first(node_of("nobody", "a"))).await;
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    let refusal = Sotw::refusal(
        workspace.channel().await,
        first_sotw(node_of("nobody", "a")),
    )
    .await;
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    let refusal = workspace.up.fetch("nobody").await.unwrap_err();
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    let unnamed = Delta::connect(workspace.channel().await, node("unnamed"))
        .await
        .next()
        .await;
    let named = node_of("default", "named");
    let named = Delta::connect(workspace.channel().await, named)
        .await
        .next()
        .await;
    assert_eq!(unnamed.version_info, named.version_info);
}

#[tokio::test]
async fn r02_first_request_gets_exactly_one_response() {
    let workspace = Workspace::with_policy("r02a").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    assert_eq!(response.policies.len(), 1);
    assert_eq!(response.policies[0].policy, workspace.key("a"));
    assert!(!response.nonce.is_empty() && !response.no_change);
    stream.silent().await;
    let mut stream = Sotw::open(workspace.channel().await, first_sotw(workspace.node("b")))
        .await
        .unwrap();
    assert_eq!(stream.next().await.policies.len(), 1);
    stream.silent().await;
}

#[tokio::test]
async fn r02_empty_set_is_sent() {
    let workspace = Workspace::new("r02b").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    assert!(response.policies.is_empty() && response.routes.is_empty());
    assert_eq!(response.version_info, Held::default().version());
    stream.ack(&response).await;
    stream.silent().await;
    let mut stream = Sotw::open(workspace.channel().await, first_sotw(workspace.node("b")))
        .await
        .unwrap();
    assert_eq!(stream.next().await.version_info, Held::default().version());
}

#[tokio::test]
async fn r02_streams_are_held_until_synced() {
    let options = Options {
        make_directory: false,
        ..Options::default()
    };
    let up = Up::start(options.clone()).await;
    let mut stream = Delta::connect(up.channel().await, node("a")).await;
    stream.silent().await;
    // The directory appears at once and as a whole, as a mounted volume does.
    let made = up.dir().join("made");
    std::fs::create_dir(&made).unwrap();
    for (name, content) in &options.policy("p").files {
        std::fs::write(made.join(name), content).unwrap();
    }
    std::fs::rename(&made, up.policies()).unwrap();
    // Not the empty set, which nobody has ever said to be wanted: what comes is known.
    stream.follow_active("cluster/p", 1).await;
}

/// A registry accepts connections and never answers, so that one policy stays undecided.
#[tokio::test]
async fn r02_first_start_announces_nothing_while_policies_are_vetted() {
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let module = format!("https://{}/slow.wasm", registry.local_addr().unwrap());
    let slow = Policy::cluster("slow").to_string();
    let slow = slow.replace("file://accept.wasm", &module);
    let options = Options::default().policy("p").file("slow.yaml", slow);
    let up = Up::start(options).await;
    let mut stream = Delta::connect(up.channel().await, node("a")).await;
    let is_accepted = |p: &Value| condition(p, "Accepted")["status"] == "True";
    up.wait("p", "accepted", is_accepted).await;
    // Neither the empty set nor a part of the policies, and nothing is allowed meanwhile.
    stream.silent().await;
    let (code, answer) = up.request("/readyz", None).await.unwrap();
    assert_eq!(code, 503, "{answer:?}");
    let admit = format!("http://{}/admit", up.http);
    let (code, answer) = http::review(&admit, &http::pod()).await.unwrap();
    assert_eq!(code, 503, "{answer}");
    // The pull fails: now every policy is decided.
    drop(registry);
    let first = stream.next().await;
    assert_eq!(first.policies.len(), 1, "{first:?}");
    assert_eq!(first.policies[0].policy, "cluster/p");
    stream.ack(&first).await;
    stream.follow_active("cluster/p", 1).await;
    let is_ready = async || up.request("/readyz", None).await.unwrap().0 == 200;
    eventually("it is ready", is_ready).await;
}

#[tokio::test]
async fn r02_held_stream_ends_with_unavailable() {
    let options = Options {
        make_directory: false,
        ..Options::default()
    };
    let up = Up::start(options.args(&["--sync-deadline", "1"])).await;
    let refusal = Delta::refusal(up.channel().await, first(node("a"))).await;
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
    let refusal = Sotw::refusal(up.channel().await, first_sotw(node("a"))).await;
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
    let refusal = up.fetch("default").await.unwrap_err();
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal:?}");
}

#[tokio::test]
async fn r05_nonce_in_first_message_is_ignored() {
    let workspace = Workspace::with_policy("r05").await;
    let mut earlier = workspace.connect("a").await;
    let response = earlier.next().await;
    for nonce in [response.nonce.as_str(), "never-issued"] {
        let request = v1::DeltaPolicyDiscoveryRequest {
            response_nonce: nonce.into(),
            ..first(workspace.node("b"))
        };
        let mut stream = Delta::open(workspace.channel().await, request)
            .await
            .unwrap();
        let first = stream.next().await;
        assert_eq!(first.policies.len(), 1);
        assert_ne!(first.nonce, nonce);
        let replica = workspace
            .replica("b", |r| !r.outstanding_nonce.is_empty())
            .await;
        assert_eq!(replica.protocol_errors, 0);
    }
}

#[tokio::test]
async fn r06_nonces_are_unique() {
    let workspace = Workspace::with_policy("r06").await;
    let mut stream = workspace.connect("a").await;
    let mut nonces = BTreeSet::new();
    let mut versions = BTreeSet::new();
    for generation in 2..5 {
        for settings in 0..2 {
            let response = stream.next().await;
            assert!(
                nonces.insert(response.nonce.clone()),
                "{nonces:?} {settings}"
            );
            versions.insert(response.version_info.clone());
            stream.ack(&response).await;
        }
        workspace.apply("a", &format!("{{n: {generation}}}")).await;
    }
    assert!(versions.len() >= 5, "{versions:?}");
}
