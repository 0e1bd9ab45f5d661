//! `PolicyRevision` objects: where they are, and whose they are.

use std::collections::BTreeMap;

use assent_api::{API_VERSION, PolicyRevision, PolicyRevisionSpec};
use assent_controller::revision;
use assent_core::{PolicyKey, RevisionId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt as _, api::ObjectMeta};

use crate::names;

#[cfg(test)]
mod tests;

/// Why a revision does not belong to the policy that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It names no policy.
    #[error("it does not name a policy")]
    NoPolicy,
    /// It is not where the control plane stores revisions of that policy.
    #[error("revisions of {policy} are stored in namespace {namespace}")]
    Namespace {
        /// The policy that it names.
        policy: PolicyKey,
        /// Where that policy's revisions are.
        namespace: String,
    },
    /// It does not have the name of that revision.
    #[error("a revision of {policy} with this generation and uid is named {name}")]
    Name {
        /// The policy that it names.
        policy: PolicyKey,
        /// What it would have to be named.
        name: String,
    },
    /// The policy does not own it.
    #[error("it has no owner reference to {policy} with the uid {uid}")]
    Owner {
        /// The policy that it names.
        policy: PolicyKey,
        /// The uid that it names.
        uid: String,
    },
}

/// The object that stores a revision. The policy owns it, so that it is deleted with the policy;
/// the finalizer keeps it while it is served.
pub fn object(
    key: &PolicyKey,
    revision: &RevisionId,
    spec: PolicyRevisionSpec,
    own_namespace: &str,
) -> PolicyRevision {
    let (namespace, name) = full_name(key, revision, own_namespace);
    let labels = [
        (names::MANAGED_BY.0, names::MANAGED_BY.1.to_owned()),
        (names::POLICY_LABEL, names::policy_label(key)),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value));
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace),
        labels: Some(BTreeMap::from(labels)),
        finalizers: Some(vec![names::FINALIZER.to_owned()]),
        owner_references: Some(vec![OwnerReference {
            controller: Some(true),
            block_owner_deletion: Some(false),
            ..owner_reference(&spec)
        }]),
        ..ObjectMeta::default()
    };
    PolicyRevision {
        metadata,
        spec,
        status: None,
    }
}

/// Namespace and name of a stored revision: beside a namespaced policy, and in the control
/// plane's namespace for a cluster-wide one, where no tenant may write.
pub fn full_name(key: &PolicyKey, revision: &RevisionId, own_namespace: &str) -> (String, String) {
    let namespace = key.namespace().unwrap_or(own_namespace);
    (namespace.to_owned(), names::revision(key, revision.short()))
}

/// The policy that a stored revision belongs to. What a revision claims about its policy is
/// not enough: it must be in the namespace and under the name where the control plane stores
/// that revision, and be owned by that policy. Therefore no two objects are the same revision.
pub fn owner(object: &PolicyRevision, own_namespace: &str) -> Result<PolicyKey, Error> {
    let spec = &object.spec;
    let policy = revision::key(spec, object.metadata.namespace.as_deref());
    let policy = policy.ok_or(Error::NoPolicy)?;
    let uid = &spec.policy_ref.uid;
    let revision = RevisionId::new(&policy, spec.generation, uid);
    let (namespace, name) = full_name(&policy, &revision, own_namespace);
    if object.namespace().as_ref() != Some(&namespace) {
        return Err(Error::Namespace { policy, namespace });
    }
    if object.name_any() != name {
        return Err(Error::Name { policy, name });
    }
    let wanted = owner_reference(spec);
    let is_owner = |owner: &OwnerReference| {
        owner.api_version == wanted.api_version
            && owner.kind == wanted.kind
            && owner.name == wanted.name
            && owner.uid == wanted.uid
    };
    match object.owner_references().iter().any(is_owner) {
        true => Ok(policy),
        false => Err(Error::Owner {
            policy,
            uid: uid.clone(),
        }),
    }
}

fn owner_reference(spec: &PolicyRevisionSpec) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: spec.policy_ref.kind.clone(),
        name: spec.policy_ref.name.clone(),
        uid: spec.policy_ref.uid.clone(),
        ..OwnerReference::default()
    }
}
