//! Objects as clusters have them.

use std::sync::Arc;

use anyhow::Context as _;
use assent_context::{Collection, CollectionSpec};
use assent_core::policy::ContextResource;
use serde_json::{Value, json};

/// Namespaces of 100 objects each.
const PER_NAMESPACE: usize = 100;

pub(super) const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
pub(super) const KIND: &str = "RoleBinding";

/// A RoleBinding as a controller writes it, of about 700 bytes.
pub(super) fn role_binding(number: usize, role: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": format!("binding-{number}"),
            "namespace": namespace(number),
            "uid": format!("3f1c2a9e-0000-4000-8000-{number:012}"),
            "labels": {"app.kubernetes.io/managed-by": "controller", "example.com/route": format!("route-{number}")},
            "annotations": {"example.com/owner": "team-web", "example.com/description": "gives the deployer of a team its rights"},
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [
            {"kind": "ServiceAccount", "name": format!("deployer-{number}"), "namespace": namespace(number)},
            {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "developers"},
        ],
    })
}

pub(super) fn namespace(number: usize) -> String {
    format!("team-{}", number / PER_NAMESPACE)
}

pub(super) fn name(number: usize) -> String {
    format!("binding-{number}")
}

pub(super) fn declared(fields: &[&str]) -> ContextResource {
    ContextResource {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
        ..ContextResource::default()
    }
}

pub(super) fn spec(fields: &[&str]) -> anyhow::Result<Arc<CollectionSpec>> {
    let spec = CollectionSpec::new(&declared(fields), "rolebindings", true);
    Ok(Arc::new(spec.context("failed to name the collection")?))
}

/// A collection of this many objects.
pub(super) fn collection(count: usize, fields: &[&str]) -> anyhow::Result<Collection> {
    let mut collection = Collection::new(spec(fields)?);
    for number in 0..count {
        collection.observe(role_binding(number, "deployer"))?;
    }
    Ok(collection)
}
