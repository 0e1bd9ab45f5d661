//! Denies an Ingress whose host another Ingress of the same namespace has.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::Ingress;
use kubewarden_policy_sdk::{
    accept_request,
    host_capabilities::kubernetes::{ListResourcesByNamespaceRequest, list_resources_by_namespace},
    protocol_version_guest, reject_request,
    request::ValidationRequest,
    settings::Validatable,
    validate_settings,
    wapc_guest::{CallResult, register_function},
};
use serde::{Deserialize, Serialize};

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
    let Ok(ingress) = serde_json::from_value::<Ingress>(request.object.clone()) else {
        return accept_request();
    };
    let wanted: BTreeSet<&str> = hosts(&ingress).collect();
    if wanted.is_empty() {
        return accept_request();
    }
    // Only what is compared: the less crosses the boundary, the faster.
    let masks = ["metadata.name", "spec.rules.host"].map(str::to_owned);
    let others = list_resources_by_namespace::<Ingress>(&ListResourcesByNamespaceRequest {
        api_version: "networking.k8s.io/v1".to_owned(),
        kind: "Ingress".to_owned(),
        namespace: request.namespace.clone(),
        label_selector: None,
        field_selector: None,
        field_masks: Some(masks.into()),
    })?;
    for other in &others.items {
        if other.metadata.name.as_deref() == Some(request.name.as_str()) {
            continue;
        }
        if let Some(host) = hosts(other).find(|host| wanted.contains(host)) {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            let message = format!("host {host} is taken by Ingress {name}");
            return reject_request(Some(message), None, None, None);
        }
    }
    accept_request()
}

fn hosts(ingress: &Ingress) -> impl Iterator<Item = &str> {
    let rules = ingress
        .spec
        .iter()
        .flat_map(|spec| spec.rules.iter().flatten());
    rules.filter_map(|rule| rule.host.as_deref())
}
