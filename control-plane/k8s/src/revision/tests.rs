#![allow(clippy::unwrap_used)]

use assent_api::{
    Parsed,
    parse::{self, Module},
};
use assent_core::{Digest, Mode, Policy, policy::Limits};
use serde_json::json;

use super::*;

const UID: &str = "0123-4567-89";
const OWN: &str = "assent-system";

fn mk_parsed(namespace: Option<&str>) -> Parsed {
    let kind = match namespace {
        Some(_) => "AdmissionPolicy",
        None => "ClusterAdmissionPolicy",
    };
    let value = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": { "name": "p", "namespace": namespace },
        "spec": {
            "module": "example.com/policy:v1",
            "mode": "monitor",
            "settings": { "z": 1, "a": [9_223_372_036_854_775_807_i64] },
            "message": "no",
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        },
    });
    parse::policy(&value, &parse::Options::default()).expect("the policy must be valid")
}

/// A revision as evaluators get it and as it is stored.
fn mk_revision(namespace: Option<&str>) -> (Policy, PolicyRevision) {
    let module = Module {
        digest: Digest::of(b"module"),
        size: 6,
        abi: "wapc".into(),
        host_capabilities: vec!["oci/v1/verify".into()],
        signer: None,
        url: "registry://example.com/policy@sha256:00".into(),
        secret_settings: None,
    };
    let limits = Limits {
        timeout_ms: 700,
        memory_bytes: 1 << 20,
    };
    let (policy, spec) = revision::make(&mk_parsed(namespace), UID, 12, &module, limits);
    let object = object(&policy.policy, &policy.revision, spec, OWN);
    (policy, object)
}

#[test]
fn stored_revision_is_restored_as_it_was() {
    for namespace in [None, Some("team")] {
        let (policy, object) = mk_revision(namespace);
        assert_eq!(policy.revision.short(), "12-01234567");
        assert_eq!(policy.content.mode, Mode::Monitor);
        assert_eq!(owner(&object, OWN), Ok(policy.policy.clone()));
        let options = parse::Options::default();
        let restored = revision::restore(&policy.policy, &object.spec, &options);
        assert_eq!(restored.as_ref(), Ok(&policy));
        assert_eq!(object.namespace().unwrap(), namespace.unwrap_or(OWN));
        assert_eq!(object.name_any(), "p-12-01234567");
        let owner = &object.owner_references()[0];
        assert_eq!(owner.uid, UID);
        assert_eq!(owner.kind, object.spec.policy_ref.kind);
    }
}

#[test]
fn edited_content_is_rejected() {
    let (policy, mut object) = mk_revision(None);
    object.spec.settings = "{}".into();
    let options = parse::Options::default();
    let why = revision::restore(&policy.policy, &object.spec, &options).unwrap_err();
    assert!(why.contains("digest"), "{why}");
}

#[test]
fn revision_that_names_no_policy_has_no_owner() {
    let (_, mut object) = mk_revision(None);
    object.spec.policy_ref.kind = "Pod".into();
    assert_eq!(owner(&object, OWN), Err(Error::NoPolicy));
}

/// What a tenant can write in a namespace of his own.
#[test]
fn revision_of_a_cluster_policy_in_another_namespace_is_forged() {
    let (policy, mut object) = mk_revision(None);
    object.metadata.namespace = Some("tenant".into());
    let expected = Error::Namespace {
        policy: policy.policy,
        namespace: OWN.into(),
    };
    assert_eq!(owner(&object, OWN), Err(expected));
}

#[test]
fn revision_under_another_name_is_forged() {
    for name in ["p-13-01234567", "aaa"] {
        let (policy, mut object) = mk_revision(Some("team"));
        object.metadata.name = Some(name.into());
        let expected = Error::Name {
            policy: policy.policy,
            name: "p-12-01234567".into(),
        };
        assert_eq!(owner(&object, OWN), Err(expected));
    }
}

#[test]
fn revision_of_another_owner_is_forged() {
    #[track_caller]
    fn check(edit: impl FnOnce(&mut OwnerReference)) {
        let (policy, mut object) = mk_revision(Some("team"));
        edit(&mut object.owner_references_mut()[0]);
        let expected = Error::Owner {
            policy: policy.policy,
            uid: UID.into(),
        };
        assert_eq!(owner(&object, OWN), Err(expected));
    }
    check(|owner| owner.uid = "0123-4567-other".into());
    check(|owner| owner.name = "q".into());
    check(|owner| owner.kind = "ClusterAdmissionPolicy".into());
    check(|owner| owner.api_version = "example.com/v1".into());
}
