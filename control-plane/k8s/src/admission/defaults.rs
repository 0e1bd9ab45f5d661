//! Fills in what an object leaves out.

use assent_api::parse::{self, Manifest};
use json_patch::PatchOperation;
use serde_json::{Value, json};

use super::{
    patch,
    review::{Operation, Request},
};
use crate::names::FINALIZER;

/// What is missing in the object: Assent's finalizer, and fields that have a default. The API
/// server fills in the defaults of its schema before; an older schema has fewer of them.
pub fn defaults(request: &Request, options: &assent_api::Options) -> Vec<PatchOperation> {
    let object = &request.object;
    let written = matches!(request.operation, Operation::Create | Operation::Update);
    if !written || !request.sub_resource.is_empty() || super::validate::is_terminating(object) {
        return Vec::new();
    }
    let mut patch: Vec<_> = finalizer(object).into_iter().collect();
    patch.extend(fields(object, options));
    patch
}

fn finalizer(object: &Value) -> Option<PatchOperation> {
    let path = ["metadata", "finalizers"];
    let there = patch::at(object, &path).and_then(Value::as_array);
    if there.is_some_and(|list| list.iter().any(|item| item == FINALIZER)) {
        return None;
    }
    patch::append(object, &path, vec![json!(FINALIZER)]).pop()
}

/// What the parser fills in. Where it refuses the object, validation says why.
fn fields(object: &Value, options: &assent_api::Options) -> Vec<PatchOperation> {
    let Some(written) = object.get("spec").and_then(Value::as_object) else {
        return Vec::new();
    };
    let Some(Value::Object(full)) = full_spec(object, options) else {
        return Vec::new();
    };
    full.into_iter()
        .filter(|(name, _)| written.get(name).is_none_or(Value::is_null))
        // Users who write this one are warned that it has no effect.
        .filter(|(name, _)| name != "backgroundAudit")
        .map(|(name, value)| patch::add(&["spec", &name], value))
        .collect()
}

fn full_spec(object: &Value, options: &assent_api::Options) -> Option<Value> {
    let mut object = object.clone();
    // An object whose name is still to be made has none yet.
    if object.pointer("/metadata/name").is_none_or(Value::is_null) {
        object["metadata"]["name"] = json!("unnamed");
    }
    let spec = match parse::manifest(&object, options).ok()? {
        Manifest::Policy(policy) => policy.spec_json,
        Manifest::Server(server) => server.spec_json,
    };
    serde_json::from_slice(&spec).ok()
}

#[cfg(test)]
mod tests;
