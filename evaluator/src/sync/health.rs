//! Health checks beside the stream: they report requests on retired paths, and detect a control plane that has lost
//! the stream.

use std::{sync::Arc, time::Duration};

use assent_proto::v1::{
    HealthCheckRequest, Node, RetiredRouteRequests,
    policy_discovery_service_client::PolicyDiscoveryServiceClient,
};
use tonic::Code;

use crate::{
    active::ActiveSet,
    client::{Connection, Connector},
};

/// Used if the control plane names no interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// A shorter interval is a mistake of the control plane.
const SHORTEST: Duration = Duration::from_millis(100);

/// A later answer is ignored; keepalive decides about the connection.
const ANSWER: Duration = Duration::from_secs(5);

/// Consecutive answers that the stream is not known: a single one may be a race.
const UNKNOWN: u32 = 3;

/// Calls periodically; returns when the control plane does not know this stream.
pub(crate) async fn run(
    connection: Connection,
    connector: Connector,
    node: Node,
    active: Arc<ActiveSet>,
) {
    let mut client = PolicyDiscoveryServiceClient::new(connection);
    let mut interval = INTERVAL.min(Duration::from_secs(1));
    let mut unknown = 0;
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = connector.read_token() {
            tracing::warn!(%error, "token not read again");
        }
        let counts = active.take_retired();
        let call = client.health_check(request(&node, &counts));
        match tokio::time::timeout(ANSWER, call).await {
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                interval = match answer.interval_ms {
                    0 => INTERVAL,
                    millis => Duration::from_millis(millis.into()).max(SHORTEST),
                };
                // An empty answer says nothing about the stream.
                let known = answer.known || answer.interval_ms == 0;
                unknown = if known { 0 } else { unknown + 1 };
                if unknown >= UNKNOWN {
                    tracing::warn!("the control plane does not know this stream; opening another");
                    return;
                }
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                return std::future::pending().await;
            }
            _ => active.restore_retired(&counts),
        }
    }
}

fn request(node: &Node, counts: &[(String, u64)]) -> HealthCheckRequest {
    let entry = |(path, requests): &(String, u64)| RetiredRouteRequests {
        path: path.clone(),
        requests: *requests,
    };
    HealthCheckRequest {
        client_address: node.endpoint.clone(),
        id: node.id.clone(),
        policy_server: node.policy_server.clone(),
        instance_uid: node.instance_uid.clone(),
        retired_routes: counts.iter().map(entry).collect(),
    }
}
