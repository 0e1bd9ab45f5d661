//! Adds labels to objects as they are created or changed.

use kubewarden_policy_sdk::{
    accept_request, mutate_request, protocol_version_guest, reject_request,
    request::ValidationRequest,
    wapc_guest::{CallResult, register_function},
};
use serde_json::{Map, Value};

mod settings;

use settings::Settings;

/// Registers the operations; the host calls it once per instance.
// The export is the waPC contract: the name can't be mangled.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    register_function("validate", validate);
    register_function("validate_settings", settings::validate);
    register_function("protocol_version", protocol_version_guest);
}

/// Answers one review.
pub fn validate(payload: &[u8]) -> CallResult {
    let review = ValidationRequest::<Settings>::new(payload)?;
    let mut object = review.request.object;
    // The object of a subresource (a Scale, an Eviction, a Binding) is not the one that carries the labels.
    if !object.is_object()
        || !review.request.sub_resource.is_empty()
        || is_leaving(&review.request.old_object)
    {
        return accept_request();
    }
    match add(&mut object, &review.settings) {
        Ok(true) => mutate_request(object),
        Ok(false) => accept_request(),
        Err(path) => reject_request(
            Some(format!("failed to add labels: {path} is not an object")),
            None,
            None,
            None,
        ),
    }
}

/// Adds what is missing, and says whether anything was; the error is the path of what is in the way.
fn add(object: &mut Value, settings: &Settings) -> Result<bool, &'static str> {
    let metadata = child(object, "metadata").ok_or("metadata")?;
    let labels = child(metadata, "labels").ok_or("metadata.labels")?;
    let labels = labels.as_object_mut().ok_or("metadata.labels")?;
    let mut changed = false;
    for (key, value) in &settings.labels {
        let wanted = Value::String(value.clone());
        match labels.get(key) {
            Some(present) if !settings.overwrite || *present == wanted => {}
            _ => {
                labels.insert(key.clone(), wanted);
                changed = true;
            }
        }
    }
    Ok(changed)
}

/// The object at `key`; absent and null count as empty. None if something else stands there.
fn child<'a>(parent: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let child = parent.as_object_mut()?.entry(key).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child.is_object().then_some(child)
}

/// Whether the stored object is being deleted: only its finalizers still matter. What the request says of it does
/// not count: a user may write a deletionTimestamp into a new object.
fn is_leaving(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null())
}
