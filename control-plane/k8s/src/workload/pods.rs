//! The StatefulSet of a PolicyServer, and who its pods are.

use std::collections::BTreeMap;

use assent_api::{ParsedServer, server::Storage};
use k8s_openapi::{
    api::{
        apps::v1::{
            RollingUpdateStatefulSetStrategy, StatefulSet,
            StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
            StatefulSetUpdateStrategy,
        },
        core::v1::{
            Affinity, Container, LocalObjectReference, PersistentVolumeClaim,
            PersistentVolumeClaimSpec, PodAffinityTerm, PodAntiAffinity, PodSecurityContext,
            PodSpec, PodTemplateSpec, ServiceAccount, TopologySpreadConstraint,
            VolumeResourceRequirements, WeightedPodAffinityTerm,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::{
    Options, Owned,
    container::{CACHE, Place, USER, default_seccomp, evaluator_container},
    hash, pod_labels,
};
use crate::names;

/// How long an evaluator serves on after SIGTERM, unless its environment says otherwise.
const DRAIN_SECONDS: i64 = 15;

/// What it may take beyond that to write its set down and go.
const LEAVE_SECONDS: i64 = 15;

pub(super) fn stateful_set(
    server: &ParsedServer,
    owned: &Owned<'_>,
    options: &Options,
) -> StatefulSet {
    let storage = server.spec.storage.as_ref();
    let mut spec = StatefulSetSpec {
        replicas: Some(server.spec.replicas),
        service_name: Some(names::headless(owned.server)),
        // Replicas do not wait for one another: each is as good as the next.
        pod_management_policy: Some("Parallel".to_owned()),
        update_strategy: Some(StatefulSetUpdateStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateStatefulSetStrategy {
                max_unavailable: Some(IntOrString::Int(1)),
                partition: None,
            }),
        }),
        selector: owned.selector(),
        volume_claim_templates: storage.map(|storage| vec![claim(storage)]),
        persistent_volume_claim_retention_policy: storage.map(|_| retention()),
        ..StatefulSetSpec::default()
    };
    let fixed = hash(&spec_that_is_fixed(&spec));
    spec.template = template(server, options);
    let mut metadata = owned.metadata(names::server(owned.server));
    let annotation = (names::FIXED_HASH_ANNOTATION.to_owned(), fixed);
    metadata.annotations = Some([annotation].into());
    StatefulSet {
        metadata,
        spec,
        status: None,
    }
}

/// None if the server names its own.
pub(super) fn service_account(server: &ParsedServer, owned: &Owned<'_>) -> Option<ServiceAccount> {
    server
        .spec
        .service_account_name
        .is_none()
        .then(|| ServiceAccount {
            metadata: owned.metadata(names::server(owned.server)),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        })
}

/// What an API server lets nobody change.
fn spec_that_is_fixed(spec: &StatefulSetSpec) -> StatefulSetSpec {
    StatefulSetSpec {
        service_name: spec.service_name.clone(),
        pod_management_policy: spec.pod_management_policy.clone(),
        selector: spec.selector.clone(),
        volume_claim_templates: spec.volume_claim_templates.clone(),
        ..StatefulSetSpec::default()
    }
}

fn template(server: &ParsedServer, options: &Options) -> PodTemplateSpec {
    let parts = evaluator_container(server, options, Place::Own);
    let mut labels = server.spec.labels.clone();
    labels.extend(pod_labels(&server.name));
    let mut annotations: BTreeMap<String, String> = server.spec.annotations.clone();
    annotations.insert(names::TEMPLATE_HASH_ANNOTATION.to_owned(), parts.hash());
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod_spec(server)),
    }
}

fn pod_spec(server: &ParsedServer) -> PodSpec {
    let spec = &server.spec;
    let contexts = spec.security_contexts.clone().unwrap_or_default();
    let account = spec.service_account_name.clone();
    let secrets = pull_secrets(server);
    let (spread, nodes) = (spread(server), &spec.node_selector);
    PodSpec {
        // The injector fills in the rest.
        containers: vec![Container {
            name: names::EVALUATOR_CONTAINER.to_owned(),
            image: Some(names::PLACEHOLDER_IMAGE.to_owned()),
            ..Container::default()
        }],
        affinity: Some(affinity(server)),
        tolerations: (!spec.tolerations.is_empty()).then(|| spec.tolerations.clone()),
        priority_class_name: spec.priority_class_name.clone(),
        node_selector: (!nodes.is_empty()).then(|| nodes.clone()),
        topology_spread_constraints: (!spread.is_empty()).then_some(spread),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        service_account_name: Some(account.unwrap_or_else(|| names::server(&server.name))),
        // Evaluators have no business with an API server, nor with what runs beside them.
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(contexts.pod.unwrap_or_else(restricted)),
        termination_grace_period_seconds: Some(grace(server)),
        ..PodSpec::default()
    }
}

/// The Secret for modules, which may be for the image too, then those for the image alone.
fn pull_secrets(server: &ParsedServer) -> Vec<LocalObjectReference> {
    let modules = server.spec.image_pull_secret.clone();
    let mut all: Vec<LocalObjectReference> = Vec::new();
    let given = modules.map(|name| LocalObjectReference { name });
    for secret in given.iter().chain(&server.spec.image_pull_secrets) {
        if !all.contains(secret) {
            all.push(secret.clone());
        }
    }
    all
}

/// The user's. A constraint without a selector would count no pod.
fn spread(server: &ParsedServer) -> Vec<TopologySpreadConstraint> {
    let given = server.spec.topology_spread_constraints.iter().cloned();
    let complete = |mut constraint: TopologySpreadConstraint| {
        constraint
            .label_selector
            .get_or_insert_with(|| LabelSelector {
                match_labels: Some(pod_labels(&server.name)),
                match_expressions: None,
            });
        constraint
    };
    given.map(complete).collect()
}

/// The user's. Without one, replicas prefer different nodes.
fn affinity(server: &ParsedServer) -> Affinity {
    let mut affinity = server.spec.affinity.clone().unwrap_or_default();
    affinity.pod_anti_affinity.get_or_insert_with(|| {
        let term = PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: Some(pod_labels(&server.name)),
                match_expressions: None,
            }),
            topology_key: "kubernetes.io/hostname".to_owned(),
            ..PodAffinityTerm::default()
        };
        PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                WeightedPodAffinityTerm {
                    pod_affinity_term: term,
                    weight: 100,
                },
            ]),
            required_during_scheduling_ignored_during_execution: None,
        }
    });
    affinity
}

fn restricted() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        // A volume of a storage class belongs to root otherwise.
        fs_group: Some(USER),
        seccomp_profile: Some(default_seccomp()),
        ..PodSecurityContext::default()
    }
}

/// Longer than the drain, whatever the user made of it.
fn grace(server: &ParsedServer) -> i64 {
    let given = server.spec.env.iter();
    let given = given.filter(|env| env.name == "ASSENT_DRAIN_SECONDS");
    let seconds = given.filter_map(|env| env.value.as_ref()?.parse::<f64>().ok());
    // A float becomes the nearest integer that there is; no pod waits longer than a day.
    let drain = seconds.map(|seconds| seconds.ceil() as i64).next_back();
    drain.unwrap_or(DRAIN_SECONDS).clamp(0, 86_400) + LEAVE_SECONDS
}

fn claim(storage: &Storage) -> PersistentVolumeClaim {
    let requests = [("storage".to_owned(), storage.size.clone())];
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(CACHE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests.into()),
                limits: None,
            }),
            storage_class_name: storage.storage_class_name.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// A cache of something that the control plane has is not worth its volume.
fn retention() -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let delete = || Some("Delete".to_owned());
    StatefulSetPersistentVolumeClaimRetentionPolicy {
        when_deleted: delete(),
        when_scaled: delete(),
    }
}
