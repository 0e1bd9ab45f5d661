//! How the pods of a PolicyServer are reached, and how many may go.

use assent_api::ParsedServer;
use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::{
            NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
            NetworkPolicyPort, NetworkPolicySpec,
        },
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{Owned, pod_labels};
use crate::names::{self, EVALUATOR_ADMIN_PORT, EVALUATOR_PORT};

/// The port of the webhook Service: the one that API servers use if none is given.
const HTTPS: i32 = 443;

/// Gives pods their names, ready or not: they are asked for before they serve.
pub(super) fn headless(owned: &Owned<'_>) -> Service {
    service(
        owned,
        names::headless(owned.server),
        ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            ports: Some(vec![
                port("https", EVALUATOR_PORT, EVALUATOR_PORT),
                port("admin", EVALUATOR_ADMIN_PORT, EVALUATOR_ADMIN_PORT),
            ]),
            ..ServiceSpec::default()
        },
    )
}

/// What webhooks point at: replicas that are ready, and no others.
pub(super) fn webhook(owned: &Owned<'_>) -> Service {
    service(
        owned,
        names::server(owned.server),
        ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            ports: Some(vec![port("https", HTTPS, EVALUATOR_PORT)]),
            ..ServiceSpec::default()
        },
    )
}

fn service(owned: &Owned<'_>, name: String, spec: ServiceSpec) -> Service {
    Service {
        metadata: owned.metadata(name),
        spec: Some(ServiceSpec {
            selector: Some(pod_labels(owned.server)),
            ..spec
        }),
        status: None,
    }
}

fn port(name: &str, port: i32, target: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port,
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(target)),
        ..ServicePort::default()
    }
}

pub(super) fn disruption_budget(server: &ParsedServer, owned: &Owned<'_>) -> PodDisruptionBudget {
    let min_available = server.spec.min_available.clone();
    let max_unavailable = server.spec.max_unavailable.clone();
    let one = || min_available.is_none().then_some(IntOrString::Int(1));
    PodDisruptionBudget {
        metadata: owned.metadata(names::server(owned.server)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: max_unavailable.or_else(one),
            min_available,
            selector: Some(owned.selector()),
            // A replica that is not ready protects nobody, and must not hold up a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
        }),
        status: None,
    }
}

/// In: reviews, probes and metrics from anywhere, because API servers and kubelets have
/// addresses that nobody can select. Out: names, and the control plane's namespace.
pub(super) fn network_policy(owned: &Owned<'_>) -> NetworkPolicy {
    let ports = |ports: &[(i32, &str)]| -> Option<Vec<NetworkPolicyPort>> {
        let port = |(port, protocol): &(i32, &str)| NetworkPolicyPort {
            port: Some(IntOrString::Int(*port)),
            protocol: Some((*protocol).to_owned()),
            end_port: None,
        };
        Some(ports.iter().map(port).collect())
    };
    let here = NetworkPolicyPeer {
        pod_selector: Some(LabelSelector::default()),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: owned.metadata(names::server(owned.server)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(owned.selector()),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: None,
                ports: ports(&[(EVALUATOR_PORT, "TCP"), (EVALUATOR_ADMIN_PORT, "TCP")]),
            }]),
            egress: Some(vec![
                NetworkPolicyEgressRule {
                    to: None,
                    ports: ports(&[(53, "UDP"), (53, "TCP")]),
                },
                NetworkPolicyEgressRule {
                    to: Some(vec![here]),
                    ports: None,
                },
            ]),
        }),
    }
}
