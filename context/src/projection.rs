//! What is kept of an object.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{FieldPath, path};

/// Kept whatever a policy declares: without them an object is not one, and labels, owners and
/// uids are what selectors and references need.
const ALWAYS: [&[&str]; 7] = [
    &["apiVersion"],
    &["kind"],
    &["metadata", "labels"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "ownerReferences"],
    &["metadata", "uid"],
];

/// Never kept: they are most of many objects' bytes, change at every write, and are about who
/// wrote, not about what is there.
const MANAGED_FIELDS: &str = "managedFields";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The fields that are kept: all, or a tree of paths.
#[derive(Clone, Debug)]
pub struct Projection {
    tree: Option<Node>,
}

/// A key of the tree. A leaf keeps everything below it.
#[derive(Clone, Debug, Default)]
struct Node {
    leaf: bool,
    children: BTreeMap<Box<str>, Node>,
}

/// A read of a field that objects of the collection do not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not replicated; add it to fields of the policy's contextAwareResources entry")]
pub struct Missing(pub String);

/// Why a mask cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// Not a path.
    #[error(transparent)]
    Path(#[from] path::Error),
    /// A path that the projection dropped.
    #[error(transparent)]
    Missing(#[from] Missing),
}

// === impl Projection ===

impl Projection {
    /// Keeps `fields` and what every object needs; none: everything.
    pub fn new(fields: &[FieldPath]) -> Self {
        if fields.is_empty() {
            return Self { tree: None };
        }
        let mut tree = Node::default();
        let always = ALWAYS.iter();
        always.for_each(|keys| tree.insert(keys.iter().copied()));
        for field in fields {
            tree.insert(field.keys().iter().map(AsRef::as_ref));
        }
        Self { tree: Some(tree) }
    }

    /// Whether `path` is among what no projection keeps.
    pub fn drops(path: &FieldPath) -> bool {
        let managed = FieldPath::of(["metadata", MANAGED_FIELDS]);
        let applied = FieldPath::of(["metadata", "annotations", LAST_APPLIED]);
        managed.covers(path) || applied.covers(path)
    }

    /// Whether everything at and below `path` is kept. A read of a part would look complete and
    /// would not be.
    pub fn check(&self, path: &FieldPath) -> Result<(), Missing> {
        let kept = match &self.tree {
            None => true,
            Some(tree) => tree.keeps(path.keys()),
        };
        if kept && !Self::drops(path) {
            return Ok(());
        }
        Err(Missing(path.to_string()))
    }

    /// A projection of what this one keeps: the masks of a read. None is all that there is.
    pub fn narrow<'a>(&self, masks: impl IntoIterator<Item = &'a str>) -> Result<Self, MaskError> {
        let mut paths = Vec::new();
        for mask in masks {
            let path: FieldPath = mask.parse()?;
            self.check(&path)?;
            paths.push(path);
        }
        Ok(Self::new(&paths))
    }

    /// Whether everything is kept.
    pub fn is_whole(&self) -> bool {
        self.tree.is_none()
    }

    /// Removes what is not kept.
    pub fn project(&self, object: Value) -> Value {
        let mut object = match &self.tree {
            None => object,
            Some(tree) => tree
                .prune(object)
                .unwrap_or_else(|| Value::Object(Map::new())),
        };
        strip(&mut object);
        object
    }
}

// === impl Node ===

impl Node {
    fn insert<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        let mut node = self;
        for key in keys {
            node = node.children.entry(key.into()).or_default();
        }
        node.leaf = true;
    }

    fn keeps(&self, keys: &[Box<str>]) -> bool {
        if self.leaf {
            return true;
        }
        let Some((key, below)) = keys.split_first() else {
            return false;
        };
        self.children
            .get(key)
            .is_some_and(|child| child.keeps(below))
    }

    /// Nothing is left of a scalar if the path goes on below it.
    fn prune(&self, value: Value) -> Option<Value> {
        if self.leaf {
            return Some(value);
        }
        match value {
            Value::Object(fields) => {
                let kept = fields.into_iter().filter_map(|(key, value)| {
                    let child = self.children.get(key.as_str())?;
                    Some((key, child.prune(value)?))
                });
                Some(Value::Object(kept.collect()))
            }
            Value::Array(items) => {
                let kept = items.into_iter().filter_map(|item| self.prune(item));
                Some(Value::Array(kept.collect()))
            }
            _ => None,
        }
    }
}

fn strip(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    metadata.remove(MANAGED_FIELDS);
    let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let removed = annotations.remove(LAST_APPLIED).is_some();
    if removed && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests;
