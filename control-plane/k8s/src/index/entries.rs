//! Single objects, as far as decisions look at them.

use std::{collections::BTreeMap, sync::Arc};

use assent_api::{
    API_VERSION, Parsed, ParsedServer, PolicyRevision,
    parse::{self, Manifest, Rollback},
    revision::Phase,
};
use assent_core::{Policy, PolicyKey};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::Kind;
use crate::{names, revision, webhook};

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Empty where there is none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Tells it from others of the name.
    pub uid: String,
    /// For conditional writes.
    pub resource_version: String,
    /// Counts changes of the spec.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// What keeps it from going.
    pub finalizers: Vec<String>,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// A policy of either kind.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    /// What every object has.
    pub meta: Meta,
    /// Its name.
    pub key: PolicyKey,
    /// What it says, or what is wrong with it.
    pub parsed: Result<Parsed, String>,
    /// The PolicyServer that it names, as far as that can be read.
    pub server: String,
    /// A rollback that somebody asks for.
    pub rollback: Option<Rollback>,
    /// Its status as stored.
    pub status: Value,
}

/// A PolicyServer.
#[derive(Clone, Debug)]
pub struct ServerEntry {
    /// What every object has.
    pub meta: Meta,
    /// What it says, or what is wrong with it.
    pub parsed: Result<ParsedServer, String>,
    /// Its status as stored.
    pub status: Value,
}

/// A revision.
#[derive(Clone, Debug)]
pub struct RevisionEntry {
    /// What every object has.
    pub meta: Meta,
    /// The policy that it is of; none where that can't be read.
    pub key: Option<PolicyKey>,
    /// The uid of that policy.
    pub policy_uid: String,
    /// The object.
    pub object: Option<Arc<PolicyRevision>>,
    /// What evaluators get, or why it can't be used.
    pub policy: Result<Arc<Policy>, String>,
    /// As stored; none is a candidate.
    pub phase: Phase,
}

/// A webhook configuration of a policy.
#[derive(Clone, Debug)]
pub struct WebhookEntry {
    /// What every object has.
    pub meta: Meta,
    /// [`Kind::Validating`] or [`Kind::Mutating`].
    pub kind: Kind,
    /// The policy.
    pub key: PolicyKey,
    /// What it names.
    pub named: webhook::Named,
    /// The whole object.
    pub object: DynamicObject,
}

/// A pod that asks for an evaluator.
#[derive(Clone, Debug)]
pub struct PodEntry {
    /// What every object has.
    pub meta: Meta,
    /// The PolicyServer that it asks for.
    pub server: String,
    /// Uid of the controller that made it.
    pub owner: Option<String>,
    /// Whether it is an endpoint of its Service.
    pub ready: bool,
    /// Whether it has an evaluator container that was filled in.
    pub injected: bool,
    /// Hash of the evaluator that it was filled in with.
    pub hash: Option<String>,
    /// Which template of its StatefulSet it was made from.
    pub template: Option<String>,
    /// Where it is.
    pub ip: Option<String>,
}

/// The StatefulSet of a PolicyServer.
#[derive(Clone, Debug)]
pub struct SetEntry {
    /// What every object has.
    pub meta: Meta,
    /// The PolicyServer.
    pub server: String,
    /// Uid of the PolicyServer object that owns it.
    pub owner: Option<String>,
    /// `status.replicas`.
    pub replicas: i32,
    /// `status.readyReplicas`.
    pub ready: i32,
    /// Hash of the evaluator that its template asks for.
    pub hash: Option<String>,
    /// The name of that template; none until the controller has looked at it.
    pub template: Option<String>,
}

// === impl Meta ===

impl Meta {
    fn read(object: &DynamicObject) -> Self {
        let m = &object.metadata;
        Self {
            namespace: m.namespace.clone().unwrap_or_default(),
            name: m.name.clone().unwrap_or_default(),
            uid: m.uid.clone().unwrap_or_default(),
            resource_version: m.resource_version.clone().unwrap_or_default(),
            generation: m.generation.unwrap_or_default(),
            deleting: m.deletion_timestamp.is_some(),
            finalizers: m.finalizers.clone().unwrap_or_default(),
            created: m.creation_timestamp.as_ref().map(|t| t.0),
        }
    }

    /// Whether our finalizer is there.
    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|f| f == names::FINALIZER)
    }

    /// Whether this state is newer than `other`, a state of the same object. Versions are
    /// numbers that grow on every API server whose store is etcd; where they are not, the
    /// order in which states come in decides.
    pub(super) fn supersedes(&self, other: &Meta) -> bool {
        let number = |m: &Meta| m.resource_version.parse::<u64>().ok();
        self.uid == other.uid && number(self).zip(number(other)).is_some_and(|(a, b)| a > b)
    }
}

// === impl PolicyEntry ===

impl PolicyEntry {
    pub(super) fn read(
        kind: Kind,
        object: DynamicObject,
        options: &parse::Options,
    ) -> Option<Self> {
        let meta = Meta::read(&object);
        let key = match kind {
            Kind::Policies => format!("namespaced/{}/{}", meta.namespace, meta.name),
            _ => format!("cluster/{}", meta.name),
        };
        let key = PolicyKey::parse(&key)?;
        let name = match kind {
            Kind::Policies => "AdmissionPolicy",
            _ => "ClusterAdmissionPolicy",
        };
        let value = whole(name, &object);
        let server = value.pointer("/spec/policyServer").and_then(Value::as_str);
        let server = server.unwrap_or(assent_core::policy::DEFAULT_SERVER).into();
        let parsed = parse::policy(&value, options).map_err(|e| e.to_string());
        let annotation = annotation(&object, assent_api::ROLLBACK_ANNOTATION);
        Some(Self {
            meta,
            key,
            server,
            rollback: annotation.and_then(|text| parse::rollback(&text)),
            parsed,
            status: object.data.get("status").cloned().unwrap_or_default(),
        })
    }
}

// === impl ServerEntry ===

impl ServerEntry {
    pub(super) fn read(object: DynamicObject) -> Self {
        let value = whole("PolicyServer", &object);
        let parsed = match parse::manifest(&value, &parse::Options::default()) {
            Ok(Manifest::Server(server)) => Ok(*server),
            Ok(Manifest::Policy(_)) => Err("it is a policy".to_owned()),
            Err(errors) => Err(errors.to_string()),
        };
        Self {
            meta: Meta::read(&object),
            parsed,
            status: object.data.get("status").cloned().unwrap_or_default(),
        }
    }
}

// === impl RevisionEntry ===

impl RevisionEntry {
    pub(super) fn read(object: DynamicObject, options: &parse::Options) -> Self {
        let meta = Meta::read(&object);
        let object: Result<PolicyRevision, String> = object.try_parse().map_err(|e| e.to_string());
        let object = match object {
            Ok(object) => object,
            Err(error) => {
                return Self {
                    meta,
                    key: None,
                    policy_uid: String::new(),
                    object: None,
                    policy: Err(error),
                    phase: Phase::History,
                };
            }
        };
        let phase = object.status.as_ref().and_then(|s| s.phase);
        Self {
            meta,
            key: revision::key(&object),
            policy_uid: object.spec.policy_ref.uid.clone(),
            policy: revision::restore(&object, options).map(Arc::new),
            phase: phase.unwrap_or(Phase::Candidate),
            object: Some(Arc::new(object)),
        }
    }

    /// `<generation>-<uid8>`.
    pub fn short(&self) -> Option<&str> {
        self.policy.as_ref().ok().map(|p| p.revision.short())
    }
}

// === impl WebhookEntry ===

impl WebhookEntry {
    pub(super) fn read(kind: Kind, object: DynamicObject) -> Option<Self> {
        let named = webhook::read(&object)?;
        Some(Self {
            meta: Meta::read(&object),
            kind,
            key: named.policy.clone(),
            named,
            object,
        })
    }
}

// === impl PodEntry ===

impl PodEntry {
    /// None where the pod asks for nothing.
    pub fn read(object: DynamicObject) -> Option<Self> {
        let status = |pointer: &str| object.data.pointer(pointer);
        let conditions = status("/status/conditions").and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().any(|c| {
            let is = |field: &str, value: &str| c.get(field).and_then(Value::as_str) == Some(value);
            is("type", "Ready") && is("status", "True")
        });
        let containers = ["/spec/containers", "/spec/initContainers"];
        let containers = containers.iter().filter_map(|p| status(p)?.as_array());
        let injected = containers.flatten().any(|c| {
            let text = |field: &str| c.get(field).and_then(Value::as_str);
            text("name") == Some(names::EVALUATOR_CONTAINER)
                && text("image").is_some_and(|i| i != names::PLACEHOLDER_IMAGE)
        });
        Some(Self {
            server: server_of(&object)?,
            owner: controller(&object),
            ready,
            injected,
            hash: annotation(&object, names::TEMPLATE_HASH_ANNOTATION),
            template: label(&object, "controller-revision-hash"),
            ip: status("/status/podIP")
                .and_then(Value::as_str)
                .map(Into::into),
            meta: Meta::read(&object),
        })
    }
}

// === impl SetEntry ===

impl SetEntry {
    pub(super) fn read(object: DynamicObject) -> Option<Self> {
        let count = |pointer: &str| {
            let count = object.data.pointer(pointer).and_then(Value::as_i64);
            count
                .and_then(|n| i32::try_from(n).ok())
                .unwrap_or_default()
        };
        let meta = Meta::read(&object);
        let observed = object.data.pointer("/status/observedGeneration");
        let template = object.data.pointer("/status/updateRevision");
        let template =
            template.filter(|_| observed.and_then(Value::as_i64) == Some(meta.generation));
        let annotations = object.data.pointer("/spec/template/metadata/annotations");
        let hash = annotations.and_then(|all| all.get(names::TEMPLATE_HASH_ANNOTATION));
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(Into::into);
        Some(Self {
            server: server_of(&object)?,
            owner: controller(&object),
            replicas: count("/status/replicas"),
            ready: count("/status/readyReplicas"),
            hash: text(hash),
            template: text(template),
            meta,
        })
    }
}

/// The PolicyServer that an object's label names.
pub(super) fn server_of(object: &DynamicObject) -> Option<String> {
    label(object, names::SERVER_LABEL)
}

fn label(object: &DynamicObject, name: &str) -> Option<String> {
    let labels = object.metadata.labels.as_ref()?;
    labels.get(name).cloned()
}

fn annotation(object: &DynamicObject, name: &str) -> Option<String> {
    let annotations: &BTreeMap<String, String> = object.metadata.annotations.as_ref()?;
    annotations.get(name).cloned()
}

fn controller(object: &DynamicObject) -> Option<String> {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|o| o.controller == Some(true));
    controllers.next().map(|o| o.uid.clone())
}

/// The object as the parser reads it: lists leave out what kind their items are.
fn whole(kind: &str, object: &DynamicObject) -> Value {
    let mut value = object.data.clone();
    if !value.is_object() {
        value = json!({});
    }
    value["apiVersion"] = API_VERSION.into();
    value["kind"] = kind.into();
    let metadata = serde_json::to_value(&object.metadata);
    value["metadata"] = metadata.unwrap_or_default();
    value
}
