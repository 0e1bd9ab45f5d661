use std::collections::BTreeMap;

use kubewarden_policy_sdk::{settings::SettingsValidationResponse, wapc_guest::CallResult};
use serde::Deserialize;

/// Kubernetes' limit for the name part of a label key and for a label value.
const MAX_NAME: usize = 63;
/// Kubernetes' limit for the prefix of a label key, which is a DNS subdomain.
const MAX_PREFIX: usize = 253;

/// Which labels to add.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub labels: BTreeMap<String, String>,
    /// Whether a label that is there with another value is replaced.
    pub overwrite: bool,
}

// === impl Settings ===

impl Settings {
    fn check(&self) -> Result<(), String> {
        if self.labels.is_empty() {
            return Err("labels: name at least one label to add".to_owned());
        }
        for (key, value) in &self.labels {
            if !is_key(key) {
                return Err(format!(
                    "labels: {key:?} is not a label key: write name or dns.prefix/name, a name of at most {MAX_NAME} letters, digits, `-`, `_` and `.`"
                ));
            }
            if !value.is_empty() && !is_name(value) {
                return Err(format!(
                    "labels.{key}: {value:?} is not a label value: at most {MAX_NAME} letters, digits, `-`, `_` and `.`, first and last a letter or digit"
                ));
            }
        }
        Ok(())
    }
}

/// Answers `validate_settings`. Settings that don't parse are refused in the parser's words, not by a failed call.
pub fn validate(payload: &[u8]) -> CallResult {
    let checked = serde_json::from_slice::<Settings>(payload)
        .map_err(|error| format!("failed to read settings: {error}"))
        .and_then(|settings| settings.check());
    let response = SettingsValidationResponse {
        valid: checked.is_ok(),
        message: checked.err(),
    };
    Ok(serde_json::to_vec(&response)?)
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_name(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_PREFIX
        && text.split('.').all(|part| {
            is_name(part)
                && part
                    .bytes()
                    .all(|byte| !byte.is_ascii_uppercase() && byte != b'_')
        })
}
