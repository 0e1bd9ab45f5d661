//! Denies objects without a label.

use kubewarden_policy_sdk::{
    accept_request, protocol_version_guest, reject_request,
    request::ValidationRequest,
    settings::SettingsValidationResponse,
    wapc_guest::{CallResult, register_function},
};
use serde::Deserialize;

/// The settings of the manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The label that every object must have.
    label: String,
}

/// Registers the operations; the host calls it once per instance.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    register_function("validate", validate);
    register_function("validate_settings", validate_settings);
    register_function("protocol_version", protocol_version_guest);
}

/// Decides about one request.
pub fn validate(payload: &[u8]) -> CallResult {
    let review = ValidationRequest::<Settings>::new(payload)?;
    let label = &review.settings.label;
    let value = review.request.object["metadata"]["labels"][label].as_str();
    match value {
        Some(value) if !value.is_empty() => accept_request(),
        _ => reject_request(Some(format!("the label {label} is missing")), None, None, None),
    }
}

/// Checks the settings before the policy is enforced.
pub fn validate_settings(payload: &[u8]) -> CallResult {
    let checked = match serde_json::from_slice::<Settings>(payload) {
        Ok(settings) if settings.label.is_empty() => Err("label must not be empty".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    Ok(serde_json::to_vec(&SettingsValidationResponse {
        valid: checked.is_ok(),
        message: checked.err(),
    })?)
}
