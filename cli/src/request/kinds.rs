//! Built-in kinds: the name of their resource, and whether they are in namespaces.
//!
//! The facts come from the Kubernetes API as it is compiled in; without a cluster nothing else knows them.

use std::any::TypeId;

use k8s_openapi::{
    NamespaceResourceScope, Resource,
    api::{
        admissionregistration::v1 as admissionregistration, apps::v1 as apps,
        autoscaling::v1 as autoscaling_v1, autoscaling::v2 as autoscaling, batch::v1 as batch,
        certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
        discovery::v1 as discovery, networking::v1 as networking, node::v1 as node,
        policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};

/// A kind as the API server serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    group: &'static str,
    kind: &'static str,
    /// The name in paths and rules, such as `pods`.
    pub(crate) resource: &'static str,
    pub(crate) namespaced: bool,
}

// === impl Kind ===

impl Kind {
    /// A built-in kind, in whatever version.
    pub(crate) fn find(group: &str, kind: &str) -> Option<Self> {
        let mut known = ALL.iter().map(|of| of());
        known.find(|one| one.group == group && one.kind == kind)
    }

    fn of<T: Resource>() -> Self
    where
        T::Scope: 'static,
    {
        Self {
            group: T::GROUP,
            kind: T::KIND,
            resource: T::URL_PATH_SEGMENT,
            namespaced: TypeId::of::<T::Scope>() == TypeId::of::<NamespaceResourceScope>(),
        }
    }
}

/// Every kind that people write manifests of.
const ALL: &[fn() -> Kind] = &[
    Kind::of::<core::ConfigMap>,
    Kind::of::<core::Endpoints>,
    Kind::of::<core::Event>,
    Kind::of::<core::LimitRange>,
    Kind::of::<core::Namespace>,
    Kind::of::<core::Node>,
    Kind::of::<core::PersistentVolume>,
    Kind::of::<core::PersistentVolumeClaim>,
    Kind::of::<core::Pod>,
    Kind::of::<core::PodTemplate>,
    Kind::of::<core::ReplicationController>,
    Kind::of::<core::ResourceQuota>,
    Kind::of::<core::Secret>,
    Kind::of::<core::Service>,
    Kind::of::<core::ServiceAccount>,
    Kind::of::<apps::ControllerRevision>,
    Kind::of::<apps::DaemonSet>,
    Kind::of::<apps::Deployment>,
    Kind::of::<apps::ReplicaSet>,
    Kind::of::<apps::StatefulSet>,
    Kind::of::<autoscaling_v1::HorizontalPodAutoscaler>,
    Kind::of::<autoscaling::HorizontalPodAutoscaler>,
    Kind::of::<batch::CronJob>,
    Kind::of::<batch::Job>,
    Kind::of::<certificates::CertificateSigningRequest>,
    Kind::of::<coordination::Lease>,
    Kind::of::<discovery::EndpointSlice>,
    Kind::of::<networking::Ingress>,
    Kind::of::<networking::IngressClass>,
    Kind::of::<networking::NetworkPolicy>,
    Kind::of::<node::RuntimeClass>,
    Kind::of::<policy::PodDisruptionBudget>,
    Kind::of::<rbac::ClusterRole>,
    Kind::of::<rbac::ClusterRoleBinding>,
    Kind::of::<rbac::Role>,
    Kind::of::<rbac::RoleBinding>,
    Kind::of::<scheduling::PriorityClass>,
    Kind::of::<storage::CSIDriver>,
    Kind::of::<storage::CSINode>,
    Kind::of::<storage::StorageClass>,
    Kind::of::<storage::VolumeAttachment>,
    Kind::of::<admissionregistration::MutatingWebhookConfiguration>,
    Kind::of::<admissionregistration::ValidatingAdmissionPolicy>,
    Kind::of::<admissionregistration::ValidatingAdmissionPolicyBinding>,
    Kind::of::<admissionregistration::ValidatingWebhookConfiguration>,
    Kind::of::<apiextensions::CustomResourceDefinition>,
    Kind::of::<apiregistration::APIService>,
];

/// The resource of a custom kind, as generators of CRDs form it unless told otherwise.
pub(crate) fn guess_resource(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.as_bytes() {
        [.., b's' | b'x'] | [.., b'c' | b's', b'h'] => format!("{lower}es"),
        [.., before, b'y'] if !b"aeiou".contains(before) => {
            format!("{}ies", &lower[..lower.len() - 1])
        }
        _ => format!("{lower}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_kinds_have_resource_and_scope() {
        let check = |group, kind, resource, namespaced| {
            let found = Kind::find(group, kind).map(|one| (one.resource, one.namespaced));
            assert_eq!(found, Some((resource, namespaced)), "{kind}");
        };
        check("", "Pod", "pods", true);
        check("", "Endpoints", "endpoints", true);
        check("", "Namespace", "namespaces", false);
        check("networking.k8s.io", "Ingress", "ingresses", true);
        check(
            "rbac.authorization.k8s.io",
            "ClusterRole",
            "clusterroles",
            false,
        );
        assert_eq!(Kind::find("apps", "Pod"), None);
    }

    #[test]
    fn resources_of_custom_kinds_are_plurals() {
        for (kind, resource) in [
            ("Certificate", "certificates"),
            ("GatewayClass", "gatewayclasses"),
            ("NetworkPolicy", "networkpolicies"),
            ("Gateway", "gateways"),
            ("Mesh", "meshes"),
        ] {
            assert_eq!(guess_resource(kind), resource);
        }
    }
}
