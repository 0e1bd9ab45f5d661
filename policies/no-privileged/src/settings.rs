use kubewarden_policy_sdk::{settings::SettingsValidationResponse, wapc_guest::CallResult};
use serde::Deserialize;

/// What a user may exempt; the default exempts nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// Images whose containers may run privileged; a trailing `*` matches any ending.
    exempt_images: Vec<String>,
    /// Namespaces in which the policy allows everything.
    exempt_namespaces: Vec<String>,
}

// === impl Settings ===

impl Settings {
    pub fn exempts_namespace(&self, namespace: &str) -> bool {
        self.exempt_namespaces
            .iter()
            .any(|exempt| exempt == namespace)
    }

    pub fn exempts_image(&self, image: &str) -> bool {
        self.exempt_images
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => image.starts_with(start),
                None => image == pattern,
            })
    }

    fn check(&self) -> Result<(), String> {
        for (i, pattern) in self.exempt_images.iter().enumerate() {
            let start = pattern.strip_suffix('*').unwrap_or(pattern);
            if start.is_empty() {
                return Err(format!(
                    "exemptImages[{i}]: {pattern:?} would exempt every image: name a registry or a repository"
                ));
            }
            if start.contains('*') {
                return Err(format!(
                    "exemptImages[{i}]: {pattern:?} has a `*` that is not at its end: only the last character may be one"
                ));
            }
        }
        for (i, namespace) in self.exempt_namespaces.iter().enumerate() {
            if namespace.is_empty() || namespace.contains('*') {
                return Err(format!(
                    "exemptNamespaces[{i}]: {namespace:?} is not the name of a namespace: write it in full, without `*`"
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
