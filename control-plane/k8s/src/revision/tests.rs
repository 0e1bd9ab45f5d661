use assent_core::{Digest, Mode};
use serde_json::json;

use super::*;

fn parsed(namespace: Option<&str>) -> Parsed {
    let kind = match namespace {
        Some(_) => "AdmissionPolicy",
        None => "ClusterAdmissionPolicy",
    };
    let value = json!({
        "apiVersion": assent_api::API_VERSION,
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

fn module() -> Module {
    Module {
        digest: Digest::of(b"module"),
        size: 6,
        abi: "wapc".into(),
        host_capabilities: vec!["oci/v1/verify".into()],
        url: "registry://example.com/policy@sha256:00".into(),
    }
}

const LIMITS: Limits = Limits {
    timeout_ms: 700,
    memory_bytes: 1 << 20,
};

#[test]
fn what_is_stored_comes_back_as_it_was() {
    for namespace in [None, Some("team")] {
        let parsed = parsed(namespace);
        let (policy, object) = make(
            &parsed,
            "0123-4567-89",
            12,
            &module(),
            LIMITS,
            "assent-system",
        );
        assert_eq!(policy.revision.short(), "12-01234567");
        assert_eq!(policy.content.mode, Mode::Monitor);
        assert_eq!(key(&object), Some(parsed.key.clone()));
        let restored = restore(&object, &parse::Options::default());
        assert_eq!(restored.as_ref(), Ok(&policy));
        let meta = &object.metadata;
        assert_eq!(
            meta.namespace.as_deref(),
            Some(namespace.unwrap_or("assent-system"))
        );
        assert_eq!(meta.name.as_deref(), Some("p-12-01234567"));
        let owner = &meta.owner_references.as_ref().expect("it must be owned")[0];
        assert_eq!(
            (owner.uid.as_str(), owner.kind.as_str()),
            ("0123-4567-89", parsed.kind().as_str())
        );
    }
}

#[test]
fn an_edited_revision_is_refused() {
    let (_, mut object) = make(&parsed(None), "u", 1, &module(), LIMITS, "ns");
    object.spec.settings = "{}".into();
    let why = restore(&object, &parse::Options::default()).expect_err("it must be refused");
    assert!(why.contains("digest"), "{why}");
}

#[test]
fn a_revision_of_nothing_is_refused() {
    let (_, mut object) = make(&parsed(None), "u", 1, &module(), LIMITS, "ns");
    object.spec.policy_ref.kind = "Pod".into();
    assert_eq!(key(&object), None);
    assert!(restore(&object, &parse::Options::default()).is_err());
}
