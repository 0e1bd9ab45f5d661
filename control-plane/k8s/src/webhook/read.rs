//! What an existing webhook configuration says.

use assent_core::{PolicyKey, RevisionId};
use kube::core::DynamicObject;
use serde_json::Value;

use super::PREFIX;
use crate::names;

/// What a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The policy that it is for.
    pub policy: PolicyKey,
    /// The uid of that policy; none where somebody removed it.
    pub uid: Option<String>,
    /// The revision that it points at; none where somebody pointed it elsewhere.
    pub revision: Option<RevisionId>,
}

/// Reads a configuration of either kind; none where it is not one of ours. The object's name
/// decides what it is for, because it is the only thing that nobody can edit: the rest may be
/// missing or wrong, and is repaired by a write.
pub fn read(object: &DynamicObject) -> Option<Named> {
    let name = object.metadata.name.as_deref()?;
    let annotation = |key: &str| object.metadata.annotations.as_ref()?.get(key);
    let paths = paths(object);
    let annotated = annotation(names::POLICY_ANNOTATION).and_then(|text| PolicyKey::parse(text));
    let policy = annotated
        .into_iter()
        .chain(paths.iter().map(|(policy, _)| policy.clone()))
        .chain(from_name(name))
        .find(|policy| names::webhook_configuration(policy) == name)?;
    let own = paths.into_iter().find(|(of, _)| *of == policy);
    let uid = annotation(names::POLICY_UID_ANNOTATION).filter(|uid| !uid.is_empty());
    Some(Named {
        uid: uid.cloned(),
        revision: own.map(|(_, revision)| revision),
        policy,
    })
}

/// The revisions that its webhooks point at.
fn paths(object: &DynamicObject) -> Vec<(PolicyKey, RevisionId)> {
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
        .filter_map(|path| revision(&path))
        .collect()
}

/// The revision at the end of a path or URL. What stands before may contain the prefix too.
fn revision(path: &str) -> Option<(PolicyKey, RevisionId)> {
    // By slashes: two of the prefix may share one.
    path.match_indices('/').find_map(|(at, _)| {
        let revision = path.get(at..)?.strip_prefix(PREFIX)?;
        let (policy, short) = revision.rsplit_once('/')?;
        let (generation, uid) = short.split_once('-')?;
        generation.parse::<u64>().ok()?;
        let policy = PolicyKey::parse(policy).filter(|_| !uid.is_empty())?;
        Some((policy, RevisionId::from_wire(revision)))
    })
}

/// The policy that a name was made of, unless the name had to be cut.
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
