//! Whether a policy or a PolicyServer may be written, scaled or deleted.

use assent_api::{
    Parsed, ROLLBACK_ANNOTATION,
    parse::{self, Errors, Manifest},
};
use assent_core::PolicyKey;
use serde_json::Value;

use super::{
    AdmissionView,
    review::{Operation, Request, Verdict},
    warnings,
};
use crate::names::ALLOW_DELETE_ANNOTATION;

/// Policies that a message names at most.
const NAMED: usize = 5;

/// Decides by the very parser that the index uses: what is let in is what is understood.
pub fn validate(
    request: &Request,
    known: Option<&AdmissionView>,
    options: &assent_api::Options,
) -> Verdict {
    if request.is_revision() {
        // The webhook's conditions exempt those who may write revisions.
        return Verdict::forbidden(
            "only the control plane writes PolicyRevisions; edit the policy instead",
        );
    }
    match (request.operation, request.sub_resource.as_str()) {
        (Operation::Create | Operation::Update, "") => write(request, known, options),
        (Operation::Delete, "") => delete(request, known),
        (_, "scale") => scale(request, known),
        _ => Verdict::allow(),
    }
}

/// Whether the object is being deleted: that must never be blocked.
pub(super) fn is_terminating(object: &Value) -> bool {
    let stamp = object.pointer("/metadata/deletionTimestamp");
    stamp.is_some_and(|stamp| !stamp.is_null())
}

fn write(
    request: &Request,
    known: Option<&AdmissionView>,
    options: &assent_api::Options,
) -> Verdict {
    if is_terminating(&request.object) {
        return Verdict::allow();
    }
    let untouched = is_untouched(request);
    match parse::manifest(&request.object, options) {
        // Finalizers, labels and owners of an object can be changed whatever else is wrong
        // with it: a stricter version of ours must not hold an object for ever.
        Err(errors) if untouched => Verdict::warn(vec![format!(
            "this object is not valid and does not take effect: {}",
            joined(&errors)
        )]),
        Err(errors) => Verdict::invalid(joined(&errors)),
        Ok(_) if untouched => Verdict::allow(),
        Ok(Manifest::Policy(policy)) => write_policy(request, &policy, known, options),
        Ok(Manifest::Server(server)) => {
            let zero = server.spec.replicas == 0;
            let was_zero = replicas(&request.old_object) == Some(0);
            match (request.operation, zero) {
                (Operation::Update, true) if !was_zero => scale_to_zero(&server.name, known),
                _ => Verdict::warn(warnings::of_server(&server, known)),
            }
        }
    }
}

fn write_policy(
    request: &Request,
    policy: &Parsed,
    known: Option<&AdmissionView>,
    options: &assent_api::Options,
) -> Verdict {
    // An old object that is not valid has nothing that could be kept.
    if let Ok(old) = parse::policy(&request.old_object, options)
        && let Err(errors) = parse::immutable_fields(&old, policy)
    {
        return Verdict::invalid(joined(&errors));
    }
    let mut warnings = warnings::of_policy(policy, known);
    warnings.extend(parse::warnings(&request.object));
    Verdict::warn(warnings)
}

/// Whether an update changes nothing that the control plane reads.
pub(super) fn is_untouched(request: &Request) -> bool {
    let rollback = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations")?;
        annotations.get(ROLLBACK_ANNOTATION).cloned()
    };
    let (old, new) = (&request.old_object, &request.object);
    request.operation == Operation::Update
        && old.get("spec") == new.get("spec")
        && rollback(old) == rollback(new)
}

fn delete(request: &Request, known: Option<&AdmissionView>) -> Verdict {
    let object = &request.old_object;
    if request.resource.resource != "policyservers" || is_terminating(object) {
        return Verdict::allow();
    }
    // A request that deletes many at once names none.
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    let name = name.unwrap_or(&request.name);
    let annotations = object.pointer("/metadata/annotations");
    let allowed = annotations.and_then(|annotations| annotations.get(ALLOW_DELETE_ANNOTATION));
    if name == assent_core::policy::DEFAULT_SERVER && allowed != Some(&Value::from("true")) {
        return Verdict::forbidden(format!(
            "the PolicyServer \"{name}\" belongs to the installation; to delete it all the same, \
             annotate it with {ALLOW_DELETE_ANNOTATION}=true first"
        ));
    }
    match protecting(name, known) {
        [] => Verdict::allow(),
        policies => Verdict::warn(vec![format!(
            "policies of this PolicyServer are no longer enforced: {}",
            list(policies)
        )]),
    }
}

fn scale(request: &Request, known: Option<&AdmissionView>) -> Verdict {
    let (old, new) = (replicas(&request.old_object), replicas(&request.object));
    let server = request.resource.resource == "policyservers";
    // A Scale leaves its replicas out when they are zero.
    match (old.unwrap_or(0), new.unwrap_or(0)) {
        (1.., 0) if server && !is_terminating(&request.object) => {
            scale_to_zero(&request.name, known)
        }
        _ => Verdict::allow(),
    }
}

fn scale_to_zero(server: &str, known: Option<&AdmissionView>) -> Verdict {
    if known.is_none() {
        return Verdict::later(
            "the control plane does not know all policies yet; try again in a moment",
        );
    }
    match protecting(server, known) {
        [] => Verdict::allow(),
        policies => Verdict::forbidden(format!(
            "the PolicyServer \"{server}\" can't be scaled to 0 while policies protect by it: {}; \
             delete them or set their mode to monitor first",
            list(policies)
        )),
    }
}

fn protecting<'a>(server: &str, known: Option<&'a AdmissionView>) -> &'a [PolicyKey] {
    let policies = known.and_then(|known| known.protecting.get(server));
    policies.map(Vec::as_slice).unwrap_or_default()
}

fn replicas(object: &Value) -> Option<i64> {
    object.pointer("/spec/replicas").and_then(Value::as_i64)
}

fn list(policies: &[PolicyKey]) -> String {
    let names: Vec<_> = policies
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    match policies.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names.join(", ")),
    }
}

fn joined(errors: &Errors) -> String {
    let errors: Vec<_> = errors.0.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

#[cfg(test)]
mod tests;
