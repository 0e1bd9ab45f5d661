//! R26, R29, R35: sets larger than a message, and clients that do not read.

use std::sync::{Arc, Weak};

use assent_e2e::{
    Delta, Options, Sotw, Up,
    client::{check, first, first_sotw, node},
    manifest::Policy,
};
use assent_proto::v1::{
    PolicyDiscoveryRequest, ReplicaState, RouteState,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tokio::sync::Mutex;
use tonic::{Code, transport::Endpoint};

/// Together more than 6 MiB: a client that takes 4 MiB needs it in parts.
const POLICIES: usize = 52;
const SETTINGS: usize = 128 << 10;

static SHARED: Mutex<Weak<Up>> = Mutex::const_new(Weak::new());

async fn large() -> Arc<Up> {
    let mut shared = SHARED.lock().await;
    if let Some(up) = shared.upgrade() {
        return up;
    }
    let settings = format!("{{text: {}}}", "x".repeat(SETTINGS));
    let policy = |n| {
        Policy::cluster(&format!("large-{n}"))
            .settings(&settings)
            .to_string()
    };
    let manifests: Vec<String> = (0..POLICIES).map(policy).collect();
    let options = Options::default()
        .args(&["--send-deadline", "2", "--replica-grace", "1"])
        .file("large.yaml", manifests.join("---\n"));
    let up = Arc::new(Up::start(options).await);
    let all = async || {
        up.fetch("default")
            .await
            .is_ok_and(|set| set.policies.len() >= POLICIES)
    };
    assent_e2e::eventually("all policies are accepted", all).await;
    *shared = Arc::downgrade(&up);
    up
}

#[tokio::test]
async fn r26_parts_form_one_response() {
    let up = large().await;
    let mut stream = Delta::connect(up.channel().await, node("r26")).await;
    // Parts are numbered, share version and nonce, and make the version: `next` checks it.
    let response = stream.next().await;
    assert!(response.parts >= 2, "{} parts", response.parts);
    assert!(response.policies.len() >= POLICIES);
    stream.silent().await;
    stream.ack(&response).await;
    up.wait_replica("default", "r26", |r| {
        r.version_acked == response.version_info
    })
    .await;
}

#[tokio::test]
async fn r35_large_set_fits_a_4_mib_message_limit() {
    let up = large().await;
    let request = first_sotw(node("r35"));
    let mut stream = Sotw::open(up.channel().await, request).await.unwrap();
    let response = stream.next().await;
    assert!(response.parts >= 2, "{} parts", response.parts);
    assert!(response.policies.len() >= POLICIES);
    drop(stream);
    // The one-shot call has no parts: the client's limit applies.
    let mut client = PolicyDiscoveryServiceClient::new(up.channel().await);
    let error = client
        .fetch_policies(PolicyDiscoveryRequest::default())
        .await
        .unwrap_err();
    let codes = [Code::OutOfRange, Code::ResourceExhausted];
    assert!(codes.contains(&error.code()), "{error:?}");
    let whole = up.fetch("default").await.unwrap();
    assert_eq!((whole.part, whole.parts), (0, 0));
    check(&whole);
}

#[tokio::test]
async fn r29_clients_that_do_not_read_do_not_affect_others() {
    let up = large().await;
    let before = resident_mib(&up);
    let stuck = Endpoint::from_shared(up.url()).unwrap();
    let stuck = stuck
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535);
    let stuck = stuck.connect().await.unwrap();
    let mut streams = Vec::new();
    for n in 0..100 {
        let request = first(node(&format!("stuck-{n}")));
        streams.push(Delta::open(stuck.clone(), request).await.unwrap());
    }
    up.wait_replica("default", "stuck-99", |r| !r.outstanding_nonce.is_empty())
        .await;
    // A hundred copies of the set would be 650 MiB.
    let after = resident_mib(&up);
    assert!(
        after < before + 300,
        "{before} MiB before, {after} MiB with them"
    );
    // Others follow changes meanwhile.
    let mut reader = Delta::connect(up.channel().await, node("reader")).await;
    let response = reader.next().await;
    reader.ack(&response).await;
    up.apply("more", &Policy::cluster("more"));
    reader
        .follow(|held| {
            held.revisions
                .keys()
                .any(|r| r.starts_with("cluster/more/"))
        })
        .await;
    // After the send deadline they count as gone, after their grace not at all.
    let gone = async || {
        let replicas = up.replicas("default").await.replicas;
        let stuck = replicas
            .iter()
            .filter(|r| r.node.as_ref().unwrap().id.starts_with("stuck"));
        stuck
            .clone()
            .all(|r| r.state() == ReplicaState::Disconnected)
    };
    assent_e2e::eventually("those who do not read count as gone", gone).await;
    let flipped = |held: &assent_e2e::hash::Held| {
        held.routes
            .values()
            .any(|r| r.path.starts_with("cluster/more/") && r.state() == RouteState::Active)
    };
    reader.follow(flipped).await;
    for mut stream in streams {
        assert_ne!(stream.ended().await.code(), Code::Ok);
    }
}

fn resident_mib(up: &Up) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.process.0.id())).unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}
