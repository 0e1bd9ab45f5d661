//! The next step for an object that may exist already.

use assent_api::GROUP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::names::{FIXED_HASH_ANNOTATION, MANAGED_BY};

/// The next step for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write it.
    Apply,
    /// Delete it without its dependents: it cannot be changed into the desired object.
    Replace {
        /// Its uid.
        uid: Option<String>,
    },
    /// It is being deleted.
    Wait,
    /// It is somebody else's.
    Foreign,
}

/// The next step, by the metadata of the existing and of the desired object.
pub(super) fn next_step(current: Option<&ObjectMeta>, desired: &ObjectMeta) -> Step {
    let Some(current) = current else {
        return Step::Apply;
    };
    let ours = controller(desired);
    match (controller(current), ours) {
        (Some(theirs), Some(ours)) if theirs.uid != ours.uid => {
            // An earlier PolicyServer of the same name: the garbage collector removes it.
            let older = is_server(theirs) && theirs.name == ours.name;
            return if older { Step::Wait } else { Step::Foreign };
        }
        // Somebody removed the owner reference; the label still names the owner.
        (None, _) if !is_labelled(current) => return Step::Foreign,
        _ => {}
    }
    if current.deletion_timestamp.is_some() {
        return Step::Wait;
    }
    match fixed(current).is_some() && fixed(current) != fixed(desired) {
        true => Step::Replace {
            uid: current.uid.clone(),
        },
        false => Step::Apply,
    }
}

/// Whether the PolicyServer with this uid controls it.
pub(super) fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    controller(metadata).is_some_and(|owner| owner.uid == uid)
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

fn is_server(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split('/').next();
    group == Some(GROUP) && owner.kind == "PolicyServer"
}

fn is_labelled(metadata: &ObjectMeta) -> bool {
    let (name, us) = MANAGED_BY;
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(name));
    label.is_some_and(|value| value == us)
}

fn fixed(metadata: &ObjectMeta) -> Option<&String> {
    metadata.annotations.as_ref()?.get(FIXED_HASH_ANNOTATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "policies.assent.dev/v1alpha1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    fn mk(owners: &[OwnerReference], hash: Option<&str>) -> ObjectMeta {
        let annotation = |hash: &str| [(FIXED_HASH_ANNOTATION.to_owned(), hash.to_owned())];
        ObjectMeta {
            uid: Some("object".into()),
            owner_references: Some(owners.to_vec()),
            annotations: hash.map(|hash| annotation(hash).into()),
            ..ObjectMeta::default()
        }
    }

    #[track_caller]
    fn check(current: Option<ObjectMeta>, expect: &Step) {
        let desired = mk(&[owner("PolicyServer", "s", "1")], Some("a"));
        assert_eq!(next_step(current.as_ref(), &desired), *expect);
    }

    #[test]
    fn owned_object_is_written() {
        let ours = [owner("PolicyServer", "s", "1")];
        check(None, &Step::Apply);
        check(Some(mk(&ours, Some("a"))), &Step::Apply);
        check(Some(mk(&ours, None)), &Step::Apply);
    }

    #[test]
    fn immutable_change_replaces_the_object() {
        let current = mk(&[owner("PolicyServer", "s", "1")], Some("b"));
        let uid = Some("object".to_owned());
        check(Some(current), &Step::Replace { uid });
    }

    #[test]
    fn deleted_object_is_waited_for() {
        let mut going = mk(&[owner("PolicyServer", "s", "1")], Some("b"));
        going.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            jiff::Timestamp::UNIX_EPOCH,
        ));
        check(Some(going), &Step::Wait);
        // An older life.
        let older = mk(&[owner("PolicyServer", "s", "0")], Some("a"));
        check(Some(older), &Step::Wait);
    }

    #[test]
    fn foreign_object_is_left_alone() {
        check(Some(mk(&[], None)), &Step::Foreign);
        let other = owner("PolicyServer", "other", "0");
        check(Some(mk(&[other], None)), &Step::Foreign);
        let other = owner("Deployment", "s", "0");
        check(Some(mk(&[other], None)), &Step::Foreign);
    }

    #[test]
    fn object_without_owner_is_recognised_by_its_label() {
        let mut current = mk(&[], Some("a"));
        let (name, us) = MANAGED_BY;
        current.labels = Some([(name.to_owned(), us.to_owned())].into());
        check(Some(current), &Step::Apply);
    }
}
