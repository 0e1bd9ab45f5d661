//! Operations of a JSON patch; keys are escaped.

use json_patch::{
    AddOperation, PatchOperation, RemoveOperation, ReplaceOperation, jsonptr::PointerBuf,
};
use serde_json::{Map, Value, json};

/// Where something is.
pub(super) type Path<'a> = &'a [&'a str];

pub(super) fn add(path: Path<'_>, value: Value) -> PatchOperation {
    let path = pointer(path);
    PatchOperation::Add(AddOperation { path, value })
}

pub(super) fn replace(path: Path<'_>, value: Value) -> PatchOperation {
    let path = pointer(path);
    PatchOperation::Replace(ReplaceOperation { path, value })
}

pub(super) fn remove(path: Path<'_>) -> PatchOperation {
    let path = pointer(path);
    PatchOperation::Remove(RemoveOperation { path })
}

/// Adds the member `key` of the object at `path`, which may be absent.
pub(super) fn member(
    root: &Value,
    path: Path<'_>,
    key: &str,
    value: Value,
) -> Option<PatchOperation> {
    let Some(map) = at(root, path).and_then(Value::as_object) else {
        let map = Map::from_iter([(key.to_owned(), value)]);
        return Some(add(path, Value::Object(map)));
    };
    let full: Vec<_> = path.iter().copied().chain([key]).collect();
    match map.get(key) {
        Some(old) if *old == value => None,
        Some(_) => Some(replace(&full, value)),
        None => Some(add(&full, value)),
    }
}

/// Adds items at the end of the list at `path`, which may be absent.
pub(super) fn append(root: &Value, path: Path<'_>, items: Vec<Value>) -> Vec<PatchOperation> {
    if items.is_empty() {
        return Vec::new();
    }
    if at(root, path).and_then(Value::as_array).is_none() {
        return vec![add(path, json!(items))];
    }
    let end: Vec<_> = path.iter().copied().chain(["-"]).collect();
    items.into_iter().map(|item| add(&end, item)).collect()
}

/// The value at `path`.
pub(super) fn at<'a>(root: &'a Value, path: Path<'_>) -> Option<&'a Value> {
    pointer(path).resolve(root).ok()
}

fn pointer(path: Path<'_>) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}
