//! The evaluator's container, complete, and the volumes that it needs.

use std::collections::BTreeMap;

use assent_api::ParsedServer;
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource,
        EnvVar, EnvVarSource, HTTPGetAction, KeyToPath, LocalObjectReference, ObjectFieldSelector,
        Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretVolumeSource,
        SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use serde::Serialize;

use super::{Options, hash};
use crate::names::{
    CA_CONFIG_MAP, CA_KEY, EVALUATOR_ADMIN_PORT, EVALUATOR_CONTAINER, EVALUATOR_PORT, STATE_KEY,
    TOKEN_AUDIENCE,
};

/// The volume for the last good set, beside it key and certificate.
pub(super) const CACHE: &str = "assent-cache";

/// The user of the evaluator if none is configured: one that no image needs to know, and that
/// is not root whatever the image says.
pub(super) const USER: i64 = 65532;

/// Where the evaluator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a pod of the server's StatefulSet.
    Own,
    /// Beside the containers of a user's pod.
    Beside,
}

/// What the injector puts into a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluatorParts {
    /// The container.
    pub container: Container,
    /// The volumes that it mounts, but for one that the StatefulSet provides.
    pub volumes: Vec<Volume>,
    /// Secrets that nodes pull its image with, if the pod is not the StatefulSet's, whose template has them. A pod gets
    /// no new evaluator for them: only its first pull needs them.
    #[serde(skip)]
    pub pull_secrets: Vec<LocalObjectReference>,
}

const CA: &str = "assent-ca";
const CA_DIR: &str = "/etc/assent/ca";
const TOKEN: &str = "assent-token";
const TOKEN_DIR: &str = "/var/run/secrets/assent.dev";
const TOKEN_FILE: &str = "token";
const STATE_DIR: &str = "/var/lib/assent";
const STATE_KEY_DIR: &str = "/etc/assent/state-key";
const STATE_KEY_FILE: &str = "key";

/// Kubelets renew tokens at four fifths of their life; an hour is the shortest that is usual.
const TOKEN_SECONDS: i64 = 3600;

/// Resolves the evaluator's container.
pub fn evaluator_container(
    server: &ParsedServer,
    options: &Options,
    place: Place,
) -> EvaluatorParts {
    let mut volumes = vec![token_volume(), ca_volume()];
    if place == Place::Beside || server.spec.storage.is_none() {
        volumes.push(Volume {
            name: CACHE.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
    }
    let mut container = container(server, options);
    if place == Place::Own {
        volumes.push(state_key_volume());
        let mounts = container.volume_mounts.get_or_insert_default();
        mounts.push(mount(STATE_KEY, STATE_KEY_DIR, true));
    }
    EvaluatorParts {
        container,
        volumes,
        pull_secrets: match place {
            Place::Own => Vec::new(),
            Place::Beside => server.spec.image_pull_secrets.clone(),
        },
    }
}

/// The key that authenticates the last good set, which an administrator may provide. A pod in another namespace can't
/// have it, and needs none: its set ends with it.
fn state_key_volume() -> Volume {
    Volume {
        name: STATE_KEY.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(STATE_KEY.to_owned()),
            optional: Some(true),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn container(server: &ParsedServer, options: &Options) -> Container {
    let spec = &server.spec;
    let contexts = spec.security_contexts.clone().unwrap_or_default();
    let image = spec.image.clone().filter(|image| !image.is_empty());
    Container {
        name: EVALUATOR_CONTAINER.to_owned(),
        image: Some(image.unwrap_or_else(|| options.image.clone())),
        image_pull_policy: options.image_pull_policy.clone(),
        env: Some(environment(server, options)),
        ports: Some(vec![
            port("https", EVALUATOR_PORT),
            port("admin", EVALUATOR_ADMIN_PORT),
        ]),
        // Ten minutes for the first set: who waits for the control plane loses nothing by a
        // new start, and who hangs is helped.
        startup_probe: Some(probe("/readyz", 2, 300)),
        // A replica joins and leaves within moments.
        readiness_probe: Some(probe("/readyz", 2, 2)),
        // Half a minute: a busy machine is no reason to lose a replica.
        liveness_probe: Some(probe("/livez", 10, 3)),
        resources: Some(spec.resources.clone().unwrap_or_else(resources)),
        security_context: Some(contexts.container.unwrap_or_else(restricted)),
        volume_mounts: Some(vec![
            mount(TOKEN, TOKEN_DIR, true),
            mount(CA, CA_DIR, true),
            mount(CACHE, STATE_DIR, false),
        ]),
        ..Container::default()
    }
}

/// Ours, then the server's: those may refer to ours, and never replace them.
fn environment(server: &ParsedServer, options: &Options) -> Vec<EnvVar> {
    let given = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    };
    let any = |port: i32| format!("0.0.0.0:{port}");
    let mut all = vec![
        given("ASSENT_DISCOVERY", options.discovery.clone()),
        of_the_pod("ASSENT_ID", "metadata.name"),
        given("ASSENT_POLICY_SERVER", server.name.clone()),
        given("ASSENT_LISTEN", any(EVALUATOR_PORT)),
        of_the_pod("ASSENT_ADVERTISE", "status.podIP"),
        given("ASSENT_ADMIN_LISTEN", any(EVALUATOR_ADMIN_PORT)),
        given("ASSENT_STATE", STATE_DIR.to_owned()),
        given(
            "ASSENT_STATE_KEY",
            format!("{STATE_KEY_DIR}/{STATE_KEY_FILE}"),
        ),
        given("ASSENT_CA", format!("{CA_DIR}/{CA_KEY}")),
        given("ASSENT_TOKEN_FILE", format!("{TOKEN_DIR}/{TOKEN_FILE}")),
    ];
    let ours: Vec<String> = all.iter().map(|env| env.name.clone()).collect();
    let theirs = server.spec.env.iter();
    all.extend(theirs.filter(|env| !ours.contains(&env.name)).cloned());
    all
}

fn of_the_pod(name: &str, field: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: field.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
    }
}

fn port(name: &str, port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(EVALUATOR_ADMIN_PORT),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        // Answers come from memory; a machine under load may still take its time.
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

/// Requests only: a pod without any is the first to be evicted, and a limit that is too low
/// would stop evaluations.
fn resources() -> ResourceRequirements {
    let quantity = |name: &str, value: &str| (name.to_owned(), Quantity(value.to_owned()));
    let requests = [quantity("cpu", "100m"), quantity("memory", "128Mi")];
    ResourceRequirements {
        requests: Some(BTreeMap::from(requests)),
        ..ResourceRequirements::default()
    }
}

/// As the restricted Pod Security Standard demands, and nothing to write to but the cache.
fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".to_owned()]),
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(default_seccomp()),
        ..SecurityContext::default()
    }
}

pub(super) fn default_seccomp() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// A token for the control plane alone: no API server takes it.
fn token_volume() -> Volume {
    Volume {
        name: TOKEN.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(ServiceAccountTokenProjection {
                    audience: Some(TOKEN_AUDIENCE.to_owned()),
                    expiration_seconds: Some(TOKEN_SECONDS),
                    path: TOKEN_FILE.to_owned(),
                    ..ServiceAccountTokenProjection::default()
                }),
                ..VolumeProjection::default()
            }]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn ca_volume() -> Volume {
    Volume {
        name: CA.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: CA_CONFIG_MAP.to_owned(),
            items: Some(vec![KeyToPath {
                key: CA_KEY.to_owned(),
                path: CA_KEY.to_owned(),
                ..KeyToPath::default()
            }]),
            optional: Some(false),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

// === impl EvaluatorParts ===

impl EvaluatorParts {
    /// Changes with anything that is in it.
    pub fn hash(&self) -> String {
        hash(self)
    }
}
