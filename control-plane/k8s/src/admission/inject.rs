//! Gives pods the evaluator that they ask for.
//!
//! Decisions are made on the pod's raw JSON and written as a minimal patch: fields that are
//! newer than the types of this build stay as they are, and so do the edits of other webhooks.

mod container;

use assent_core::policy::DEFAULT_SERVER;
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{Container, Volume};
use serde_json::{Value, json};

use self::container::Place;
use super::{AdmissionView, Options, ServerView, patch, review::Verdict};
use crate::names::{
    EVALUATOR_CONTAINER, PLACEHOLDER_IMAGE, SERVER_LABEL, TEMPLATE_HASH_ANNOTATION,
};

/// On pods that a kubelet made from a file: they can't be changed.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What an evaluator is made of, as JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// The container, complete.
    pub container: Value,
    /// What it mounts.
    pub volumes: Vec<Value>,
    /// Hash of both.
    pub hash: String,
    /// Secrets of the pod's namespace that its image is pulled with.
    pub pull_secrets: Vec<String>,
}

/// What a pod of others gets.
struct Follower(Parts);

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It did not ask, or has what it asked for.
    Unchanged,
    /// It gets an evaluator by this patch; never empty.
    Patched(Vec<PatchOperation>),
    /// It asked, and is admitted without an evaluator.
    Left(Reason),
    /// It would never work and never heal: whoever makes it tries again.
    Refused(Reason),
}

/// Why a pod does not get an evaluator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Its ports would be the node's.
    #[error("pods on the host's network get no evaluator; remove the label {SERVER_LABEL}")]
    HostNetwork,
    /// A kubelet made it.
    #[error("mirror pods get no evaluator; remove the label {SERVER_LABEL}")]
    Mirror,
    /// The PolicyServer does not allow the namespace.
    #[error(
        "the PolicyServer \"{server}\" does not allow evaluators in the namespace {namespace}; \
         add it to spec.injection.allowedNamespaces"
    )]
    NotAllowed {
        /// The PolicyServer that the pod names.
        server: String,
        /// Where the pod is.
        namespace: String,
    },
    /// There is no such PolicyServer.
    #[error("there is no PolicyServer \"{0}\"; create it, or correct the label {SERVER_LABEL}")]
    UnknownServer(String),
    /// A container of the user has the evaluator's name.
    #[error("the pod has a container named {EVALUATOR_CONTAINER} already; rename it")]
    NameTaken,
    /// The control plane has just started.
    #[error("the control plane does not know all PolicyServers yet; try again in a moment")]
    NotReady,
}

/// Decides about `pod`, which is created in `namespace`.
pub fn inject(
    pod: &Value,
    namespace: &str,
    known: Option<&AdmissionView>,
    options: &Options,
) -> Outcome {
    let label = patch::at(pod, &["metadata", "labels", SERVER_LABEL]);
    let Some(server) = label.and_then(Value::as_str) else {
        return Outcome::Unchanged;
    };
    let server = if server.is_empty() {
        DEFAULT_SERVER
    } else {
        server
    };
    let place = Place::find(pod, EVALUATOR_CONTAINER);
    let own = namespace == options.namespace && place.is_some();
    let Some(known) = known else {
        return Outcome::Refused(Reason::NotReady);
    };
    let outcome = match known.servers.get(server) {
        None => Err(Reason::UnknownServer(server.to_owned())),
        Some(found) if own => own_pod(pod, place, found),
        Some(found) => allowed(pod, server, namespace, found).and_then(|()| {
            let follower = Follower::new(&found.beside);
            follower.patch(pod, place, options)
        }),
    };
    match outcome {
        Ok(patch) if patch.is_empty() => Outcome::Unchanged,
        Ok(patch) => Outcome::Patched(patch),
        Err(reason) if own => Outcome::Refused(reason),
        Err(reason) => Outcome::Left(reason),
    }
}

type Decided = Result<Vec<PatchOperation>, Reason>;

/// A pod of a PolicyServer's StatefulSet: the placeholder is replaced in place.
fn own_pod(pod: &Value, place: Option<Place<'_>>, server: &ServerView) -> Decided {
    let parts = &server.own;
    match place {
        Some(place) if place.image() == PLACEHOLDER_IMAGE => {
            let mut patch = container::complete(&place, &parts.container);
            patch.extend(volumes(pod, &parts.container, &parts.volumes));
            patch.extend(annotation(pod, &parts.hash));
            Ok(patch)
        }
        _ => Ok(Vec::new()),
    }
}

/// Whether a user's pod may have an evaluator injected.
fn allowed(pod: &Value, server: &str, namespace: &str, found: &ServerView) -> Result<(), Reason> {
    if patch::at(pod, &["metadata", "annotations", MIRROR_ANNOTATION]).is_some() {
        return Err(Reason::Mirror);
    }
    if patch::at(pod, &["spec", "hostNetwork"]) == Some(&json!(true)) {
        return Err(Reason::HostNetwork);
    }
    match found
        .allowed_namespaces
        .iter()
        .any(|name| name == namespace)
    {
        true => Ok(()),
        false => Err(Reason::NotAllowed {
            server: server.to_owned(),
            namespace: namespace.to_owned(),
        }),
    }
}

/// Volumes that `container` mounts and the pod lacks. One that has no source is a
/// StatefulSet's claim elsewhere, and an emptyDir here.
fn volumes(pod: &Value, container: &Value, ours: &[Value]) -> Vec<PatchOperation> {
    let path = ["spec", "volumes"];
    let named = |list: &[Value], name: &str| list.iter().find(|v| v["name"] == name).cloned();
    let there = patch::at(pod, &path).and_then(Value::as_array);
    let there = there.map(Vec::as_slice).unwrap_or_default();
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mut missing: Vec<Value> = Vec::new();
    for name in mounts.filter_map(|mount| mount["name"].as_str()) {
        if named(there, name).is_none() && named(&missing, name).is_none() {
            let empty = || json!({ "name": name, "emptyDir": {} });
            missing.push(named(ours, name).unwrap_or_else(empty));
        }
    }
    patch::append(pod, &path, missing)
}

/// Secrets that the pod lacks; those that it has are for the images of its own containers. The API server has added those
/// of the service account before.
fn pull_secrets(pod: &Value, ours: &[String]) -> Vec<PatchOperation> {
    let path = ["spec", "imagePullSecrets"];
    let there = patch::at(pod, &path).and_then(Value::as_array);
    let has = |name: &String| there.is_some_and(|all| all.iter().any(|s| s["name"] == **name));
    let missing = ours.iter().filter(|name| !has(name));
    patch::append(
        pod,
        &path,
        missing.map(|name| json!({"name": name})).collect(),
    )
}

fn annotation(pod: &Value, hash: &str) -> Option<PatchOperation> {
    let path = ["metadata", "annotations"];
    patch::member(pod, &path, TEMPLATE_HASH_ANNOTATION, json!(hash))
}

/// Adds a container: first of all, so that policies are there when the others start.
fn insert(pod: &Value, wanted: Value, options: &Options) -> Vec<PatchOperation> {
    if !options.native_sidecars {
        return patch::append(pod, &["spec", "containers"], vec![wanted]);
    }
    let path = ["spec", "initContainers"];
    let sidecar = container::sidecar(wanted);
    vec![match patch::at(pod, &path).and_then(Value::as_array) {
        Some(_) => patch::add(&["spec", "initContainers", "0"], sidecar),
        None => patch::add(&path, json!([sidecar])),
    }]
}

// === impl Parts ===

impl Parts {
    /// Parts from their types.
    pub fn new(container: &Container, volumes: &[Volume], hash: &str) -> Self {
        let value = |volume| serde_json::to_value(volume).expect("a volume must be JSON");
        Self {
            container: serde_json::to_value(container).expect("a container must be JSON"),
            volumes: volumes.iter().map(value).collect(),
            hash: hash.to_owned(),
            pull_secrets: Vec::new(),
        }
    }
}

// === impl Follower ===

impl Follower {
    fn new(parts: &Parts) -> Self {
        Self(Parts {
            container: container::follower(&parts.container),
            ..parts.clone()
        })
    }

    fn patch(self, pod: &Value, place: Option<Place<'_>>, options: &Options) -> Decided {
        let hash = patch::at(pod, &["metadata", "annotations", TEMPLATE_HASH_ANNOTATION]);
        let Parts {
            container,
            volumes: ours,
            pull_secrets: secrets,
            ..
        } = &self.0;
        let mut patch = match &place {
            Some(place) if place.image() == PLACEHOLDER_IMAGE => {
                container::complete(place, container)
            }
            // Ours, and perhaps edited by others since.
            Some(_) if hash == Some(&json!(self.0.hash)) => Vec::new(),
            // Ours from another time, as in a pod that was copied.
            Some(place) if hash.is_some() => vec![patch::replace(&place.path(), self.like(place))],
            Some(_) => return Err(Reason::NameTaken),
            None => insert(pod, container.clone(), options),
        };
        patch.extend(volumes(pod, container, ours));
        patch.extend(pull_secrets(pod, secrets));
        patch.extend(annotation(pod, &self.0.hash));
        Ok(patch)
    }

    /// The container as it must be at `place`.
    fn like(&self, place: &Place<'_>) -> Value {
        let container = self.0.container.clone();
        match place.is_init() {
            true => container::sidecar(container),
            false => container,
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether the pod asked for an evaluator and did not get one.
    pub fn is_without(&self) -> bool {
        matches!(self, Outcome::Left(_) | Outcome::Refused(_))
    }
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Unchanged => Verdict::allow(),
            Outcome::Patched(patch) => Verdict::patch(patch),
            Outcome::Left(reason) => Verdict::warn(vec![reason.to_string()]),
            Outcome::Refused(reason @ Reason::NotReady) => Verdict::later(reason.to_string()),
            Outcome::Refused(reason) => Verdict::forbidden(reason.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
