//! Decides what happens to the policies of ConfigMaps.

use std::collections::BTreeMap;

use assent_api::ClusterAdmissionPolicy;
use assent_core::Digest;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use crate::names;

/// On a ConfigMap: it is a policy.
pub const LABEL: &str = "policies.assent.dev/policy=true";

const LABEL_KEY: &str = "policies.assent.dev/policy";

/// On a policy: the ConfigMap that it is kept for, as `namespace/name`.
const OWNER: &str = "policies.assent.dev/config-map";

/// Keys of a ConfigMap that hold the text; exactly one of them.
const TEXTS: [&str; 2] = ["policy.rego", "policy.cel.yaml"];

/// The key that holds the rest of the policy's spec.
const SPEC: &str = "policy.yaml";

/// Namespace and name of a ConfigMap.
pub(super) type Key = (String, String);

/// A labelled ConfigMap.
pub(super) struct Wanted {
    uid: String,
    version: String,
    /// The spec of its policy, or why it has none.
    spec: Result<Map<String, Value>, String>,
}

/// A ClusterAdmissionPolicy, as far as it matters here.
pub(super) struct Existing {
    name: String,
    uid: String,
    version: String,
    generation: i64,
    deleting: bool,
    /// The ConfigMap that it is kept for; none if somebody wrote it by hand.
    owner: Option<Key>,
    spec: Value,
    /// Why its newest generation is not accepted.
    refused: Option<String>,
}

/// A change to make.
#[derive(Debug)]
pub(super) enum Step {
    Create(Box<ClusterAdmissionPolicy>),
    Update {
        object: Box<ClusterAdmissionPolicy>,
        version: String,
    },
    Delete {
        name: String,
        uid: String,
        from: Key,
    },
}

/// An event on a ConfigMap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// What it is about: it is written once.
    pub(super) version: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) notes: Vec<Note>,
}

pub(super) fn is_policy(config_map: &ConfigMap) -> bool {
    config_map
        .labels()
        .get(LABEL_KEY)
        .is_some_and(|value| value == "true")
}

/// Compares ConfigMaps with policies. Policies of ConfigMaps that are not there are to be deleted, which is confirmed by
/// a read first.
pub(super) fn plan(wanted: &BTreeMap<Key, Wanted>, existing: &[Existing]) -> Plan {
    let mut plan = Plan::default();
    let by_name: BTreeMap<&str, &Existing> =
        existing.iter().map(|one| (&one.name[..], one)).collect();
    // The first of several ConfigMaps with one name, unless another has the policy already.
    let mut taken: BTreeMap<&str, &Key> = BTreeMap::new();
    for key in wanted.keys() {
        taken.entry(&key.1).or_insert(key);
    }
    for one in existing {
        if let Some(owner) = one
            .owner
            .as_ref()
            .and_then(|owner| wanted.get_key_value(owner))
        {
            taken.insert(&one.name, owner.0);
        }
    }
    for (key, config_map) in wanted {
        let found = by_name.get(&key.1[..]).copied();
        let holder = taken.get(&key.1[..]).copied();
        if let Err((reason, message)) = plan.keep(key, config_map, found, holder) {
            plan.notes
                .push(config_map.note(key, config_map.version.clone(), reason, message));
        }
        if let Some(refusal) = found.filter(|one| one.owner.as_ref() == Some(key))
            && let Some(why) = &refusal.refused
        {
            let version = format!("generation {}", refusal.generation);
            plan.notes
                .push(config_map.note(key, version, "Refused", why.clone()));
        }
    }
    for one in existing.iter().filter(|one| !one.deleting) {
        if let Some(owner) = one
            .owner
            .as_ref()
            .filter(|owner| !wanted.contains_key(*owner))
        {
            plan.steps.push(Step::Delete {
                name: one.name.clone(),
                uid: one.uid.clone(),
                from: owner.clone(),
            });
        }
    }
    plan
}

impl Plan {
    /// What to do for one ConfigMap, or the reason and message of an event.
    fn keep(
        &mut self,
        key: &Key,
        config_map: &Wanted,
        found: Option<&Existing>,
        holder: Option<&Key>,
    ) -> Result<(), (&'static str, String)> {
        let name = &key.1;
        if holder != Some(key) {
            let (namespace, _) = holder.unwrap_or(key);
            return Err((
                "Conflicted",
                format!(
                    "the policy {name} is that of the ConfigMap in namespace {namespace}; rename one of the two"
                ),
            ));
        }
        if found.is_some_and(|one| one.owner.is_none()) {
            return Err((
                "Conflicted",
                format!(
                    "there is a ClusterAdmissionPolicy {name} that was not made for a ConfigMap; rename one of the two"
                ),
            ));
        }
        let spec = config_map
            .spec
            .as_ref()
            .map_err(|why| ("Invalid", why.clone()))?;
        let object = policy(key, spec).map_err(|why| ("Invalid", why))?;
        match found {
            None => self.steps.push(Step::Create(Box::new(object))),
            // It is created again when it is gone.
            Some(one) if one.deleting => {}
            Some(one) if one.owner.as_ref() == Some(key) && one.spec == json!(object.spec) => {}
            Some(one) => self.steps.push(Step::Update {
                object: Box::new(object),
                version: one.version.clone(),
            }),
        }
        Ok(())
    }
}

/// The policy of a ConfigMap.
fn policy(
    (namespace, name): &Key,
    spec: &Map<String, Value>,
) -> Result<ClusterAdmissionPolicy, String> {
    let (managed_by, assent) = names::MANAGED_BY;
    let object = json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {
            "name": name,
            "labels": { managed_by: assent },
            "annotations": { OWNER: format!("{namespace}/{name}") },
        },
        "spec": spec,
    });
    serde_json::from_value(object).map_err(|error| format!("{SPEC}: {error}"))
}

// === impl Step ===

impl Step {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Create(object) | Self::Update { object, .. } => {
                object.metadata.name.as_deref().unwrap_or_default()
            }
            Self::Delete { name, .. } => name,
        }
    }
}

// === impl Wanted ===

impl Wanted {
    pub(super) fn of(config_map: &ConfigMap) -> Self {
        Self {
            uid: config_map.uid().unwrap_or_default(),
            version: config_map.resource_version().unwrap_or_default(),
            spec: spec(config_map),
        }
    }

    fn note(
        &self,
        (namespace, name): &Key,
        version: String,
        reason: &'static str,
        message: String,
    ) -> Note {
        Note {
            namespace: namespace.clone(),
            name: name.clone(),
            uid: self.uid.clone(),
            version,
            reason,
            message,
        }
    }
}

/// What `policy.yaml` says, with the text as the module.
fn spec(config_map: &ConfigMap) -> Result<Map<String, Value>, String> {
    let empty = BTreeMap::new();
    let data = config_map.data.as_ref().unwrap_or(&empty);
    let texts: Vec<_> = TEXTS
        .iter()
        .filter_map(|key| Some((key, data.get(*key)?)))
        .collect();
    let [(key, text)] = texts[..] else {
        return Err(format!(
            "it must have exactly one of the keys {}",
            TEXTS.join(" and ")
        ));
    };
    let mut spec = match data.get(SPEC) {
        None => default_spec(),
        Some(text) => match assent_api::yaml::load_first(text) {
            Ok(Value::Object(spec)) => spec,
            Ok(_) => {
                return Err(format!(
                    "{SPEC}: must be the spec of a ClusterAdmissionPolicy"
                ));
            }
            Err(error) => return Err(format!("{SPEC}: {error}")),
        },
    };
    for field in ["module", "source"] {
        if spec.contains_key(field) {
            return Err(format!(
                "{SPEC}: {field} is the text in this ConfigMap; remove the field"
            ));
        }
    }
    let (namespace, name) = (
        config_map.namespace().unwrap_or_default(),
        config_map.name_any(),
    );
    let digest = Digest::of(text.as_bytes());
    let module = format!("configmap://{namespace}/{name}/{key}#{digest}");
    spec.insert("module".into(), module.into());
    Ok(spec)
}

/// Workloads as they are created and changed; nothing is denied until somebody says so.
fn default_spec() -> Map<String, Value> {
    let rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": ["v1"], "resources": resources,
            "operations": ["CREATE", "UPDATE"],
        })
    };
    let mut spec = Map::new();
    spec.insert("mode".into(), "monitor".into());
    spec.insert(
        "rules".into(),
        json!([
            rule("", &["pods", "replicationcontrollers"]),
            rule(
                "apps",
                &["daemonsets", "deployments", "replicasets", "statefulsets"]
            ),
            rule("batch", &["cronjobs", "jobs"]),
        ]),
    );
    spec
}

// === impl Existing ===

impl Existing {
    pub(super) fn of(policy: &ClusterAdmissionPolicy) -> Self {
        let (managed_by, assent) = names::MANAGED_BY;
        let managed = policy
            .labels()
            .get(managed_by)
            .is_some_and(|value| value == assent);
        let owner = policy.annotations().get(OWNER).filter(|_| managed);
        let owner = owner.and_then(|owner| owner.split_once('/'));
        let generation = policy.metadata.generation.unwrap_or_default();
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        let refused = conditions
            .filter(|one| one.type_ == "Accepted" && one.status == "False")
            .find(|one| one.observed_generation == Some(generation))
            .map(|one| one.message.clone());
        Self {
            name: policy.name_any(),
            uid: policy.uid().unwrap_or_default(),
            version: policy.resource_version().unwrap_or_default(),
            generation,
            deleting: policy.metadata.deletion_timestamp.is_some(),
            owner: owner.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
            spec: json!(policy.spec),
            refused,
        }
    }
}
