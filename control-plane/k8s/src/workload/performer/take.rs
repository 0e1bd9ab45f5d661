//! What to do about an object that may be there already.

use assent_api::GROUP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::names::{FIXED_HASH_ANNOTATION, MANAGED_BY};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// Write it.
    Apply,
    /// Delete it without what it made, since it can't be changed into what it must be.
    Replace {
        /// The object's.
        uid: Option<String>,
    },
    /// It is on its way out.
    Wait,
    /// It is somebody else's.
    Foreign,
}

/// Looks at the metadata of what is there and of what must be there.
pub(super) fn take(current: Option<&ObjectMeta>, desired: &ObjectMeta) -> Take {
    let Some(current) = current else {
        return Take::Apply;
    };
    let ours = controller(desired);
    match (controller(current), ours) {
        (Some(theirs), Some(ours)) if theirs.uid != ours.uid => {
            // An older life of the same PolicyServer: the garbage collector removes it.
            let older = is_server(theirs) && theirs.name == ours.name;
            return if older { Take::Wait } else { Take::Foreign };
        }
        // Somebody took our reference away; our label still says whose it is.
        (None, _) if !is_labelled(current) => return Take::Foreign,
        _ => {}
    }
    if current.deletion_timestamp.is_some() {
        return Take::Wait;
    }
    match fixed(current).is_some() && fixed(current) != fixed(desired) {
        true => Take::Replace {
            uid: current.uid.clone(),
        },
        false => Take::Apply,
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
    fn check(current: Option<ObjectMeta>, expect: &Take) {
        let desired = mk(&[owner("PolicyServer", "s", "1")], Some("a"));
        assert_eq!(take(current.as_ref(), &desired), *expect);
    }

    #[test]
    fn owned_object_is_written() {
        let ours = [owner("PolicyServer", "s", "1")];
        check(None, &Take::Apply);
        check(Some(mk(&ours, Some("a"))), &Take::Apply);
        check(Some(mk(&ours, None)), &Take::Apply);
    }

    #[test]
    fn immutable_change_replaces_the_object() {
        let current = mk(&[owner("PolicyServer", "s", "1")], Some("b"));
        let uid = Some("object".to_owned());
        check(Some(current), &Take::Replace { uid });
    }

    #[test]
    fn deleted_object_is_waited_for() {
        let mut going = mk(&[owner("PolicyServer", "s", "1")], Some("b"));
        going.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            jiff::Timestamp::UNIX_EPOCH,
        ));
        check(Some(going), &Take::Wait);
        // An older life.
        let older = mk(&[owner("PolicyServer", "s", "0")], Some("a"));
        check(Some(older), &Take::Wait);
    }

    #[test]
    fn foreign_object_is_left_alone() {
        check(Some(mk(&[], None)), &Take::Foreign);
        let other = owner("PolicyServer", "other", "0");
        check(Some(mk(&[other], None)), &Take::Foreign);
        let other = owner("Deployment", "s", "0");
        check(Some(mk(&[other], None)), &Take::Foreign);
    }

    #[test]
    fn object_without_owner_is_recognised_by_its_label() {
        let mut current = mk(&[], Some("a"));
        let (name, us) = MANAGED_BY;
        current.labels = Some([(name.to_owned(), us.to_owned())].into());
        check(Some(current), &Take::Apply);
    }
}
