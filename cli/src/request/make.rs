//! Makes the admission request that an API server would send about an object.
//!
//! Defaults that an API server fills in (`spec.dnsPolicy`, a `uid`) are not known here and stay absent. The namespace of
//! a namespaced object is filled in, because policies rely on it.

use std::fmt;

use assent_core::Digest;
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::kinds::{Kind, guess_resource};

/// What is not in the object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestOptions {
    /// Without one: UPDATE if there is an old object, else CREATE.
    pub(crate) operation: Option<Operation>,
    pub(crate) user: Option<String>,
    pub(crate) groups: Vec<String>,
    /// For namespaced objects that name none.
    pub(crate) namespace: Option<String>,
    /// `RESOURCE` or `RESOURCE/SUBRESOURCE`.
    pub(crate) resource: Option<String>,
    pub(crate) dry_run: bool,
}

/// What is done to the object. A CONNECT has no object; it needs a complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
#[value(rename_all = "UPPER")]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

/// Why no request can be made of a document.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MakeError {
    #[error("not a Kubernetes object: it has no {0}")]
    NotAnObject(&'static str),
    #[error("metadata has neither a name nor a generateName")]
    NoName,
    #[error("the object is in the namespace {object:?}, not in {given:?}; leave one of them out")]
    Namespace { object: String, given: String },
    #[error("an UPDATE needs the object as it was before; {0}")]
    NoOldObject(&'static str),
    #[error("a {operation} has no old object")]
    OldObject { operation: Operation },
    #[error("the old object is {old}, not {object}")]
    OtherObject { object: String, old: String },
}

/// The parts of an object that a request repeats.
struct Head<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    name: &'a str,
    /// None outside of namespaces.
    namespace: Option<String>,
    resource: String,
    subresource: String,
}

/// Where objects are if nothing else is said.
const DEFAULT_NAMESPACE: &str = "default";

/// The user of a request, unless one is given.
const USER: &str = "assent-user";

/// A group that every user has who has proved who it is.
const GROUP: &str = "system:authenticated";

/// Makes a request about `object`.
pub(crate) fn make(
    object: &Value,
    old: Option<&Value>,
    options: &RequestOptions,
) -> Result<Value, MakeError> {
    let head = Head::of(object, options)?;
    let operation = options.operation.unwrap_or(match old {
        Some(_) => Operation::Update,
        None => Operation::Create,
    });
    let object = head.placed(object);
    let (object, old) = match (operation, old) {
        (Operation::Create, None) => (object, Value::Null),
        (Operation::Delete, None) => (Value::Null, object),
        (Operation::Update, Some(old)) => (object, head.placed_old(old, options)?),
        (Operation::Update, None) => {
            return Err(MakeError::NoOldObject("pass it as the old object"));
        }
        (operation, Some(_)) => return Err(MakeError::OldObject { operation }),
    };
    let mut request = head.request();
    let options_kind = operation.options_kind();
    let mut fields = json!({
        "operation": operation.to_string(),
        "userInfo": user_info(options),
        "object": object,
        "oldObject": old,
        "dryRun": options.dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": options_kind},
    });
    if options.dry_run {
        fields["options"]["dryRun"] = json!(["All"]);
    }
    if let Value::Object(fields) = fields {
        request.extend(fields);
    }
    request.insert("uid".into(), uid(&request).into());
    Ok(Value::Object(request))
}

/// Names an object: `Pod shop/web`.
pub(crate) fn identity(object: &Value, options: &RequestOptions) -> Result<String, MakeError> {
    Head::of(object, options).map(|head| head.to_string())
}

fn user_info(options: &RequestOptions) -> Value {
    let groups = match options.groups.as_slice() {
        [] => vec![GROUP.to_owned()],
        groups => groups.to_vec(),
    };
    json!({"username": options.user.as_deref().unwrap_or(USER), "groups": groups})
}

/// Made from the content, so that the same input gives the same output.
fn uid(request: &Map<String, Value>) -> String {
    let bytes = serde_json::to_vec(request).unwrap_or_default();
    let hex = Digest::of(&bytes).hex();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    parts.map(|(from, to)| part(from, to)).join("-")
}

// === impl Head ===

impl<'a> Head<'a> {
    fn of(object: &'a Value, options: &RequestOptions) -> Result<Self, MakeError> {
        let text = |field| object.get(field).and_then(Value::as_str);
        let api_version = text("apiVersion").ok_or(MakeError::NotAnObject("apiVersion"))?;
        let kind = text("kind").ok_or(MakeError::NotAnObject("kind"))?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let metadata = |field: &str| object["metadata"][field].as_str();
        let name = match (metadata("name"), metadata("generateName")) {
            (Some(name), _) => name,
            (None, Some(_)) => "",
            (None, None) => return Err(MakeError::NoName),
        };
        let known = Kind::find(group, kind);
        let own = metadata("namespace").filter(|namespace| !namespace.is_empty());
        let given = options.namespace.as_deref();
        let namespaced = match known {
            Some(known) => known.namespaced,
            None => own.or(given).is_some(),
        };
        let namespace = match (own, given) {
            _ if !namespaced => None,
            (Some(own), Some(given)) if own != given => {
                return Err(MakeError::Namespace {
                    object: own.to_owned(),
                    given: given.to_owned(),
                });
            }
            (own, given) => Some(own.or(given).unwrap_or(DEFAULT_NAMESPACE).to_owned()),
        };
        let default = || known.map_or_else(|| guess_resource(kind), |one| one.resource.to_owned());
        let resource = options.resource.clone().unwrap_or_else(default);
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        Ok(Self {
            group,
            version,
            kind,
            name,
            namespace,
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
        })
    }

    /// The object with its namespace.
    fn placed(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(namespace) = &self.namespace {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        object
    }

    fn placed_old(&self, old: &Value, options: &RequestOptions) -> Result<Value, MakeError> {
        let other = Head::of(old, options)?;
        let (object, old_name) = (self.to_string(), other.to_string());
        if object != old_name {
            return Err(MakeError::OtherObject {
                object,
                old: old_name,
            });
        }
        Ok(other.placed(old))
    }

    /// The fields that do not depend on the operation.
    fn request(&self) -> Map<String, Value> {
        let kind = json!({"group": self.group, "version": self.version, "kind": self.kind});
        let resource =
            json!({"group": self.group, "version": self.version, "resource": self.resource});
        let mut fields = Map::new();
        let mut insert = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        insert("kind", kind.clone());
        insert("resource", resource.clone());
        insert("requestKind", kind);
        insert("requestResource", resource);
        if !self.subresource.is_empty() {
            insert("subResource", self.subresource.as_str().into());
            insert("requestSubResource", self.subresource.as_str().into());
        }
        insert("name", self.name.into());
        // A request about a Namespace names the namespace itself.
        let own = (self.group.is_empty() && self.kind == "Namespace").then_some(self.name);
        if let Some(namespace) = self.namespace.as_deref().or(own) {
            insert("namespace", namespace.into());
        }
        fields
    }
}

impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        match self.name {
            "" => f.write_str("(generated name)"),
            name => f.write_str(name),
        }
    }
}

// === impl Operation ===

impl Operation {
    fn options_kind(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        })
    }
}

#[cfg(test)]
mod tests;
