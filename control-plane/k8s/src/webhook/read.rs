//! Reads existing webhook configurations.

use assent_api::revision::ResolvedRevision;
use assent_core::{PolicyKey, RevisionId};
use kube::core::DynamicObject;
use serde_json::Value;

use super::{CONFIRM_PREFIX, PREFIX};
use crate::names;

/// The policy and revision that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The policy.
    pub policy: PolicyKey,
    /// The uid of that policy; `None` if somebody removed it.
    pub uid: Option<String>,
    /// The revision that it points at; `None` if somebody pointed it elsewhere.
    pub revision: Option<RevisionId>,
    /// What it records of the revision that it was written for.
    pub resolved: Option<ResolvedRevision>,
    /// Whether it asks the policy once more about what it changed.
    pub confirms: bool,
}

/// Reads a configuration of either kind; `None` if it does not belong to a policy. The object's
/// name decides which policy that is, because nobody can edit it: everything else may be missing
/// or wrong, and the next write repairs it.
pub fn read(object: &DynamicObject) -> Option<Named> {
    let name = object.metadata.name.as_deref()?;
    let annotation = |key: &str| object.metadata.annotations.as_ref()?.get(key);
    let paths = paths(object);
    let annotated = annotation(names::POLICY_ANNOTATION).and_then(|text| PolicyKey::parse(text));
    let policy = annotated
        .into_iter()
        .chain(paths.iter().map(|path| path.policy.clone()))
        .chain(from_name(name))
        .find(|policy| names::webhook_configuration(policy) == name)?;
    let own = paths.into_iter().find(|path| path.policy == policy);
    let uid = annotation(names::POLICY_UID_ANNOTATION).filter(|uid| !uid.is_empty());
    let resolved = annotation(names::REVISION_ANNOTATION);
    let resolved = resolved.and_then(|text| serde_json::from_str(text).ok());
    Some(Named {
        resolved,
        uid: uid.cloned(),
        confirms: own.as_ref().is_some_and(|path| path.confirms),
        revision: own.map(|path| path.revision),
        policy,
    })
}

/// What a path of an evaluator names.
struct NamedPath {
    policy: PolicyKey,
    revision: RevisionId,
    confirms: bool,
}

/// What its webhooks point at.
fn paths(object: &DynamicObject) -> Vec<NamedPath> {
    let webhooks = object.data.get("webhooks").and_then(Value::as_array);
    let text = |webhook: &Value, pointer| {
        let text = webhook.pointer(pointer).and_then(Value::as_str);
        text.map(str::to_owned)
    };
    let webhooks = webhooks.into_iter().flatten();
    webhooks
        .filter_map(|webhook| {
            text(webhook, "/clientConfig/service/path")
                .or_else(|| text(webhook, "/clientConfig/url"))
        })
        .filter_map(|path| named_path(&path))
        .collect()
}

/// The revision at the end of a path or URL. The part before it may contain a prefix, too.
fn named_path(path: &str) -> Option<NamedPath> {
    // Every slash is tried: two occurrences of the prefix may share one.
    path.match_indices('/').find_map(|(at, _)| {
        let rest = path.get(at..)?;
        let confirming = rest.strip_prefix(CONFIRM_PREFIX);
        let revision = rest.strip_prefix(PREFIX).or(confirming)?;
        let (policy, short) = revision.rsplit_once('/')?;
        let (generation, uid) = short.split_once('-')?;
        generation.parse::<u64>().ok()?;
        let policy = PolicyKey::parse(policy).filter(|_| !uid.is_empty())?;
        Some(NamedPath {
            policy,
            revision: RevisionId::from_wire(revision),
            confirms: confirming.is_some(),
        })
    })
}

/// The policy that a name was made from, unless the name had to be shortened.
fn from_name(name: &str) -> Option<PolicyKey> {
    let dotted = name.strip_prefix("assent.")?;
    let key = match dotted.strip_prefix("namespaced.") {
        Some(rest) => rest
            .split_once('.')
            .map(|(namespace, name)| PolicyKey::namespaced(namespace, name)),
        None => dotted.strip_prefix("cluster.").map(PolicyKey::cluster),
    }?;
    PolicyKey::parse(key.as_str())
}
