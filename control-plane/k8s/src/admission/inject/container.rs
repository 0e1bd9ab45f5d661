//! The evaluator's container: where it is in a pod, and what it becomes.

use json_patch::PatchOperation;
use serde_json::{Value, json};

use super::patch;
use crate::names::EVALUATOR_ADMIN_PORT;

/// Where a container is in a pod.
pub(super) struct Place<'a> {
    list: &'static str,
    index: String,
    pub(super) container: &'a Value,
}

/// Puts the name of a replica together from the two variables before it: at admission a pod's
/// name is often not known yet.
const FOLLOWER_ID: &str = "$(POD_NAME).$(POD_NAMESPACE)";

/// Two minutes for the first set of policies: pulls of large modules included.
const STARTUP_TRIES: u32 = 120;

/// The container as it is in other people's pods, whose names are unique only with their
/// namespace.
pub(super) fn follower(container: &Value) -> Value {
    let mut container = container.clone();
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        json!({ "name": "ASSENT_ID", "value": FOLLOWER_ID }),
    ];
    env.extend(others(&env, container["env"].as_array()));
    container["env"] = Value::Array(env);
    container
}

/// An init container that keeps running; those behind it wait until its policies are loaded.
pub(super) fn sidecar(mut container: Value) -> Value {
    container["restartPolicy"] = json!("Always");
    if container["startupProbe"].is_null() {
        container["startupProbe"] = json!({
            "httpGet": { "path": "/readyz", "port": EVALUATOR_ADMIN_PORT },
            "periodSeconds": 1,
            "failureThreshold": STARTUP_TRIES,
        });
    }
    container
}

/// Gives the container at `place` everything that `wanted` has. What others put into its lists
/// stays.
pub(super) fn complete(place: &Place<'_>, wanted: &Value) -> Vec<PatchOperation> {
    let old = place.container;
    let path = place.path();
    let inner = |name: &'_ str| -> Vec<String> {
        path.iter()
            .map(|s| (*s).to_owned())
            .chain([name.to_owned()])
            .collect()
    };
    let mut patch = Vec::new();
    for (name, value) in wanted.as_object().into_iter().flatten() {
        let value = merged(name, old.get(name), value);
        let path = inner(name);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        match old.get(name) {
            Some(old) if *old == value => {}
            Some(_) => patch.push(patch::replace(&path, value)),
            None => patch.push(patch::add(&path, value)),
        }
    }
    // Filled in for the placeholder's image, and wrong for any other.
    let name = "imagePullPolicy";
    if old.get(name).is_some() && wanted.get(name).is_none() {
        let path = inner(name);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        patch.push(patch::remove(&path));
    }
    patch
}

/// Lists of named things: ours first, then those that only the pod has.
fn merged(field: &str, old: Option<&Value>, wanted: &Value) -> Value {
    let key = match field {
        "env" => "name",
        "ports" => "containerPort",
        "volumeMounts" => "mountPath",
        _ => return wanted.clone(),
    };
    let Value::Array(wanted) = wanted else {
        return wanted.clone();
    };
    let old = old.and_then(Value::as_array);
    let mut list = wanted.clone();
    list.extend(beside(key, wanted, old));
    Value::Array(list)
}

fn others(ours: &[Value], env: Option<&Vec<Value>>) -> Vec<Value> {
    beside("name", ours, env)
}

/// Items of `list` whose key is not among `ours`.
fn beside(key: &str, ours: &[Value], list: Option<&Vec<Value>>) -> Vec<Value> {
    let new = |item: &&Value| !ours.iter().any(|our| our[key] == item[key]);
    list.into_iter().flatten().filter(new).cloned().collect()
}

// === impl Place ===

impl<'a> Place<'a> {
    /// The container `name` of `pod`, wherever it is.
    pub(super) fn find(pod: &'a Value, name: &str) -> Option<Self> {
        ["containers", "initContainers"]
            .into_iter()
            .find_map(|list| {
                let containers = patch::at(pod, &["spec", list])?.as_array()?;
                let index = containers.iter().position(|c| c["name"] == name)?;
                Some(Self {
                    list,
                    index: index.to_string(),
                    container: containers.get(index)?,
                })
            })
    }

    pub(super) fn path(&self) -> [&str; 3] {
        ["spec", self.list, &self.index]
    }

    pub(super) fn is_init(&self) -> bool {
        self.list == "initContainers"
    }

    pub(super) fn image(&self) -> &str {
        self.container["image"].as_str().unwrap_or_default()
    }
}
