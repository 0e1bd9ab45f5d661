#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn projection(fields: &[&str]) -> Projection {
    let fields: Vec<FieldPath> = fields.iter().map(|f| f.parse().unwrap()).collect();
    Projection::new(&fields)
}

fn ingress() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {
            "name": "a", "namespace": "b", "uid": "c", "labels": {"l": "1"}, "resourceVersion": "7",
            "ownerReferences": [{"name": "o"}],
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {LAST_APPLIED: "{}", "example.com/owner": "me", "other": "x"},
        },
        "spec": {"rules": [{"host": "h1", "http": {"paths": []}}, {"http": {}}, "odd"], "tls": [1, 2]},
        "status": {"loadBalancer": {}},
    })
}

#[test]
fn whole_objects_lose_only_what_writers_left() {
    let mut expect = ingress();
    expect["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    expect["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .remove(LAST_APPLIED);
    assert_eq!(projection(&[]).project(ingress()), expect);
    let only_applied = json!({"metadata": {"annotations": {LAST_APPLIED: "{}"}}});
    assert_eq!(
        projection(&[]).project(only_applied),
        json!({"metadata": {}})
    );
}

#[test]
fn fields_keep_their_subtrees_and_what_every_object_needs() {
    let fields = [
        "spec.rules.host",
        "spec.tls",
        "metadata.annotations.example\\.com/owner",
    ];
    let expect = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {
            "name": "a", "namespace": "b", "uid": "c", "labels": {"l": "1"},
            "ownerReferences": [{"name": "o"}],
            "annotations": {"example.com/owner": "me"},
        },
        "spec": {"rules": [{"host": "h1"}, {}], "tls": [1, 2]},
    });
    assert_eq!(projection(&fields).project(ingress()), expect);
    // A parent does not bring back what no projection keeps.
    let metadata = projection(&["metadata"]).project(ingress());
    assert_eq!(metadata["metadata"].get("managedFields"), None);
    assert_eq!(metadata["metadata"]["annotations"].get(LAST_APPLIED), None);
    assert_eq!(metadata["metadata"]["resourceVersion"], "7");
}

#[test]
fn reads_of_dropped_paths_name_the_missing_entry() {
    let kept = projection(&["spec.rules.host", "status"]);
    let check = |path: &str| kept.check(&path.parse().unwrap());
    for path in [
        "spec.rules.host",
        "status.a.b",
        "metadata.labels.x",
        "kind",
        "metadata.name",
    ] {
        assert_eq!(check(path), Ok(()), "{path}");
    }
    for path in [
        "spec",
        "spec.rules",
        "spec.tls",
        "metadata",
        "metadata.managedFields",
    ] {
        assert_eq!(check(path), Err(Missing(path.to_owned())), "{path}");
    }
    let whole = projection(&[]);
    assert_eq!(whole.check(&"spec".parse().unwrap()), Ok(()));
    assert!(
        whole
            .check(&"metadata.managedFields.x".parse().unwrap())
            .is_err()
    );
    let narrowed = kept.narrow(["status.loadBalancer"]).unwrap();
    assert_eq!(narrowed.project(ingress()).get("spec"), None);
    assert!(matches!(
        kept.narrow(["spec.tls"]),
        Err(MaskError::Missing(_))
    ));
    assert!(matches!(kept.narrow(["spec..x"]), Err(MaskError::Path(_))));
}

/// The same by looking at every path of the object.
fn naive(value: &Value, at: &mut Vec<String>, fields: &[Vec<String>]) -> Option<Value> {
    if fields.iter().any(|field| at.starts_with(field)) {
        return Some(value.clone());
    }
    if !fields.iter().any(|field| field.starts_with(at)) {
        return None;
    }
    match value {
        Value::Array(items) => Some(items.iter().filter_map(|v| naive(v, at, fields)).collect()),
        Value::Object(entries) => {
            let mut kept = Map::new();
            for (key, value) in entries {
                at.push(key.clone());
                if let Some(value) = naive(value, at, fields) {
                    kept.insert(key.clone(), value);
                }
                at.pop();
            }
            Some(kept.into())
        }
        _ => None,
    }
}

fn any_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<u8>().prop_map(Value::from),
        "[a-c]".prop_map(Value::from)
    ];
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    proptest::collection::btree_map("[a-c]", tree, 0..4)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

proptest! {
    #[test]
    fn projections_equal_the_naive_ones(
        object in any_object(),
        fields in proptest::collection::vec(proptest::collection::vec("[a-c]", 1..4), 1..4),
    ) {
        let paths: Vec<FieldPath> = fields.iter().map(|f| f.join(".").parse().unwrap()).collect();
        let expect = naive(&object, &mut Vec::new(), &fields).unwrap();
        let projected = Projection::new(&paths).project(object);
        prop_assert_eq!(&projected, &expect);
        // What is projected already stays as it is.
        prop_assert_eq!(Projection::new(&paths).project(projected), expect);
    }
}
