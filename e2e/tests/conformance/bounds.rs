//! R36 and other limits on clients.

use std::collections::HashMap;

use assent_e2e::{
    Delta, Sotw, Workspace,
    client::{failure, first, first_sotw, rejection},
};
use assent_proto::v1::{
    DeltaPolicyDiscoveryRequest, HealthCheckRequest, ReplicaState, RetiredRouteRequests,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tonic::Code;

#[tokio::test]
async fn r36_error_texts_are_truncated_to_4_kib() {
    let workspace = Workspace::with_policy("r36a").await;
    let mut stream = workspace.connect("a").await;
    let response = stream.next().await;
    let revision = response.policies[0].revision.clone();
    // Two bytes each, from an odd place on: a cut in the middle of one would not be text.
    let text = format!("x{}", "ä".repeat(100_000));
    stream
        .send(DeltaPolicyDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            error_detail: Some(failure(&text)),
            rejected: vec![rejection(&revision, &text)],
            ..DeltaPolicyDiscoveryRequest::default()
        })
        .await;
    let replica = workspace
        .replica("a", |r| r.state() == ReplicaState::Rejected)
        .await;
    let kept = &replica.rejected[0].status.as_ref().unwrap().message;
    assert!(
        kept.len() <= 4 << 10 && kept.len() > 4 << 9,
        "{} bytes",
        kept.len()
    );
    assert!(text.starts_with(kept.as_str()));
    let (_, body) = workspace.up.request("/status", None).await.unwrap();
    assert!(body.len() < 1 << 20, "/status has {} bytes", body.len());
}

#[tokio::test]
async fn r36_more_than_64_rejections_count_as_truncated() {
    let workspace = Workspace::with_policy("r36b").await;
    for (id, count, truncated) in [("many", 65, false), ("said-so", 1, true)] {
        let mut stream = workspace.connect(id).await;
        let response = stream.next().await;
        let revision = response.policies[0].revision.clone();
        let mut rejected = vec![rejection(&revision, "no")];
        rejected.extend((1..count).map(|n| rejection(&format!("cluster/x/{n}-00000000"), "no")));
        stream
            .send(DeltaPolicyDiscoveryRequest {
                response_nonce: response.nonce.clone(),
                error_detail: Some(failure("no")),
                rejected,
                rejected_truncated: truncated,
                ..DeltaPolicyDiscoveryRequest::default()
            })
            .await;
        let replica = workspace
            .replica(id, |r| r.state() == ReplicaState::Rejected)
            .await;
        assert_eq!(replica.version_acked, "");
        assert!(replica.rejected.len() <= 64);
        // Nothing of it was taken: the next response has everything again.
        workspace.apply(&format!("after-{id}"), "{}").await;
        let next = stream.next().await;
        assert!(next.policies.iter().any(|p| p.revision == revision), "{id}");
    }
}

#[tokio::test]
async fn r36_first_message_lists_at_most_20_000_revisions() {
    let workspace = Workspace::with_policy("r36c").await;
    let digest = format!("sha256:{}", "4".repeat(64));
    let claim = |count: usize| {
        let entry = |n| (format!("cluster/gone-{n}/1-00000000"), digest.clone());
        DeltaPolicyDiscoveryRequest {
            initial_revisions: (0..count).map(entry).collect::<HashMap<_, _>>(),
            ..first(workspace.node("a"))
        }
    };
    let refusal = Delta::refusal(workspace.channel().await, claim(20_001)).await;
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    let mut stream = Delta::open(workspace.channel().await, claim(20_000))
        .await
        .unwrap();
    let response = stream.next().await;
    assert_eq!(
        (response.policies.len(), response.removed_revisions.len()),
        (1, 20_000)
    );
}

#[tokio::test]
async fn r36_health_check_is_bounded() {
    let workspace = Workspace::new("r36d").await;
    let mut client = PolicyDiscoveryServiceClient::new(workspace.channel().await);
    let route = |n| RetiredRouteRequests {
        path: format!("cluster/x/{n}-00000000"),
        requests: u64::MAX,
    };
    let request = |count| HealthCheckRequest {
        id: "a".into(),
        policy_server: "r36d".into(),
        retired_routes: (0..count).map(route).collect(),
        ..HealthCheckRequest::default()
    };
    assert!(client.health_check(request(10)).await.is_ok());
    let refusal = client.health_check(request(50_000)).await.unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn flood_of_answers_does_not_affect_others() {
    let workspace = Workspace::with_policy("flood").await;
    let mut quiet = workspace.settled("quiet").await;
    let mut noisy = workspace.connect("noisy").await;
    let response = noisy.next().await;
    noisy.ack(&response).await;
    let text = "no ".repeat(500);
    let flood = async {
        for n in 0.. {
            noisy
                .send(DeltaPolicyDiscoveryRequest {
                    response_nonce: format!("invented-{n}"),
                    error_detail: Some(failure(&text)),
                    ..DeltaPolicyDiscoveryRequest::default()
                })
                .await;
        }
    };
    let work = async {
        workspace.apply("b", "{}").await;
        let response = quiet.next().await;
        quiet.ack(&response).await;
        response
    };
    let news = tokio::select! {
        () = flood => unreachable!("it has no end"),
        news = work => news,
    };
    assert!(news.policies.iter().any(|p| p.policy == workspace.key("b")));
    workspace.replica("noisy", |r| r.protocol_errors > 0).await;
}

#[tokio::test]
async fn closed_streams_leave_no_state() {
    let workspace = Workspace::with_policy("come-and-go").await;
    let channel = workspace.channel().await;
    for n in 0..200 {
        let id = format!("fleeting-{}", n % 10);
        match n % 3 {
            0 => drop(Delta::connect(channel.clone(), workspace.node(&id)).await),
            1 => drop(
                Delta::connect(channel.clone(), workspace.node(&id))
                    .await
                    .next()
                    .await,
            ),
            _ => {
                let request = first_sotw(workspace.node(&id));
                drop(Sotw::open(channel.clone(), request).await.unwrap());
            }
        }
    }
    let gone = async || {
        workspace
            .up
            .replicas("come-and-go")
            .await
            .replicas
            .is_empty()
    };
    assent_e2e::eventually("all are forgotten after their grace", gone).await;
    let streams = "assent_discovery_streams{policy_server=\"come-and-go\"}";
    assert_eq!(workspace.up.metric(streams).await, 0.0);
    workspace.settled("a").await;
}
