#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn declared(api_version: &str, kind: &str) -> ContextResource {
    ContextResource {
        api_version: api_version.into(),
        kind: kind.into(),
        ..ContextResource::default()
    }
}

fn names(cluster: &Cluster, resource: &ContextResource) -> Vec<String> {
    let collection = cluster.collection(resource).unwrap();
    collection.iter().map(|o| o.key().to_string()).collect()
}

#[test]
fn objects_are_found_by_their_kind() {
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
    let cluster = Cluster::new([
        json!({"apiVersion": "v1", "kind": "List", "items": [pod("b"), pod("a")]}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": "odd"}}),
        json!({"apiVersion": "v1", "kind": "PodList", "items": []}),
    ])
    .unwrap();
    // Without a namespace an object is in the default one.
    assert_eq!(
        names(&cluster, &declared("v1", "Pod")),
        ["default/a", "default/b"]
    );
    assert_eq!(names(&cluster, &declared("v1", "Node")), ["n"]);
    assert_eq!(names(&cluster, &declared("v1", "Secret")), [""; 0]);
}

#[test]
fn definitions_add_kinds() {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"kind": "Cluster", "plural": "clusters"},
            "versions": [{"name": "v1", "served": true}, {"name": "v0", "served": false}],
        },
    });
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Cluster", "metadata": {"name": "c"}});
    let without = Cluster::new([object.clone()]).unwrap();
    let missing = without.collection(&declared("example.com/v1", "Cluster"));
    assert!(matches!(missing, Err(Error::UnknownKind(..))));
    let cluster = Cluster::new([definition, object]).unwrap();
    assert_eq!(
        names(&cluster, &declared("example.com/v1", "Cluster")),
        ["c"]
    );
    assert!(cluster.kind("example.com/v0", "Cluster").is_none());
}

#[test]
fn other_documents_are_errors() {
    for bad in [
        json!(7),
        json!({}),
        json!({"apiVersion": "v1", "kind": "Pod"}),
    ] {
        assert_eq!(Cluster::new([bad]).unwrap_err(), Error::NoObject);
    }
}

#[test]
fn second_object_of_a_name_is_refused() {
    let pod = |namespace: Option<&str>| {
        let metadata = match namespace {
            Some(namespace) => json!({"name": "a", "namespace": namespace}),
            None => json!({"name": "a"}),
        };
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    };
    assert!(Cluster::new([pod(None), pod(Some("other"))]).is_ok());
    let error = Cluster::new([pod(None), pod(Some("default"))]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is another Pod (v1) named default/a; remove one of the two"
    );
}

#[test]
fn one_object_is_read_as_it_is_written() {
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}});
    let cluster = Cluster::new([pod]).unwrap();
    let spec = CollectionSpec::new(&declared("v1", "Pod"), "pods", true).unwrap();
    let found = cluster.get(&spec, "default", "a").unwrap();
    assert_eq!(found["spec"]["x"], 1);
    assert!(cluster.get(&spec, "other", "a").is_none());
}
