//! Objects from files in place of a cluster, for trying policies out.

use std::{collections::HashSet, sync::Arc};

use assent_core::policy::ContextResource;
use serde_json::Value;

use crate::{Collection, CollectionSpec, collection, spec};

mod kinds;
#[cfg(test)]
mod tests;

/// The content of a cluster: objects, and the kinds that custom resource definitions among them add.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    objects: Vec<Value>,
    custom: Vec<Kind>,
    /// Version, kind, namespace and name of every object.
    names: HashSet<[String; 4]>,
}

/// How the API server serves a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// `deployments`.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

/// Why objects cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an object of Kubernetes.
    #[error("an object needs apiVersion, kind and metadata.name")]
    NoObject,
    /// Nobody could say which of the two counts.
    #[error("there is another {1} ({0}) named {2}; remove one of the two")]
    Duplicate(String, String, String),
    /// The kind is neither built in nor defined by a CustomResourceDefinition.
    #[error("{1} ({0}) is not a known kind; add its CustomResourceDefinition to the objects")]
    UnknownKind(String, String),
    /// The declaration is not valid.
    #[error("{0}")]
    Declaration(#[from] spec::Error),
    /// An object is not valid.
    #[error("{0}")]
    Object(#[from] collection::Error),
}

// === impl Cluster ===

impl Cluster {
    /// The content; lists are taken apart.
    pub fn new(objects: impl IntoIterator<Item = Value>) -> Result<Self, Error> {
        let mut cluster = Self::default();
        for object in objects {
            cluster.add(object)?;
        }
        Ok(cluster)
    }

    /// Adds an object, or the items of a list.
    pub fn add(&mut self, mut object: Value) -> Result<(), Error> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or(Error::NoObject);
        let (api_version, kind) = (text(&object["apiVersion"])?, text(&object["kind"])?);
        if kind.ends_with("List") && object["items"].is_array() {
            if let Value::Array(items) = object["items"].take() {
                items.into_iter().try_for_each(|item| self.add(item))?;
            }
            return Ok(());
        }
        let name = text(&object["metadata"]["name"])?;
        let namespace = object["metadata"]["namespace"].as_str();
        let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE).to_owned();
        let names = [api_version.clone(), kind.clone(), namespace, name];
        if !self.names.insert(names.clone()) {
            let [version, kind, namespace, name] = names;
            let key = format!("{namespace}/{name}");
            return Err(Error::Duplicate(version, kind, key));
        }
        if kind == "CustomResourceDefinition" && api_version.starts_with("apiextensions.k8s.io/") {
            self.custom.extend(custom_kinds(&object));
        }
        self.objects.push(object);
        Ok(())
    }

    /// How a kind is served.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<Kind> {
        let mut custom = self.custom.iter();
        let custom = custom.find(|one| one.api_version == api_version && one.kind == kind);
        custom
            .cloned()
            .or_else(|| kinds::built_in(api_version, kind))
    }

    /// The objects of a declared kind, projected as in a cluster.
    pub fn collection(&self, declared: &ContextResource) -> Result<Collection, Error> {
        let (version, kind) = (&declared.api_version, &declared.kind);
        let Some(served) = self.kind(version, kind) else {
            return Err(Error::UnknownKind(version.clone(), kind.clone()));
        };
        let spec = CollectionSpec::new(declared, &served.plural, served.namespaced)?;
        self.fill(Arc::new(spec))
    }

    /// The objects of a collection.
    pub fn fill(&self, spec: Arc<CollectionSpec>) -> Result<Collection, Error> {
        let mut collection = Collection::new(spec.clone());
        for object in self.objects_of(&spec) {
            collection.observe(object)?;
        }
        Ok(collection)
    }

    /// One object of a kind, as it is written.
    pub fn get(&self, spec: &CollectionSpec, namespace: &str, name: &str) -> Option<Value> {
        let mut objects = self.objects_of(spec);
        objects.find(|object| {
            let metadata = &object["metadata"];
            let found = metadata["namespace"].as_str().unwrap_or_default();
            metadata["name"] == *name && found == namespace
        })
    }

    fn objects_of(&self, spec: &CollectionSpec) -> impl Iterator<Item = Value> {
        let own = |object: &&Value| {
            object["apiVersion"] == *spec.api_version() && object["kind"] == *spec.kind()
        };
        let objects = self.objects.iter().filter(own);
        objects.map(|object| placed(object, spec.namespaced()))
    }
}

/// Where an object is that names no namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// As `kubectl apply` places an object: without a namespace into `default`.
fn placed(object: &Value, namespaced: bool) -> Value {
    let mut object = object.clone();
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return object;
    };
    if !namespaced {
        metadata.remove("namespace");
    } else if !metadata.get("namespace").is_some_and(Value::is_string) {
        metadata.insert("namespace".to_owned(), DEFAULT_NAMESPACE.into());
    }
    object
}

fn custom_kinds(definition: &Value) -> Vec<Kind> {
    let spec = &definition["spec"];
    let (Some(group), Some(kind), Some(plural)) = (
        spec["group"].as_str(),
        spec["names"]["kind"].as_str(),
        spec["names"]["plural"].as_str(),
    ) else {
        return Vec::new();
    };
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served = versions.filter(|version| version["served"] != Value::Bool(false));
    let names = served.filter_map(|version| version["name"].as_str());
    names
        .map(|version| Kind {
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: spec["scope"] == "Namespaced",
        })
        .collect()
}
