//! Denies pods, and the workloads that make pods, with containers that run privileged.

use kubewarden_policy_sdk::{
    accept_request, protocol_version_guest, reject_request,
    request::ValidationRequest,
    wapc_guest::{CallResult, register_function},
};

mod pod_spec;
mod settings;

use pod_spec::PodSpec;
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
    let request = &review.request;
    if review.settings.exempts_namespace(&request.namespace) {
        return accept_request();
    }
    let Some(new) = PodSpec::find(&request.kind, &request.object) else {
        return accept_request();
    };
    // An update that leaves the pod spec alone is not to blame for it: refusing it would keep finalizers,
    // labels and status of objects that are older than the policy from ever changing.
    if PodSpec::find(&request.kind, &request.old_object).is_some_and(|old| old == new) {
        return accept_request();
    }
    let offences = new.offences(&review.settings);
    if offences.is_empty() {
        return accept_request();
    }
    reject_request(Some(message(&offences)), None, None, None)
}

fn message(offences: &[String]) -> String {
    // A pod can have hundreds of containers; the API server shortens long messages without saying so.
    const SHOWN: usize = 5;
    let mut text = format!(
        "privileged containers are not allowed: {}",
        offences[..offences.len().min(SHOWN)].join("; ")
    );
    if offences.len() > SHOWN {
        text.push_str(&format!("; and {} more", offences.len() - SHOWN));
    }
    text
}
