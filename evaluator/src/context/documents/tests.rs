#![allow(clippy::unwrap_used)]

use assent_context::Cluster;
use assent_core::PolicyKey;
use serde_json::{Value, json};

use super::*;

fn resource(api_version: &str, kind: &str) -> ContextResource {
    ContextResource {
        api_version: api_version.into(),
        kind: kind.into(),
        ..ContextResource::default()
    }
}

fn documents(policy: PolicyKey, declared: Vec<ContextResource>) -> Documents {
    let object = |api_version: &str, kind: &str, namespace: &str, name: &str| {
        json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name},
        })
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x"},
        "spec": {"group": "x", "scope": "Cluster", "names": {"kind": "Other", "plural": "pods"}, "versions": [{"name": "v1"}]},
    });
    let cluster = Cluster::new([
        object("v1", "Pod", "b", "p"),
        object("v1", "Pod", "a", "{\"x\":1}"),
        object("v1", "Node", "", "n"),
        definition,
    ])
    .unwrap();
    let snapshots = declared
        .iter()
        .map(|one| cluster.collection(one).unwrap().snapshot());
    let data = Arc::new(ContextData::fixed(snapshots.collect::<Vec<_>>()));
    let subject = Subject {
        policy,
        revision: Arc::default(),
        declared,
        capabilities: vec![],
    };
    Documents::new(&subject, &data)
}

fn load(documents: &Documents, form: DataForm) -> Value {
    serde_json::from_slice(&documents.load(form).unwrap().json).unwrap()
}

#[test]
fn objects_are_laid_out_for_opa_and_gatekeeper() {
    let declared = vec![resource("v1", "Pod"), resource("v1", "Node")];
    let documents = documents(PolicyKey::cluster("p"), declared);
    let kubernetes = load(&documents, DataForm::Kubernetes);
    assert_eq!(kubernetes["nodes"]["n"]["kind"], "Node");
    assert_eq!(kubernetes["pods"]["b"]["p"]["metadata"]["name"], "p");
    // A name that looks like JSON is a name.
    assert_eq!(kubernetes["pods"]["a"]["{\"x\":1}"]["kind"], "Pod");
    let inventory = load(&documents, DataForm::Inventory);
    assert_eq!(inventory["cluster"]["v1"]["Node"]["n"]["kind"], "Node");
    assert_eq!(inventory["namespace"]["b"]["v1"]["Pod"]["p"]["kind"], "Pod");
    let (one, other) = (
        documents.load(DataForm::Inventory),
        documents.load(DataForm::Inventory),
    );
    // One text, shared.
    assert_eq!(one.unwrap().json.as_ptr(), other.unwrap().json.as_ptr());
}

#[test]
fn namespaced_policies_see_their_own_namespace() {
    let documents = documents(PolicyKey::namespaced("b", "p"), vec![resource("v1", "Pod")]);
    let kubernetes = load(&documents, DataForm::Kubernetes);
    assert_eq!(kubernetes["pods"].as_object().unwrap().len(), 1);
}

#[test]
fn equal_plurals_are_an_error() {
    let declared = vec![resource("v1", "Pod"), resource("x/v1", "Other")];
    let documents = documents(PolicyKey::cluster("p"), declared);
    let error = documents.load(DataForm::Kubernetes).unwrap_err();
    assert!(error.contains("data.kubernetes.pods"), "{error}");
    assert!(documents.load(DataForm::Inventory).is_ok());
}
