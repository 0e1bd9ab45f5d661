//! Kinds that every API server serves.

use super::Kind;

const NAMESPACED: bool = true;
const CLUSTER: bool = false;

/// Version, kind, plural, scope.
#[rustfmt::skip]
const KINDS: &[(&str, &str, &str, bool)] = &[
    ("v1", "ConfigMap", "configmaps", NAMESPACED),
    ("v1", "Endpoints", "endpoints", NAMESPACED),
    ("v1", "Event", "events", NAMESPACED),
    ("v1", "LimitRange", "limitranges", NAMESPACED),
    ("v1", "Namespace", "namespaces", CLUSTER),
    ("v1", "Node", "nodes", CLUSTER),
    ("v1", "PersistentVolume", "persistentvolumes", CLUSTER),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", NAMESPACED),
    ("v1", "Pod", "pods", NAMESPACED),
    ("v1", "PodTemplate", "podtemplates", NAMESPACED),
    ("v1", "ReplicationController", "replicationcontrollers", NAMESPACED),
    ("v1", "ResourceQuota", "resourcequotas", NAMESPACED),
    ("v1", "Secret", "secrets", NAMESPACED),
    ("v1", "Service", "services", NAMESPACED),
    ("v1", "ServiceAccount", "serviceaccounts", NAMESPACED),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", CLUSTER),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", CLUSTER),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", CLUSTER),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", CLUSTER),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", CLUSTER),
    ("apiregistration.k8s.io/v1", "APIService", "apiservices", CLUSTER),
    ("apps/v1", "ControllerRevision", "controllerrevisions", NAMESPACED),
    ("apps/v1", "DaemonSet", "daemonsets", NAMESPACED),
    ("apps/v1", "Deployment", "deployments", NAMESPACED),
    ("apps/v1", "ReplicaSet", "replicasets", NAMESPACED),
    ("apps/v1", "StatefulSet", "statefulsets", NAMESPACED),
    ("autoscaling/v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", NAMESPACED),
    ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", NAMESPACED),
    ("batch/v1", "CronJob", "cronjobs", NAMESPACED),
    ("batch/v1", "Job", "jobs", NAMESPACED),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", CLUSTER),
    ("coordination.k8s.io/v1", "Lease", "leases", NAMESPACED),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", NAMESPACED),
    ("events.k8s.io/v1", "Event", "events", NAMESPACED),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "flowschemas", CLUSTER),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", CLUSTER),
    ("networking.k8s.io/v1", "Ingress", "ingresses", NAMESPACED),
    ("networking.k8s.io/v1", "IngressClass", "ingressclasses", CLUSTER),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", NAMESPACED),
    ("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", CLUSTER),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", NAMESPACED),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", CLUSTER),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", CLUSTER),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", NAMESPACED),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", NAMESPACED),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", CLUSTER),
    ("storage.k8s.io/v1", "CSIDriver", "csidrivers", CLUSTER),
    ("storage.k8s.io/v1", "CSINode", "csinodes", CLUSTER),
    ("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", NAMESPACED),
    ("storage.k8s.io/v1", "StorageClass", "storageclasses", CLUSTER),
    ("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", CLUSTER),
];

pub(super) fn built_in(api_version: &str, kind: &str) -> Option<Kind> {
    let mut kinds = KINDS.iter();
    let (version, kind, plural, namespaced) =
        kinds.find(|(version, name, ..)| *version == api_version && *name == kind)?;
    Some(Kind {
        api_version: (*version).to_owned(),
        kind: (*kind).to_owned(),
        plural: (*plural).to_owned(),
        namespaced: *namespaced,
    })
}
