//! Envoy's client status: what tools of xDS see.

use assent_e2e::Workspace;
use assent_proto::{
    envoy::{
        admin::v3::ClientResourceStatus,
        service::status::v3::{
            ClientConfig, ClientStatusRequest, ConfigStatus,
            client_status_discovery_service_client::ClientStatusDiscoveryServiceClient,
        },
        r#type::matcher::v3::{
            NodeMatcher, RegexMatcher, StringMatcher, string_matcher::MatchPattern,
        },
    },
    v1::ReplicaState,
};
use tokio_stream::StreamExt as _;
use tonic::Code;

fn node_id(pattern: MatchPattern) -> ClientStatusRequest {
    let matcher = StringMatcher {
        match_pattern: Some(pattern),
        ignore_case: false,
    };
    ClientStatusRequest {
        node_matchers: vec![NodeMatcher {
            node_id: Some(matcher),
            ..NodeMatcher::default()
        }],
        ..ClientStatusRequest::default()
    }
}

/// The name of the replica, and the states of its resources.
fn summary(client: &ClientConfig) -> (&str, Vec<(ConfigStatus, ClientResourceStatus)>) {
    let resources = client.generic_xds_configs.iter();
    (
        &client.node.as_ref().unwrap().id,
        resources
            .map(|resource| (resource.config_status(), resource.client_status()))
            .collect(),
    )
}

#[tokio::test]
async fn csds_shows_what_replicas_acknowledged_and_refused() {
    let workspace = Workspace::with_policy("csds").await;
    let mut loads = workspace.connect("csds-loads").await;
    let response = loads.next().await;
    loads.ack(&response).await;
    let mut waits = workspace.connect("csds-waits").await;
    waits.next().await;
    let mut refuses = workspace.connect("csds-refuses").await;
    let refused = refuses.next().await;
    refuses.nack(&refused, "no memory left").await;
    let mut partly = workspace.connect("csds-partly").await;
    let rejected = partly.next().await;
    let revision = rejected.policies[0].revision.clone();
    partly.reject(&rejected, &[&revision]).await;
    for name in ["csds-refuses", "csds-partly"] {
        let is_rejected = |r: &assent_proto::v1::ReplicaStatus| r.state() == ReplicaState::Rejected;
        workspace.replica(name, is_rejected).await;
    }
    let is_current = |r: &assent_proto::v1::ReplicaStatus| r.state() == ReplicaState::Current;
    workspace.replica("csds-loads", is_current).await;

    let mut client = ClientStatusDiscoveryServiceClient::new(workspace.channel().await);
    let request = node_id(MatchPattern::Prefix("csds-".into()));
    let answer = client.fetch_client_status(request.clone()).await.unwrap();
    let clients = answer.into_inner().config;
    let found: Vec<_> = clients.iter().map(summary).collect();
    let error = vec![(ConfigStatus::Error, ClientResourceStatus::Nacked)];
    let expected = [
        (
            "csds-loads",
            vec![(ConfigStatus::Synced, ClientResourceStatus::Acked)],
        ),
        ("csds-partly", error.clone()),
        ("csds-refuses", error),
        (
            "csds-waits",
            vec![(ConfigStatus::Stale, ClientResourceStatus::Requested)],
        ),
    ];
    assert_eq!(found, expected);
    for client in &clients {
        assert_eq!(client.node.as_ref().unwrap().cluster, "csds");
        let resource = &client.generic_xds_configs[0];
        assert_eq!(resource.name, revision);
        assert_eq!(resource.version_info, response.version_info);
        assert_eq!(resource.xds_config, None, "settings may be confidential");
    }
    let details = |n: usize| {
        let state = clients[n].generic_xds_configs[0].error_state.as_ref();
        state.map(|state| state.details.clone())
    };
    assert_eq!(details(0), None);
    assert_eq!(details(2).as_deref(), Some("no memory left"));

    // A stream answers every request.
    let requests = tokio_stream::iter([request.clone(), request]);
    let answers = client.stream_client_status(requests).await.unwrap();
    let answers: Vec<_> = answers.into_inner().collect().await;
    assert_eq!(answers.len(), 2);
    for answer in answers {
        assert_eq!(answer.unwrap().config, clients);
    }
}

#[tokio::test]
async fn csds_refuses_matchers_that_it_cannot_apply() {
    let workspace = Workspace::with_policy("csds-matchers").await;
    let mut client = ClientStatusDiscoveryServiceClient::new(workspace.channel().await);
    let regex = RegexMatcher { regex: ".*".into() };
    let request = node_id(MatchPattern::SafeRegex(regex));
    let status = client.fetch_client_status(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("use `exact`"), "{status}");
}
