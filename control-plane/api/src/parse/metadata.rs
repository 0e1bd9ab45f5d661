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
    /// A policy for requests to the workloads of one namespace.
    RequestPolicy,
    /// A policy for requests to all workloads.
    ClusterRequestPolicy,
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
    let kind = kind(value).ok()?;
    if kind == Kind::PolicyServer {
        return Some(Object::Server(name.to_owned()));
    }
    let namespace = match value.pointer("/metadata/namespace") {
        _ if !kind.is_namespaced() => "",
        None | Some(Value::Null) if options.standalone => "default",
        None => return None,
        Some(namespace) => namespace.as_str()?,
    };
    kind.policy_key(namespace, name).map(Object::Policy)
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
    let name = text("kind");
    Kind::parse(name).ok_or_else(|| {
        Errors::one(
            "kind",
            format!(
                "unknown kind \"{name}\"; known are ClusterAdmissionPolicy, AdmissionPolicy, ClusterRequestPolicy, \
                 RequestPolicy and PolicyServer"
            ),
        )
    })
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
            Kind::RequestPolicy => "RequestPolicy",
            Kind::ClusterRequestPolicy => "ClusterRequestPolicy",
            Kind::PolicyServer => "PolicyServer",
        }
    }

    /// Whether objects of this kind have a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Kind::AdmissionPolicy | Kind::RequestPolicy)
    }

    /// The kind of a policy.
    pub fn of(key: &PolicyKey) -> Self {
        match (key.is_for_requests(), key.namespace()) {
            (false, Some(_)) => Kind::AdmissionPolicy,
            (false, None) => Kind::ClusterAdmissionPolicy,
            (true, Some(_)) => Kind::RequestPolicy,
            (true, None) => Kind::ClusterRequestPolicy,
        }
    }

    /// The key of a policy of this kind; none if the names are not valid, or for a PolicyServer. Kinds that have no
    /// namespace ignore it.
    pub fn policy_key(self, namespace: &str, name: &str) -> Option<PolicyKey> {
        let valid = |text: &str| is_dns_subdomain(text).then_some(());
        valid(name)?;
        Some(match self {
            Kind::AdmissionPolicy => {
                valid(namespace)?;
                PolicyKey::namespaced(namespace, name)
            }
            Kind::RequestPolicy => {
                valid(namespace)?;
                PolicyKey::requests(namespace, name)
            }
            Kind::ClusterAdmissionPolicy => PolicyKey::cluster(name),
            Kind::ClusterRequestPolicy => PolicyKey::cluster_requests(name),
            Kind::PolicyServer => return None,
        })
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        let all = [
            Kind::AdmissionPolicy,
            Kind::ClusterAdmissionPolicy,
            Kind::RequestPolicy,
            Kind::ClusterRequestPolicy,
            Kind::PolicyServer,
        ];
        all.into_iter().find(|kind| kind.as_str() == name)
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
