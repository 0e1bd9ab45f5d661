//! Objects of the API server as the controller's mirror stores them.
//!
//! Nothing here decides, with one exception: a revision counts only if it [belongs](revision::owner)
//! to the policy that it names. Everybody who may write PolicyRevisions in some namespace could
//! otherwise change what a cluster-wide policy enforces.

use std::{collections::BTreeMap, sync::Arc};

use assent_api::{
    API_VERSION, PolicyRevision, PolicyRevisionSpec,
    parse::{self, Manifest},
    revision::Phase,
};
use assent_controller::{
    Change, Kind, Meta, Object,
    objects::{
        NamespaceObject, ObjectRef, PodObject, PolicyObject, RevisionObject, RouteObject,
        ServerObject, SetObject, policy_key,
    },
};
use assent_core::PolicyKey;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    identity::pod_identity,
    names, revision,
    watch::{self, KindExt as _, What},
    webhook,
};

#[cfg(test)]
mod tests;

/// Converts objects of one installation.
#[derive(Clone, Debug, Default)]
pub struct Converter {
    namespace: String,
    options: parse::Options,
}

// === impl Converter ===

impl Converter {
    /// For the control plane in `namespace`; policies are parsed with `options`.
    pub fn new(namespace: &str, options: parse::Options) -> Self {
        Self {
            namespace: namespace.to_owned(),
            options,
        }
    }

    /// A change as a watch reported it; `None` if it concerns no object of the mirror.
    pub fn change(&self, change: watch::Change) -> Option<Change<DynamicObject>> {
        let watch::Change { kind, what } = change;
        match what {
            What::Applied(object) => self.object(kind, *object).map(Change::Applied),
            What::Deleted(object) => Some(Change::Deleted(reference(kind, &object))),
            What::Listed(objects) => {
                let objects = objects.into_iter();
                let objects = objects.filter_map(|object| self.object(kind, object));
                Some(Change::Listed(kind, objects.collect()))
            }
        }
    }

    /// One object; `None` if it is not one of the mirror's.
    pub fn object(&self, kind: Kind, object: DynamicObject) -> Option<Object<DynamicObject>> {
        Some(match kind {
            Kind::ClusterPolicies
            | Kind::Policies
            | Kind::ClusterRequestPolicies
            | Kind::RequestPolicies => Object::Policy(Box::new(self.policy(kind, &object)?)),
            Kind::Servers => Object::Server(Box::new(self.server(&object))),
            Kind::Revisions => Object::Revision(Box::new(self.revision(object))),
            Kind::Validating | Kind::Mutating => Object::Route(Box::new(route(kind, object)?)),
            Kind::Pods => Object::Pod(Box::new(pod(&object)?)),
            Kind::Sets => Object::Set(Box::new(set(&object)?)),
            Kind::Services => Object::Service(Box::new(meta(&object)), server_of(&object)?),
            Kind::Namespaces => Object::Namespace(Box::new(NamespaceObject {
                meta: meta(&object),
                labels: object.metadata.labels.unwrap_or_default(),
            })),
        })
    }

    /// Whether a stored revision can be used.
    pub fn is_readable(&self, key: &PolicyKey, spec: &PolicyRevisionSpec) -> bool {
        assent_controller::revision::restore(key, spec, &self.options).is_ok()
    }

    fn policy(&self, kind: Kind, object: &DynamicObject) -> Option<PolicyObject> {
        let meta = meta(object);
        let key = policy_key(kind, &meta.namespace, &meta.name)?;
        let value = complete(kind, object);
        let server = value.pointer("/spec/policyServer").and_then(Value::as_str);
        let server = server.unwrap_or(assent_core::policy::DEFAULT_SERVER);
        let rollback = annotation(object, assent_api::ROLLBACK_ANNOTATION);
        Some(PolicyObject {
            meta,
            key,
            server: server.to_owned(),
            parsed: parse::policy(&value, &self.options).map_err(|e| e.to_string()),
            rollback: rollback.and_then(|text| parse::rollback(&text)),
            // A rollback writes the URL with the digest in it.
            pinned: None,
            problem: None,
            status: status(object),
        })
    }

    fn server(&self, object: &DynamicObject) -> ServerObject {
        let value = complete(Kind::Servers, object);
        let parsed = match parse::manifest(&value, &self.options) {
            Ok(Manifest::Server(server)) => Ok(Some(server)),
            Ok(Manifest::Policy(_)) => Err("it is a policy".to_owned()),
            Err(errors) => Err(errors.to_string()),
        };
        ServerObject {
            meta: meta(object),
            parsed,
            status: status(object),
        }
    }

    /// A revision that does not belong to the policy that it names has no key.
    fn revision(&self, object: DynamicObject) -> RevisionObject {
        let meta = meta(&object);
        let unusable = |why: String| {
            warn!(
                namespace = %meta.namespace, revision = %meta.name,
                "ignoring a PolicyRevision: {why}"
            );
            RevisionObject {
                meta: meta.clone(),
                key: None,
                policy_uid: String::new(),
                spec: None,
                policy: Err(why),
                phase: Phase::History,
            }
        };
        let object: PolicyRevision = match object.try_parse() {
            Ok(object) => object,
            Err(error) => return unusable(error.to_string()),
        };
        let key = match revision::owner(&object, &self.namespace) {
            Ok(key) => key,
            Err(why) => return unusable(why.to_string()),
        };
        let policy = assent_controller::revision::restore(&key, &object.spec, &self.options);
        let phase = object.status.and_then(|s| s.phase);
        RevisionObject {
            meta,
            key: Some(key),
            policy_uid: object.spec.policy_ref.uid.clone(),
            policy: policy.map(Arc::new),
            phase: phase.unwrap_or(Phase::Candidate),
            spec: Some(Arc::new(object.spec)),
        }
    }
}

/// Names an object.
pub fn reference(kind: Kind, object: &DynamicObject) -> ObjectRef {
    let metadata = object.metadata.clone();
    ObjectRef {
        kind,
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
    }
}

/// The kind of a webhook configuration in the mirror.
pub fn route_kind(kind: webhook::Kind) -> Kind {
    match kind {
        webhook::Kind::Validating => Kind::Validating,
        webhook::Kind::Mutating => Kind::Mutating,
    }
}

/// The kind of configuration that a route of the mirror is.
pub fn webhook_kind(kind: Kind) -> webhook::Kind {
    match kind {
        Kind::Mutating => webhook::Kind::Mutating,
        _ => webhook::Kind::Validating,
    }
}

/// A webhook configuration; `None` if it belongs to no policy.
pub fn route(kind: Kind, object: DynamicObject) -> Option<RouteObject<DynamicObject>> {
    let named = webhook::read(&object)?;
    Some(RouteObject {
        meta: meta(&object),
        kind,
        key: named.policy,
        uid: named.uid,
        revision: named.revision,
        resolved: named.resolved.map(Arc::new),
        confirms: named.confirms,
        existing: object,
    })
}

/// `None` if the pod does not ask for an evaluator.
fn pod(object: &DynamicObject) -> Option<PodObject> {
    let field = |pointer: &str| object.data.pointer(pointer);
    let conditions = field("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().any(|c| {
        let is = |field: &str, value: &str| c.get(field).and_then(Value::as_str) == Some(value);
        is("type", "Ready") && is("status", "True")
    });
    let containers = ["/spec/containers", "/spec/initContainers"];
    let containers = containers.iter().filter_map(|p| field(p)?.as_array());
    let injected = containers.flatten().any(|c| {
        let text = |field: &str| c.get(field).and_then(Value::as_str);
        text("name") == Some(names::EVALUATOR_CONTAINER)
            && text("image").is_some_and(|i| i != names::PLACEHOLDER_IMAGE)
    });
    let meta = meta(object);
    Some(PodObject {
        server: server_of(object)?,
        owner: controller(object),
        ready,
        injected,
        hash: annotation(object, names::TEMPLATE_HASH_ANNOTATION),
        template: label(object, "controller-revision-hash"),
        ip: field("/status/podIP")
            .and_then(Value::as_str)
            .map(Into::into),
        identity: pod_identity(&meta.namespace, &meta.name, &meta.uid),
        meta,
    })
}

fn set(object: &DynamicObject) -> Option<SetObject> {
    let count = |pointer: &str| {
        let count = object.data.pointer(pointer).and_then(Value::as_i64);
        count
            .and_then(|n| i32::try_from(n).ok())
            .unwrap_or_default()
    };
    let meta = meta(object);
    let observed = object.data.pointer("/status/observedGeneration");
    let template = object.data.pointer("/status/updateRevision");
    let template = template.filter(|_| observed.and_then(Value::as_i64) == Some(meta.generation));
    let annotations = object.data.pointer("/spec/template/metadata/annotations");
    let hash = annotations.and_then(|all| all.get(names::TEMPLATE_HASH_ANNOTATION));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(Into::into);
    Some(SetObject {
        server: server_of(object)?,
        owner: controller(object),
        replicas: count("/status/replicas"),
        ready: count("/status/readyReplicas"),
        hash: text(hash),
        template: text(template),
        meta,
    })
}

fn meta(object: &DynamicObject) -> Meta {
    let m = &object.metadata;
    let mut finalizers = m.finalizers.iter().flatten();
    Meta {
        namespace: m.namespace.clone().unwrap_or_default(),
        name: m.name.clone().unwrap_or_default(),
        uid: m.uid.clone().unwrap_or_default(),
        resource_version: m.resource_version.clone().unwrap_or_default(),
        generation: m.generation.unwrap_or_default(),
        deleting: m.deletion_timestamp.is_some(),
        has_finalizer: finalizers.any(|f| f == names::FINALIZER),
        created: m.creation_timestamp.as_ref().map(|t| t.0),
    }
}

/// A status that cannot be read is written again.
fn status<T: DeserializeOwned>(object: &DynamicObject) -> Option<T> {
    let status = object.data.get("status")?;
    serde_json::from_value(status.clone()).ok()
}

/// The PolicyServer that an object's label names.
fn server_of(object: &DynamicObject) -> Option<String> {
    label(object, names::SERVER_LABEL)
}

fn label(object: &DynamicObject, name: &str) -> Option<String> {
    object.metadata.labels.as_ref()?.get(name).cloned()
}

fn annotation(object: &DynamicObject, name: &str) -> Option<String> {
    let annotations: &BTreeMap<String, String> = object.metadata.annotations.as_ref()?;
    annotations.get(name).cloned()
}

/// The uid of the object's controller.
fn controller(object: &DynamicObject) -> Option<String> {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|o| o.controller == Some(true));
    controllers.next().map(|o| o.uid.clone())
}

/// The object as the parser reads it: items of a list lack their kind.
fn complete(kind: Kind, object: &DynamicObject) -> Value {
    let mut value = object.data.clone();
    if !value.is_object() {
        value = json!({});
    }
    value["apiVersion"] = API_VERSION.into();
    value["kind"] = kind.resource().kind.into();
    let metadata = serde_json::to_value(&object.metadata);
    value["metadata"] = metadata.unwrap_or_default();
    value
}
