//! What a collection is: a kind, a projection and a scope.

use std::{fmt, str::FromStr};

use assent_core::{
    Digest,
    digest::{self, Framed},
    policy::{ContextResource, is_dns_subdomain},
};

use crate::{
    FieldPath, LabelSelector, Projection, path,
    selector::{self},
};

/// Entries of `fields` or `namespaces`: more is a mistake, and every object is checked against
/// all of them.
pub const MAX_ENTRIES: usize = 64;

/// Names a collection: the digest of its spec, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectionId(Digest);

/// A kind, what is kept of its objects, and which objects. Policies with equal declarations
/// share one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionSpec {
    declared: ContextResource,
    plural: String,
    namespaced: bool,
    paths: Vec<FieldPath>,
    selector: LabelSelector,
    id: CollectionId,
}

/// Why a declaration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No version or kind.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// A path cannot be read.
    #[error("fields: {0}")]
    Path(#[from] path::Error),
    /// A path that is never replicated.
    #[error("fields: {0} is never replicated; remove it")]
    Dropped(String),
    /// Not the name of a namespace.
    #[error("namespaces: {0:?} is not the name of a namespace")]
    Namespace(String),
    /// A cluster-scoped kind has no namespaces.
    #[error("namespaces: {0} is not namespaced; remove namespaces")]
    NotNamespaced(String),
    /// The selector cannot be read.
    #[error("labelSelector: {0}")]
    Selector(#[from] selector::Error),
    /// Too many of something.
    #[error("{0}: at most {MAX_ENTRIES} entries are allowed")]
    TooMany(&'static str),
}

/// Sorts and checks what a policy declares, so that equal declarations are equal.
pub fn normalise(declared: &ContextResource) -> Result<ContextResource, Error> {
    for (field, value) in [
        ("apiVersion", &declared.api_version),
        ("kind", &declared.kind),
    ] {
        if value.is_empty() {
            return Err(Error::Empty(field));
        }
    }
    let paths = paths(&declared.fields)?;
    let is_namespace = |name: &&String| is_dns_subdomain(name) && !name.contains('.');
    if let Some(name) = declared.namespaces.iter().find(|name| !is_namespace(name)) {
        return Err(Error::Namespace(name.clone()));
    }
    let selector: LabelSelector = declared.label_selector.parse()?;
    Ok(ContextResource {
        api_version: declared.api_version.clone(),
        kind: declared.kind.clone(),
        fields: sorted("fields", paths.iter().map(ToString::to_string).collect())?,
        namespaces: sorted("namespaces", declared.namespaces.clone())?,
        label_selector: selector.to_string(),
    })
}

// === impl CollectionSpec ===

impl CollectionSpec {
    /// The collection of a declaration whose kind the API server serves as `plural`.
    pub fn new(declared: &ContextResource, plural: &str, namespaced: bool) -> Result<Self, Error> {
        let declared = normalise(declared)?;
        if plural.is_empty() {
            return Err(Error::Empty("plural"));
        }
        if !namespaced && !declared.namespaces.is_empty() {
            return Err(Error::NotNamespaced(declared.kind));
        }
        Ok(Self {
            id: CollectionId::of(&declared, plural, namespaced),
            paths: paths(&declared.fields)?,
            selector: declared.label_selector.parse()?,
            plural: plural.to_owned(),
            namespaced,
            declared,
        })
    }

    /// Its name.
    pub fn id(&self) -> CollectionId {
        self.id
    }

    /// The declaration, normalised.
    pub fn declared(&self) -> &ContextResource {
        &self.declared
    }

    /// Whether a policy that declares `resource` reads this collection.
    pub fn serves(&self, resource: &ContextResource) -> bool {
        *resource == self.declared || normalise(resource).is_ok_and(|r| r == self.declared)
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.declared.api_version
    }

    /// `Deployment`.
    pub fn kind(&self) -> &str {
        &self.declared.kind
    }

    /// `deployments`.
    pub fn plural(&self) -> &str {
        &self.plural
    }

    /// Whether objects are in namespaces.
    pub fn namespaced(&self) -> bool {
        self.namespaced
    }

    /// The namespaces that it is narrowed to; none: all.
    pub fn namespaces(&self) -> &[String] {
        &self.declared.namespaces
    }

    /// The labels that it is narrowed to.
    pub fn selector(&self) -> &LabelSelector {
        &self.selector
    }

    /// The paths that are kept; none: whole objects.
    pub fn fields(&self) -> &[FieldPath] {
        &self.paths
    }

    /// What is kept of each object.
    pub fn projection(&self) -> Projection {
        Projection::new(&self.paths)
    }

    /// Whether objects of `namespace` are in it.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        let namespaces = &self.declared.namespaces;
        namespaces.is_empty() || namespaces.iter().any(|one| one == namespace)
    }
}

impl fmt::Display for CollectionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.declared.kind, self.declared.api_version)
    }
}

// === impl CollectionId ===

impl CollectionId {
    fn of(declared: &ContextResource, plural: &str, namespaced: bool) -> Self {
        let mut hash = Framed::new("assent.collection.v1");
        hash.field(declared.api_version.as_bytes());
        hash.field(declared.kind.as_bytes());
        hash.field(plural.as_bytes());
        hash.u8(namespaced.into());
        for list in [&declared.fields, &declared.namespaces] {
            hash.count(list.len());
            list.iter().for_each(|item| hash.field(item.as_bytes()));
        }
        hash.field(declared.label_selector.as_bytes());
        Self(hash.digest())
    }
}

impl fmt::Display for CollectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.hex())
    }
}

impl fmt::Debug for CollectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CollectionId {
    type Err = digest::Error;

    fn from_str(text: &str) -> Result<Self, digest::Error> {
        format!("sha256:{text}").parse().map(Self)
    }
}

/// Paths below which nothing is kept, whatever a policy declares.
fn paths(fields: &[String]) -> Result<Vec<FieldPath>, Error> {
    let mut paths = Vec::with_capacity(fields.len());
    for field in fields {
        let path: FieldPath = field.parse()?;
        if Projection::drops(&path) {
            return Err(Error::Dropped(field.clone()));
        }
        paths.push(path);
    }
    Ok(paths)
}

fn sorted(name: &'static str, mut list: Vec<String>) -> Result<Vec<String>, Error> {
    list.sort_unstable();
    list.dedup();
    if list.len() > MAX_ENTRIES {
        return Err(Error::TooMany(name));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn declared(fields: &[&str], namespaces: &[&str], selector: &str) -> ContextResource {
        let owned = |list: &[&str]| list.iter().map(|&item| item.to_owned()).collect();
        ContextResource {
            api_version: "v1".into(),
            kind: "Pod".into(),
            fields: owned(fields),
            namespaces: owned(namespaces),
            label_selector: selector.into(),
        }
    }

    #[test]
    fn order_does_not_make_another_collection() {
        let one = declared(&["spec.b", "spec.a"], &["y", "x", "y"], "b in (2, 1),a=1");
        let other = declared(&["spec.a", "spec.b"], &["x", "y"], "a==1,b in (1,2)");
        let spec = CollectionSpec::new(&one, "pods", true).unwrap();
        assert_eq!(spec, CollectionSpec::new(&other, "pods", true).unwrap());
        assert!(spec.serves(&one) && spec.serves(&other));
        assert!(!spec.serves(&declared(&["spec.a"], &["x", "y"], "a==1,b in (1,2)")));
    }

    #[test]
    fn every_part_makes_another_id() {
        let id = |resource: &ContextResource, plural, namespaced| {
            CollectionSpec::new(resource, plural, namespaced)
                .unwrap()
                .id()
        };
        let mut seen = vec![id(&declared(&[], &[], ""), "pods", true)];
        for other in [
            id(&declared(&["a"], &[], ""), "pods", true),
            id(&declared(&[], &["a"], ""), "pods", true),
            id(&declared(&[], &[], "a"), "pods", true),
            id(&declared(&[], &[], ""), "pod", true),
            id(&declared(&[], &[], ""), "pods", false),
        ] {
            assert!(!seen.contains(&other));
            seen.push(other);
        }
        assert_eq!(seen[0].to_string().parse(), Ok(seen[0]));
    }

    #[test]
    fn mistakes_are_explained() {
        let error = |resource: &ContextResource| {
            CollectionSpec::new(resource, "pods", true)
                .unwrap_err()
                .to_string()
        };
        assert!(error(&declared(&["spec..a"], &[], "")).starts_with("fields: \"spec..a\""));
        let dropped = error(&declared(&["metadata.managedFields"], &[], ""));
        assert!(dropped.contains("never replicated"), "{dropped}");
        assert!(error(&declared(&[], &["A"], "")).starts_with("namespaces: \"A\""));
        assert!(error(&declared(&[], &[], "a in")).starts_with("labelSelector: "));
        let cluster = CollectionSpec::new(&declared(&[], &["a"], ""), "pods", false);
        assert!(matches!(cluster, Err(Error::NotNamespaced(_))));
    }
}
