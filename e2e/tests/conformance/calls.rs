//! R40, R41, R42: the other calls.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use assent_e2e::{Delta, Options, PATIENCE, Up, Workspace, client::is};
use assent_proto::v1::{
    self, ClientStatusRequest, FetchModuleRequest, HealthCheckRequest, ReplicaState,
    RetiredRouteRequests, RouteState, StatModulesRequest,
    client_status_service_client::ClientStatusServiceClient,
    module_service_client::ModuleServiceClient,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tokio::time::timeout;
use tonic::{Code, transport::Channel};

#[tokio::test]
async fn r40_invalid_module_calls_are_rejected() {
    let workspace = Workspace::with_policy("r40").await;
    let mut modules = ModuleServiceClient::new(workspace.channel().await);
    let policy = workspace.up.fetch("r40").await.unwrap().policies.remove(0);
    let unknown = format!("sha256:{}", "3".repeat(64));
    let upper = policy.module_digest.to_uppercase();
    let cases = [
        ("", 0, "", Code::InvalidArgument),
        ("sha256:12", 0, "", Code::InvalidArgument),
        ("sha256:../../etc/passwd", 0, "", Code::InvalidArgument),
        (
            "md5:00000000000000000000000000000000",
            0,
            "",
            Code::InvalidArgument,
        ),
        (&upper, 0, "", Code::InvalidArgument),
        (&unknown, 0, "", Code::NotFound),
        (
            &policy.module_digest,
            policy.module_size + 1,
            "",
            Code::OutOfRange,
        ),
        (&policy.module_digest, u64::MAX, "", Code::OutOfRange),
        (
            &policy.module_digest,
            0,
            "some-other-engine",
            Code::NotFound,
        ),
        (&policy.module_digest, 0, "../../../etc", Code::NotFound),
    ];
    for (digest, offset, engine, code) in cases {
        let error = chunks(&mut modules, digest, offset, engine)
            .await
            .unwrap_err();
        assert_eq!(error.code(), code, "{digest} {offset} {engine}: {error:?}");
    }
    let malformed = StatModulesRequest {
        digests: vec!["sha256:12".into()],
        ..StatModulesRequest::default()
    };
    let error = modules.stat_modules(malformed).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let request = StatModulesRequest {
        digests: vec![unknown.clone(), policy.module_digest.clone()],
        ..StatModulesRequest::default()
    };
    let stat = modules
        .stat_modules(request)
        .await
        .unwrap()
        .into_inner()
        .modules;
    let seen: Vec<_> = stat
        .iter()
        .map(|m| (m.digest.as_str(), m.present))
        .collect();
    assert_eq!(
        seen,
        [
            (unknown.as_str(), false),
            (policy.module_digest.as_str(), true)
        ]
    );
}

#[tokio::test]
async fn r40_fetch_resumes_at_any_offset() {
    let workspace = Workspace::with_policy("r40b").await;
    let mut modules = ModuleServiceClient::new(workspace.channel().await);
    let policy = workspace.up.fetch("r40b").await.unwrap().policies.remove(0);
    let (digest, size) = (policy.module_digest.as_str(), policy.module_size);
    let whole = joined(&chunks(&mut modules, digest, 0, "").await.unwrap());
    assert_eq!(assent_e2e::hash::digest(&whole), digest);
    let rest = chunks(&mut modules, digest, 7, "").await.unwrap();
    assert_eq!(rest[0].offset, 7);
    assert_eq!(joined(&rest), whole[7..]);
    let end = chunks(&mut modules, digest, size, "").await.unwrap();
    assert_eq!(
        (end.len(), end[0].data.len(), end[0].total_size),
        (1, 0, size)
    );
}

#[tokio::test]
async fn r41_pages_contain_replicas_and_policies_come_first() {
    let workspace = Workspace::with_policy("r41").await;
    let mut streams = Vec::new();
    for n in 0..5 {
        let mut stream = workspace.connect(&format!("replica-{n}")).await;
        stream.next().await;
        streams.push(stream);
    }
    workspace
        .replica("replica-4", |r| r.state() == ReplicaState::Behind)
        .await;
    let mut client = ClientStatusServiceClient::new(workspace.channel().await);
    let mut request = ClientStatusRequest {
        policy_server: "r41".into(),
        page_size: 2,
        ..ClientStatusRequest::default()
    };
    let mut seen = Vec::new();
    let mut policies = Vec::new();
    loop {
        let page = client
            .fetch_client_status(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert!(page.replicas.len() <= 2);
        seen.extend(
            page.replicas
                .iter()
                .map(|r| r.node.as_ref().unwrap().id.clone()),
        );
        policies.push(page.policies.len());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(policies, [1, 0, 0]);
    assert_eq!(seen.len(), 5);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 5);

    let only = |request: ClientStatusRequest| ClientStatusRequest {
        policy_server: "r41".into(),
        ..request
    };
    let one = only(ClientStatusRequest {
        replica: "replica-3".into(),
        ..ClientStatusRequest::default()
    });
    assert_eq!(
        client
            .fetch_client_status(one)
            .await
            .unwrap()
            .into_inner()
            .replicas
            .len(),
        1
    );
    let current = only(ClientStatusRequest {
        states: vec![ReplicaState::Current.into()],
        ..ClientStatusRequest::default()
    });
    assert!(
        client
            .fetch_client_status(current)
            .await
            .unwrap()
            .into_inner()
            .replicas
            .is_empty()
    );
    let other = only(ClientStatusRequest {
        policy: "cluster/nobody".into(),
        ..ClientStatusRequest::default()
    });
    assert!(
        client
            .fetch_client_status(other)
            .await
            .unwrap()
            .into_inner()
            .policies
            .is_empty()
    );
    let unknown = ClientStatusRequest {
        policy_server: "nobody".into(),
        ..ClientStatusRequest::default()
    };
    assert_eq!(
        client
            .fetch_client_status(unknown)
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn r41_status_stream_follows_changes() {
    let workspace = Workspace::with_policy("r41b").await;
    let mut client = ClientStatusServiceClient::new(workspace.channel().await);
    let request = ClientStatusRequest {
        policy_server: "r41b".into(),
        ..ClientStatusRequest::default()
    };
    let mut states = client
        .stream_client_status(request)
        .await
        .unwrap()
        .into_inner();
    let first = states.message().await.unwrap().unwrap();
    assert!(first.replicas.is_empty() && first.policies.len() == 1);
    let stream = workspace.settled("a").await;
    loop {
        let next = timeout(PATIENCE, states.message())
            .await
            .expect("a change must be told");
        let next = next.unwrap().unwrap();
        assert_eq!(next.policies.len(), 1, "each answer is the whole one");
        if next
            .replicas
            .iter()
            .any(|r| r.state() == ReplicaState::Current)
        {
            assert_eq!(next.version_info, stream.held().version());
            break;
        }
    }
}

#[tokio::test]
async fn r41_half_closed_stream_gets_what_is_due_then_ok() {
    let workspace = Workspace::with_policy("r41c").await;
    let mut stream = workspace.connect("a").await;
    stream.half_close();
    assert_eq!(stream.next().await.policies.len(), 1);
    assert_eq!(stream.ended().await.code(), Code::Ok);
}

#[tokio::test]
async fn r42_requests_on_a_retired_route_prolong_its_drain() {
    let options = Options::default().args(&["--drain-seconds", "3"]);
    let workspace = Workspace::on(Arc::new(Up::start(options).await), "r42").await;
    workspace.apply("a", "{}").await;
    let mut stream = workspace.settled("a").await;
    let old = stream.held().routes.keys().next().unwrap().clone();
    workspace.apply("a", "{n: 2}").await;
    stream.follow_active(&workspace.key("a"), 2).await;
    assert!(is(
        stream.held(),
        &workspace.key("a"),
        1,
        RouteState::Retired
    ));
    let mut client = PolicyDiscoveryServiceClient::new(workspace.channel().await);
    // More than twice the drain.
    for _ in 0..24 {
        let answer = client
            .health_check(health(&workspace, &old, 1))
            .await
            .unwrap()
            .into_inner();
        assert!(answer.known && answer.interval_ms > 0);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(
        workspace
            .up
            .fetch("r42")
            .await
            .unwrap()
            .routes
            .iter()
            .any(|r| r.path == old)
    );
    // Without requests it leaves, route and revision together.
    let response = stream.next().await;
    assert_eq!(response.removed_routes, [old.as_str()]);
    assert_eq!(response.removed_revisions.len(), 1);
}

#[tokio::test]
async fn r42_health_check_reports_whether_a_stream_is_open() {
    let workspace = Workspace::with_policy("r42b").await;
    let mut stream: Delta = workspace.connect("a").await;
    stream.next().await;
    let mut client = PolicyDiscoveryServiceClient::new(workspace.channel().await);
    let own = health(&workspace, "x", 0);
    assert!(
        client
            .health_check(own.clone())
            .await
            .unwrap()
            .into_inner()
            .known
    );
    let cases = [
        HealthCheckRequest {
            id: "b".into(),
            ..own.clone()
        },
        HealthCheckRequest {
            instance_uid: "another process".into(),
            ..own.clone()
        },
        HealthCheckRequest {
            policy_server: "default".into(),
            ..own.clone()
        },
    ];
    for request in cases {
        assert!(
            !client
                .health_check(request)
                .await
                .unwrap()
                .into_inner()
                .known
        );
    }
    let nobody = HealthCheckRequest {
        id: "Not A Name".into(),
        ..own
    };
    assert_eq!(
        client.health_check(nobody).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

fn health(workspace: &Workspace, path: &str, requests: u64) -> HealthCheckRequest {
    HealthCheckRequest {
        id: "a".into(),
        policy_server: workspace.server.clone(),
        instance_uid: workspace.node("a").instance_uid,
        retired_routes: vec![RetiredRouteRequests {
            path: path.into(),
            requests,
        }],
        ..HealthCheckRequest::default()
    }
}

async fn chunks(
    modules: &mut ModuleServiceClient<Channel>,
    digest: &str,
    offset: u64,
    engine: &str,
) -> Result<Vec<v1::ModuleChunk>, tonic::Status> {
    let request = FetchModuleRequest {
        digest: digest.into(),
        offset,
        engine: engine.into(),
    };
    let mut stream = modules.fetch_module(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(chunk) = stream.message().await? {
        assert!(chunk.data.len() <= 256 << 10);
        all.push(chunk);
    }
    Ok(all)
}

fn joined(chunks: &[v1::ModuleChunk]) -> Vec<u8> {
    chunks.iter().flat_map(|c| c.data.to_vec()).collect()
}
