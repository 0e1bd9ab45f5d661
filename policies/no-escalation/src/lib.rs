//! Denies a pod that uses a Secret which the user who makes the pod may not read: the pod would read it for that user.

use std::collections::BTreeSet;

use kubewarden_policy_sdk::{
    accept_request,
    host_capabilities::kubernetes::{CanIRequest, ResourceAttributes, SubjectAccessReview, can_i},
    protocol_version_guest, reject_request,
    request::{KubernetesAdmissionRequest, ValidationRequest},
    settings::Validatable,
    validate_settings,
    wapc_guest::{CallResult, register_function},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The policy has no settings.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {}

impl Validatable for Settings {
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Registers the operations; the host calls it once per instance.
// The export is the waPC contract: the name can't be mangled.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    register_function("validate", validate);
    register_function("validate_settings", validate_settings::<Settings>);
    register_function("protocol_version", protocol_version_guest);
}

/// Answers one review.
pub fn validate(payload: &[u8]) -> CallResult {
    let review = ValidationRequest::<Settings>::new(payload)?;
    let request = &review.request;
    for secret in secrets(&request.object["spec"]) {
        if !can_i(access(request, secret))?.allowed {
            let user = &request.user_info.username;
            let message = format!("{user} may not read Secret {secret}");
            return reject_request(Some(message), None, None, None);
        }
    }
    accept_request()
}

/// The Secrets that a pod reads: as volumes, and as environment variables.
fn secrets(spec: &Value) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for volume in list(&spec["volumes"]) {
        names.extend(volume["secret"]["secretName"].as_str());
        let sources = list(&volume["projected"]["sources"]);
        names.extend(sources.filter_map(|source| source["secret"]["name"].as_str()));
    }
    for containers in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(&spec[containers]) {
            let all = list(&container["envFrom"]);
            names.extend(all.filter_map(|from| from["secretRef"]["name"].as_str()));
            let one = list(&container["env"]);
            names.extend(one.filter_map(|env| env["valueFrom"]["secretKeyRef"]["name"].as_str()));
        }
    }
    names
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn access(request: &KubernetesAdmissionRequest, secret: &str) -> CanIRequest {
    let mut groups: Vec<String> = request.user_info.groups.iter().cloned().collect();
    // Equal questions are answered from a cache.
    groups.sort();
    CanIRequest {
        subject_access_review: SubjectAccessReview {
            groups: Some(groups),
            resource_attributes: ResourceAttributes {
                group: None,
                name: Some(secret.to_owned()),
                namespace: Some(request.namespace.clone()),
                resource: "secrets".to_owned(),
                subresource: None,
                verb: "get".to_owned(),
                version: Some("v1".to_owned()),
            },
            user: request.user_info.username.clone(),
        },
        disable_cache: false,
    }
}
