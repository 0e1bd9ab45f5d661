#![allow(clippy::unwrap_used)]

use super::*;

fn mk_spec() -> CollectionSpec {
    let declared = ContextResource {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        fields: vec!["spec.replicas".into()],
        namespaces: vec!["a".into()],
        label_selector: "b=c".into(),
    };
    CollectionSpec::new(&declared, "deployments", true).unwrap()
}

#[test]
fn collections_survive_the_wire() {
    let spec = mk_spec();
    assert_eq!(*collection(collection_to_proto(&spec)).unwrap(), spec);
}

#[test]
fn forged_collections_are_refused() {
    let good = collection_to_proto(&mk_spec());
    let mut other = good.clone();
    other.namespaces = vec!["b".into()];
    assert!(matches!(collection(other), Err(Error::OtherId(..))));
    let mut bad = good;
    bad.label_selector = "a in".into();
    assert!(matches!(collection(bad), Err(Error::Spec(..))));
}

#[test]
fn marks_survive_the_wire() {
    for state in SyncState::ALL {
        let written = Mark {
            collection: mk_spec().id(),
            root: Digest::of(b"root"),
            resource_version: "7".into(),
            observed_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_234),
            state,
            detail: "why".into(),
            totals: Totals {
                objects: 1,
                bytes: 2,
            },
            age: Duration::from_millis(3),
        };
        assert_eq!(mark(mark_to_proto(&written)), Ok(written));
    }
}

#[test]
fn unknown_values_are_errors() {
    let mark_of = |change: fn(&mut v1::CollectionMark)| {
        let mut written = v1::CollectionMark {
            collection: mk_spec().id().to_string(),
            root: Bytes::from_static(&[0; 32]),
            state: 1,
            ..v1::CollectionMark::default()
        };
        change(&mut written);
        mark(written)
    };
    assert!(mark_of(|_| {}).is_ok());
    assert_eq!(mark_of(|m| m.state = 0), Err(Error::State(0)));
    assert_eq!(mark_of(|m| m.state = 77), Err(Error::State(77)));
    assert_eq!(mark_of(|m| m.root = Bytes::new()), Err(Error::Root(0)));
    assert!(matches!(
        mark_of(|m| m.collection = "../x".into()),
        Err(Error::Id(_))
    ));
}
