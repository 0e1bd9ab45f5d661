//! Between `PolicyRevision` objects and revisions as evaluators get them.

use std::collections::BTreeMap;

use assent_api::{
    Parsed, PolicyRevision, PolicyRevisionSpec,
    parse::{self, Kind, Module},
    revision::PolicyRef,
};
use assent_core::{Policy, PolicyKey, policy::Limits};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::Value;

use crate::names;

#[cfg(test)]
mod tests;

/// Puts a revision together: what evaluators get, and the object that keeps it.
pub fn make(
    parsed: &Parsed,
    uid: &str,
    generation: i64,
    module: &Module,
    limits: Limits,
    own_namespace: &str,
) -> (Policy, PolicyRevision) {
    let content = parsed.content(module, limits);
    let policy = Policy::new(parsed.key.clone(), generation, uid, content, module.size);
    let spec: Value =
        assent_api::json::from_str(&String::from_utf8_lossy(&parsed.spec_json)).unwrap_or_default();
    let spec = PolicyRevisionSpec {
        policy_ref: PolicyRef {
            kind: parsed.kind().as_str().into(),
            name: parsed.key.name().into(),
            uid: uid.into(),
        },
        generation,
        module_url: module.url.clone(),
        module_digest: module.digest.to_string(),
        module_size: module.size,
        abi: module.abi.clone(),
        content_digest: policy.content_digest.to_string(),
        settings: String::from_utf8_lossy(&parsed.settings).into_owned(),
        host_capabilities: module.host_capabilities.clone(),
        timeout_ms: limits.timeout_ms,
        memory_bytes: limits.memory_bytes,
        policy: spec.as_object().cloned().unwrap_or_default(),
    };
    let object = PolicyRevision {
        metadata: metadata(&policy, parsed.kind(), uid, own_namespace),
        spec,
        status: None,
    };
    (policy, object)
}

/// The policy that a stored revision is of; none where the object names none.
pub fn key(object: &PolicyRevision) -> Option<PolicyKey> {
    let name = &object.spec.policy_ref.name;
    let key = match object.spec.policy_ref.kind.as_str() {
        "ClusterAdmissionPolicy" => format!("cluster/{name}"),
        "AdmissionPolicy" => {
            format!(
                "namespaced/{}/{name}",
                object.metadata.namespace.as_deref()?
            )
        }
        _ => return None,
    };
    PolicyKey::parse(&key)
}

/// The revision that an object keeps; its digest must come out as it was.
pub fn restore(object: &PolicyRevision, options: &parse::Options) -> Result<Policy, String> {
    let spec = &object.spec;
    let key = key(object).ok_or("it does not name a policy")?;
    let parsed = parsed(object, options)?;
    let module = Module {
        digest: spec.module_digest.parse().map_err(|e| format!("{e}"))?,
        size: spec.module_size,
        abi: spec.abi.clone(),
        host_capabilities: spec.host_capabilities.clone(),
        url: spec.module_url.clone(),
    };
    let limits = Limits {
        timeout_ms: spec.timeout_ms,
        memory_bytes: spec.memory_bytes,
    };
    let mut content = parsed.content(&module, limits);
    content.settings_json = spec.settings.as_bytes().into();
    let uid = &spec.policy_ref.uid;
    let policy = Policy::new(key, spec.generation, uid, content, spec.module_size);
    match policy.content_digest.to_string() == spec.content_digest {
        true => Ok(policy),
        false => Err("its content does not match its digest".into()),
    }
}

/// The policy's spec as the revision keeps it.
pub fn parsed(object: &PolicyRevision, options: &parse::Options) -> Result<Parsed, String> {
    let key = key(object).ok_or("it does not name a policy")?;
    let spec = Value::Object(object.spec.policy.clone());
    parse::spec(&key, &spec, options).map_err(|e| e.to_string())
}

/// The policy owns its revisions: they go with it.
fn metadata(policy: &Policy, kind: Kind, uid: &str, own_namespace: &str) -> ObjectMeta {
    let key = &policy.policy;
    let labels = [
        (
            names::MANAGED_BY.0.to_owned(),
            names::MANAGED_BY.1.to_owned(),
        ),
        (names::POLICY_LABEL.to_owned(), names::policy_label(key)),
    ];
    ObjectMeta {
        name: Some(names::revision(key, policy.revision.short())),
        namespace: Some(key.namespace().unwrap_or(own_namespace).to_owned()),
        labels: Some(BTreeMap::from(labels)),
        owner_references: Some(vec![OwnerReference {
            api_version: assent_api::API_VERSION.into(),
            kind: kind.as_str().into(),
            name: key.name().into(),
            uid: uid.into(),
            controller: Some(true),
            block_owner_deletion: Some(false),
        }]),
        ..ObjectMeta::default()
    }
}
