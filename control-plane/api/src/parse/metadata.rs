//! What kind an object is and how it is named.

use std::fmt;

use assent_core::{PolicyKey, policy::is_dns_subdomain};
use serde_json::Value;

use super::{API_VERSION, Errors, Options, Rollback, reader::Fields};
use crate::ROLLBACK_ANNOTATION;

/// The kinds that users write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A policy of one namespace.
    AdmissionPolicy,
    /// A policy of the whole cluster.
    ClusterAdmissionPolicy,
    /// A group of evaluators.
    PolicyServer,
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A policy of either kind.
    Policy(PolicyKey),
    /// A PolicyServer.
    Server(String),
}

/// Fields of `metadata` that a client or an API server may put there.
const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Names the object that `value` describes, however wrong the rest of it is. So an error can
/// be shown at the object, and its last good state be kept.
pub fn identify(value: &Value, options: &Options) -> Option<Object> {
    let name = value.pointer("/metadata/name")?.as_str()?;
    if !is_dns_subdomain(name) {
        return None;
    }
    match kind(value).ok()? {
        Kind::PolicyServer => Some(Object::Server(name.to_owned())),
        Kind::ClusterAdmissionPolicy => Some(Object::Policy(PolicyKey::cluster(name))),
        Kind::AdmissionPolicy => {
            let namespace = match value.pointer("/metadata/namespace") {
                None | Some(Value::Null) if options.standalone => "default",
                None => return None,
                Some(namespace) => namespace.as_str()?,
            };
            let valid = is_dns_subdomain(namespace);
            valid.then(|| Object::Policy(PolicyKey::namespaced(namespace, name)))
        }
    }
}

/// The kind that `value` declares.
pub(super) fn kind(value: &Value) -> Result<Kind, Errors> {
    let Some(object) = value.as_object() else {
        return Err(Errors::one(
            "",
            "a manifest must be an object with apiVersion and kind",
        ));
    };
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != API_VERSION {
        let message = format!("must be \"{API_VERSION}\", not \"{}\"", text("apiVersion"));
        return Err(Errors::one("apiVersion", message));
    }
    match text("kind") {
        "AdmissionPolicy" => Ok(Kind::AdmissionPolicy),
        "ClusterAdmissionPolicy" => Ok(Kind::ClusterAdmissionPolicy),
        "PolicyServer" => Ok(Kind::PolicyServer),
        other => Err(Errors::one(
            "kind",
            format!(
                "unknown kind \"{other}\"; known are ClusterAdmissionPolicy, AdmissionPolicy and PolicyServer"
            ),
        )),
    }
}

/// The content of `metadata`.
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) rollback: Option<Rollback>,
}

/// Reads `metadata` of an object.
pub(super) fn read(root: &mut Fields<'_>) -> Metadata {
    let mut metadata = Metadata {
        name: None,
        namespace: None,
        rollback: None,
    };
    let Some(node) = root.require("metadata", "it names the object") else {
        return metadata;
    };
    let mut fields = node.fields();
    if let Some(name) = fields.require("name", "it names the object") {
        metadata.name = name.string().filter(|text| {
            let valid = is_dns_subdomain(text);
            if !valid {
                name.error(format!("\"{text}\" is not a DNS subdomain: lower case letters, digits, '-' and '.', at most 253 characters"));
            }
            valid
        });
    }
    metadata.namespace = fields.string("namespace");
    if let Some(annotations) = fields.get("annotations")
        && let Some(node) = annotations.fields().get(ROLLBACK_ANNOTATION)
        && let Some(text) = node.string()
    {
        metadata.rollback = rollback(&text);
        if metadata.rollback.is_none() {
            node.error(format!(
                "must be \"previous\" or the number of a generation, not \"{text}\""
            ));
        }
    }
    for name in METADATA {
        fields.get(name);
    }
    fields.close();
    metadata
}

/// Reads the value of the annotation that asks for a rollback.
pub fn rollback(text: &str) -> Option<Rollback> {
    if text == "previous" {
        return Some(Rollback::Previous);
    }
    let generation = text.parse().ok().filter(|n: &i64| *n >= 1)?;
    Some(Rollback::Generation(generation))
}

// === impl Kind ===

impl Kind {
    /// The name in `kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::AdmissionPolicy => "AdmissionPolicy",
            Kind::ClusterAdmissionPolicy => "ClusterAdmissionPolicy",
            Kind::PolicyServer => "PolicyServer",
        }
    }
}

// === impl Object ===

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Policy(key) => write!(f, "{key}"),
            Object::Server(name) => write!(f, "policyserver/{name}"),
        }
    }
}
